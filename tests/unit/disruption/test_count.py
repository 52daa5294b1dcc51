"""Slots of domains: pods that exist, pods that are missing, and unplaced pods."""

from dataclasses import replace

import pytest

from unit.disruption.build import (
    ACROSS,
    BY_ZONE,
    EXISTS,
    NAKED,
    NEW,
    NODES,
    OVERALL,
    STATEFUL,
    Cluster,
    budget,
    pod,
    spread,
    workloads,
)
from zonewise.disruption.decide.allowance import DomainFill
from zonewise.disruption.decide.budget import Budget, BudgetDomainKey
from zonewise.disruption.decide.count import Departure, count, owner_slots_of
from zonewise.disruption.decide.pods import ControllerRef, Owner, PodStage, Workload
from zonewise.disruption.decide.status import allowed_by_domain, charged
from zonewise.topology import ZONE

FULL = spread("3/3/3")
OUTSIDE = budget({"key": ZONE, "operator": "NotIn", "values": ["a"]}, EXISTS, maxUnavailable=1)


def fillings(cluster: Cluster, limited: Budget = ACROSS) -> dict[str, DomainFill]:
    return dict(cluster.pod_count(limited).numbers.tally.domains)


def shape(cluster: Cluster, limited: Budget = ACROSS) -> str:
    """Slots and healthy pods of each domain, and how many are missing from anywhere."""
    tally = cluster.pod_count(limited).numbers.tally
    domains = " ".join(f"{name}:{slots}/{healthy}" for name, (slots, healthy) in sorted(tally.domains.items()))
    return f"{domains} +{tally.unplaced}" if tally.unplaced else domains


SHAPES: dict[str, tuple[Cluster, str]] = {
    "all there": (FULL, "a:3/3 b:3/3 c:3/3"),
    "not ready": (FULL.unready("b0"), "a:3/3 b:3/2 c:3/3"),
    "charged": (FULL.charged("b0"), "a:3/3 b:3/2 c:3/3"),
    "being evicted": (FULL.changed("b0", disruption_target=True), "a:3/3 b:3/2 c:3/3"),
    "granted to its controller": (FULL.changed("b0", granted=True), "a:3/3 b:3/2 c:3/3"),
    "terminating": (FULL.terminating("b0"), "a:3/3 b:3/2 c:3/3"),
    "ended pods are no pods": (FULL.changed("b0", stage=PodStage.ENDED, ready=False), "a:3/3 b:2/2 c:3/3 +1"),
    "gone": (FULL.gone("b0"), "a:3/3 b:3/2 c:3/3"),
    "gone, its successor waits for a node": (FULL.gone("b0").pending("n0"), "a:3/3 b:3/2 c:3/3"),
    "gone, its successor came elsewhere": (FULL.gone("b0").with_pods(pod("c9", ready=False)), "a:3/3 b:2/2 c:4/3"),
    "gone unseen": (FULL.lost("b0").pending("n0"), "a:3/3 b:2/2 c:3/3 +1"),
    "gone unseen, but charged": (FULL.charged("b0").lost("b0"), "a:3/3 b:3/2 c:3/3"),
    "one from each, one successor back": (
        FULL.gone("a0", "b0", "c0").with_pods(pod("c9")),
        "a:3/2 b:3/2 c:3/3",
    ),
    "one from each, one successor elsewhere: any may owe what is missing": (
        FULL.gone("a0", "b0").with_pods(pod("c9")),
        "a:3/2 b:3/2 c:4/4",
    ),
    "two from one, one back": (FULL.gone("a0", "a1").with_pods(pod("a9")), "a:3/2 b:3/3 c:3/3"),
    "a whole zone": (FULL.gone("a0", "a1", "a2"), "a:3/0 b:3/3 c:3/3"),
    "a whole zone, all moved": (
        FULL.gone("a0", "a1", "a2").with_pods(pod("b7"), pod("b8"), pod("c9")),
        "b:5/5 c:4/4",
    ),
    "scaled up": (FULL.scaled(11), "a:3/3 b:3/3 c:3/3 +2"),
    "scaled down": (FULL.scaled(6), "a:3/3 b:3/3 c:3/3"),
    "scaled down, one charged": (FULL.scaled(6).charged("a0"), "a:2/2 b:3/3 c:3/3"),
    "scaled down, one gone": (FULL.scaled(6).gone("a0"), "a:2/2 b:3/3 c:3/3"),
    "scaled down, charges beyond the surplus": (
        FULL.scaled(8).charged("a0", "b0"),
        "a:2/2 b:3/2 c:3/3",
    ),
    "without a controller": (spread("1/1/1", controller=NAKED), "a:1/1 b:1/1 c:1/1"),
}


@pytest.mark.parametrize(("cluster", "expected"), SHAPES.values(), ids=SHAPES)
def test_slots(cluster: Cluster, expected: str) -> None:
    assert shape(cluster) == expected


ONE_ZONE = budget(EXISTS, maxUnavailable="100%", maxDisruptedDomains=1)

DOUBTS: dict[str, tuple[Cluster, str, str]] = {
    "one gone": (FULL.gone("b0"), "a:3/3 b:3/2 c:3/3", "a=0 b=2 c=0"),
    "one from each of two": (FULL.gone("a0", "b0"), "a:3/2 b:3/2 c:3/3", "a=2 b=2 c=0"),
    "one of them came elsewhere": (
        FULL.gone("a0", "b0").with_pods(pod("c9")),
        "a:2/2 b:2/2 c:4/4 +1",
        "a=0 b=0 c=0",
    ),
    "one of them came elsewhere, and another of a zone is not ready": (
        FULL.gone("a0", "b0").with_pods(pod("c9")).unready("c0"),
        "a:2/2 b:2/2 c:4/3 +1",
        "a=0 b=0 c=2",
    ),
    "more than can have moved": (
        FULL.gone("a0", "a1", "b0").with_pods(pod("c9")),
        "a:2/1 b:2/2 c:4/4 +1",
        "a=0 b=0 c=0",
    ),
    "two seen leaving": (FULL.terminating("b0", "c0"), "a:3/3 b:3/2 c:3/2", "a=0 b=2 c=2"),
    "two seen leaving, one replaced": (
        FULL.terminating("b0", "c0").with_pods(pod("b9")),
        "a:3/3 b:3/3 c:2/2 +1",
        "a=0 b=0 c=0",
    ),
}


@pytest.mark.parametrize(("cluster", "expected", "allowed"), DOUBTS.values(), ids=DOUBTS)
def test_only_certainly_disrupted_domains_count_as_disrupted(cluster: Cluster, expected: str, allowed: str) -> None:
    """Else one pod that is missing would free every domain that may lack it, and all of them could be emptied at once."""
    assert shape(cluster, ONE_ZONE) == expected
    assert allowed_by_domain(cluster.pod_count(ONE_ZONE).numbers) == allowed


def test_uncertain_gap_stays_until_no_pod_is_missing() -> None:
    doubtful = FULL.gone("a0", "b0").with_pods(pod("c9"))
    later = replace(doubtful, before=doubtful)
    assert later.pod_count(ONE_ZONE).departures == doubtful.pod_count(ONE_ZONE).departures
    assert shape(later, ONE_ZONE) == shape(later.pending("n0"), ONE_ZONE) == "a:2/2 b:2/2 c:4/4 +1"
    assert shape(later.with_pods(pod("b9")), ONE_ZONE) == "a:2/2 b:3/3 c:4/4"


def test_departure_is_remembered_until_replaced() -> None:
    left = FULL.gone("b0")
    assert left.pod_count(ACROSS).departures == (Departure("deployment", BudgetDomainKey("b", covered=True), 1, 3),)
    assert left.with_pods(pod("c9")).pod_count(ACROSS).departures == ()


def test_new_leader_continues_from_the_status() -> None:
    left = FULL.gone("b0")
    owner_slots = owner_slots_of(left.pod_count(ACROSS).departures)
    pod_count = count(ACROSS, left.pods.values(), left.node_domains, left.workloads, {}, owner_slots)
    assert pod_count.numbers.tally.domains["b"] == DomainFill(3, 2)
    assert pod_count.numbers.tally.unplaced == 0


def test_pods_lost_without_a_leader_count_in_every_domain() -> None:
    before = FULL.gone("b0")
    after = before.lost("c0")
    pod_count = count(
        ACROSS,
        after.pods.values(),
        after.node_domains,
        after.workloads,
        {},
        owner_slots_of(before.pod_count(ACROSS).departures),
    )
    assert pod_count.numbers.tally.unplaced == 1
    assert {name: domain.allowed for name, domain in pod_count.numbers.domains.items()} == {"a": 0, "b": 0, "c": 0}


def test_owner_without_pods_still_wants_them() -> None:
    alone = spread("1/0/0", 1)
    both = Cluster({**alone.pods, "db-0": pod("db-0", "node-a", STATEFUL)}, workloads(1))
    assert shape(both.gone("db-0")) == "a:2/1"


def test_replicas_of_a_workload_count_once() -> None:
    rollout = FULL.with_pods(pod("a9", controller=NEW))
    tally = rollout.pod_count(ACROSS).numbers.tally
    assert (tally.expected, dict(tally.surplus)) == (9, {"deployment": 1})


def test_surplus_of_one_owner_does_not_help_another() -> None:
    """One has too many, the other too few: the gap stays a gap."""
    database = ControllerRef("StatefulSet", "db", "sts")
    pods = {**FULL.pods, **{name: pod(name, f"node-{name[-1]}", database) for name in ("db-a", "db-b")}}
    wants = {**workloads(8), "sts": Workload(Owner("StatefulSet", "db", "sts"), 3)}
    tally = Cluster(pods, wants).pod_count(ACROSS).numbers.tally
    assert (tally.expected, dict(tally.surplus), tally.unplaced) == (11, {"deployment": 1}, 1)


def test_uncovered_pods_are_only_counted() -> None:
    cluster = FULL.with_pods(pod("x0", "node-bare")).scaled(10)
    assert shape(cluster) == "a:3/3 b:3/3 c:3/3"
    assert cluster.pod_count(ACROSS).numbers.tally.uncovered == 1
    assert cluster.pod_count(BY_ZONE).numbers.tally.uncovered == 4


def test_pod_lost_outside_is_not_owed_inside() -> None:
    assert shape(FULL.gone("a0"), OUTSIDE) == "b:3/3 c:3/3"
    (departure,) = FULL.gone("a0").pod_count(OUTSIDE).departures
    assert departure.domain_key == BudgetDomainKey("a", covered=False)


def test_uncovered_domains_share_in_a_scale_down() -> None:
    numbers = FULL.scaled(6).pod_count(OUTSIDE).numbers
    assert {name: domain.target for name, domain in numbers.domains.items()} == {"b": 2, "c": 2}
    assert numbers.has_surplus(BudgetDomainKey("a", covered=False))


def test_single_domain_owes_all_missing_pods() -> None:
    assert shape(FULL.lost("b0"), OVERALL) == "all:9/8"
    assert shape(spread("3", 4)) == "a:4/3"


def test_unplaced_pods_may_disrupt_another_domain() -> None:
    one_domain = budget(EXISTS, maxUnavailable="100%", maxDisruptedDomains=1)
    assert FULL.lost("c0").allowed(one_domain) == {"a": 0, "b": 0, "c": 0}
    assert FULL.gone("c0").allowed(one_domain) == {"a": 0, "b": 0, "c": 2}
    assert spread("1", 3).allowed(one_domain) == {"a": 0}


def test_pod_on_a_deleted_node_keeps_its_slot_unhealthy() -> None:
    cluster = Cluster(
        FULL.pods, workloads(9), nodes={name: labels for name, labels in NODES.items() if name != "node-b"}
    )
    labelled = cluster.changed("b0", "b1", "b2", labels={ZONE: "b"})
    assert shape(labelled) == "a:3/3 b:3/0 c:3/3"


def test_relabelled_node_moves_its_pods() -> None:
    moved = Cluster(FULL.pods, workloads(9), nodes={**NODES, "node-b": {ZONE: "d"}}, before=FULL)
    assert shape(moved) == "a:3/3 c:3/3 d:3/3"


def test_count_does_not_depend_on_pod_order() -> None:
    cluster = FULL.unready("a1").charged("b0", "c0").terminating("c1").scaled(7)
    backwards = Cluster(dict(reversed(cluster.pods.items())), cluster.workloads, cluster.charges, before=cluster.before)
    assert cluster.pod_count(ACROSS) == backwards.pod_count(ACROSS)


def test_budget_without_pods_allows_nothing() -> None:
    empty = Cluster({}, {})
    assert empty.allowed(OVERALL) == {"all": 0}
    assert empty.allowed(ACROSS) == {}


def test_workload_scaled_to_zero_may_be_emptied() -> None:
    assert FULL.scaled(0).allowed(ACROSS) == {"a": 3, "b": 3, "c": 3}
    assert FULL.scaled(0).allowed(OVERALL) == {"all": 9}
    assert FULL.scaled(0).allowed(BY_ZONE) == {"b": 0, "c": 0}


def test_departures_are_limited() -> None:
    nodes = {f"n{number}": {ZONE: f"z{number}"} for number in range(2500)}
    pods = {f"p{number}": pod(f"p{number}", f"n{number}") for number in range(2500)}
    cluster = Cluster(pods, workloads(2500), nodes=nodes)
    assert len(cluster.gone(*list(pods)[:2400]).pod_count(ACROSS).departures) == 2000


def surging(own: int, *charges: str) -> Cluster:
    """Nine old pods, three in each zone, and two of the new ReplicaSet in zone a that are not ready."""
    cluster = spread("3/3/3").with_pods(pod("a7", controller=NEW, ready=False), pod("a8", controller=NEW, ready=False))
    desired = workloads(9)
    return replace(cluster, workloads=desired | {"rs-old": desired["rs-old"]._replace(own=own)}, charges=charges)


def test_surge_does_not_raise_the_allowance_of_a_zone() -> None:
    """The old ReplicaSet replaces what is evicted: only if it shrinks, a pod that is charged takes its slot along."""
    assert surging(9).allowed(ACROSS)["b"] == 1
    assert surging(9, "b0").allowed(ACROSS)["b"] == 0
    assert surging(8, "b0").allowed(ACROSS)["b"] == 1


@pytest.mark.parametrize("own", [8, 9])
def test_charge_in_a_surge_equals_a_new_count(own: int) -> None:
    entries = list(surging(own, "b0").ledger(ACROSS).values())
    stepped = charged(ACROSS, surging(own).status(ACROSS), entries, replaced=own == 9)
    assert stepped.numbers.domains == surging(own, "b0").status(ACROSS).numbers.domains
