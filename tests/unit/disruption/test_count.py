"""Slots: where pods are, where they are missing, and what nobody knows."""

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
    World,
    budget,
    pod,
    spread,
    workloads,
)
from zonewise.disruption.decide.allowance import DomainFill
from zonewise.disruption.decide.budget import Budget, BudgetDomainKey
from zonewise.disruption.decide.count import Departure, count, places_of
from zonewise.disruption.decide.pods import ControllerRef, Owner, PodStage, Workload
from zonewise.disruption.decide.status import allowed_by_domain, charged
from zonewise.topology import ZONE

FULL = spread("3/3/3")
OUTSIDE = budget({"key": ZONE, "operator": "NotIn", "values": ["a"]}, EXISTS, maxUnavailable=1)


def fillings(world: World, limited: Budget = ACROSS) -> dict[str, DomainFill]:
    return dict(world.census(limited).numbers.tally.domains)


def shape(world: World, limited: Budget = ACROSS) -> str:
    """Slots and healthy pods of each domain, and how many are missing from anywhere."""
    tally = world.census(limited).numbers.tally
    domains = " ".join(f"{name}:{slots}/{healthy}" for name, (slots, healthy) in sorted(tally.domains.items()))
    return f"{domains} +{tally.unplaced}" if tally.unplaced else domains


SHAPES: dict[str, tuple[World, str]] = {
    "all there": (FULL, "a:3/3 b:3/3 c:3/3"),
    "not ready": (FULL.unready("b0"), "a:3/3 b:3/2 c:3/3"),
    "charged": (FULL.charged("b0"), "a:3/3 b:3/2 c:3/3"),
    "being evicted, whoever allowed it": (FULL.changed("b0", disruption_target=True), "a:3/3 b:3/2 c:3/3"),
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


@pytest.mark.parametrize(("world", "expected"), SHAPES.values(), ids=SHAPES)
def test_slots(world: World, expected: str) -> None:
    assert shape(world) == expected


ONE_ZONE = budget(EXISTS, maxUnavailable="100%", maxDisruptedDomains=1)

DOUBTS: dict[str, tuple[World, str, str]] = {
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


@pytest.mark.parametrize(("world", "expected", "allowed"), DOUBTS.values(), ids=DOUBTS)
def test_a_domain_passes_for_disrupted_only_if_it_is(world: World, expected: str, allowed: str) -> None:
    """Else one pod that is missing would free every domain that may lack it, and all of them could be emptied at once."""
    assert shape(world, ONE_ZONE) == expected
    assert allowed_by_domain(world.census(ONE_ZONE).numbers) == allowed


def test_a_doubt_stays_until_nothing_is_missing() -> None:
    doubtful = FULL.gone("a0", "b0").with_pods(pod("c9"))
    later = replace(doubtful, before=doubtful)
    assert later.census(ONE_ZONE).departures == doubtful.census(ONE_ZONE).departures
    assert shape(later, ONE_ZONE) == shape(later.pending("n0"), ONE_ZONE) == "a:2/2 b:2/2 c:4/4 +1"
    assert shape(later.with_pods(pod("b9")), ONE_ZONE) == "a:2/2 b:3/3 c:4/4"


def test_a_departure_is_remembered_until_it_is_made_good() -> None:
    left = FULL.gone("b0")
    assert left.census(ACROSS).departures == (Departure("deployment", BudgetDomainKey("b", covered=True), 1, 3),)
    assert left.with_pods(pod("c9")).census(ACROSS).departures == ()


def test_a_new_leader_counts_on_from_what_was_published() -> None:
    left = FULL.gone("b0")
    places = places_of(left.census(ACROSS).departures)
    census = count(ACROSS, left.pods.values(), left.atlas, left.workloads, {}, places)
    assert census.numbers.tally.domains["b"] == DomainFill(3, 2)
    assert census.numbers.tally.unplaced == 0


def test_what_left_while_nobody_led_counts_everywhere() -> None:
    before = FULL.gone("b0")
    after = before.lost("c0")
    census = count(
        ACROSS, after.pods.values(), after.atlas, after.workloads, {}, places_of(before.census(ACROSS).departures)
    )
    assert census.numbers.tally.unplaced == 1
    assert {name: domain.allowed for name, domain in census.numbers.domains.items()} == {"a": 0, "b": 0, "c": 0}


def test_an_owner_whose_pods_have_all_left_wants_them_back() -> None:
    alone = spread("1/0/0", 1)
    both = World({**alone.pods, "db-0": pod("db-0", "node-a", STATEFUL)}, workloads(1))
    assert shape(both.gone("db-0")) == "a:2/1"


def test_a_workload_of_every_controller_is_wanted_once() -> None:
    rollout = FULL.with_pods(pod("a9", controller=NEW))
    tally = rollout.census(ACROSS).numbers.tally
    assert (tally.expected, dict(tally.surplus)) == (9, {"deployment": 1})


def test_owners_do_not_lend_each_other_pods() -> None:
    """One has too many, the other too few: the gap stays a gap."""
    database = ControllerRef("StatefulSet", "db", "sts")
    pods = {**FULL.pods, **{name: pod(name, f"node-{name[-1]}", database) for name in ("db-a", "db-b")}}
    wants = {**workloads(8), "sts": Workload(Owner("StatefulSet", "db", "sts"), 3)}
    tally = World(pods, wants).census(ACROSS).numbers.tally
    assert (tally.expected, dict(tally.surplus), tally.unplaced) == (11, {"deployment": 1}, 1)


def test_pods_the_budget_does_not_cover_are_only_counted() -> None:
    world = FULL.with_pods(pod("x0", "node-bare")).scaled(10)
    assert shape(world) == "a:3/3 b:3/3 c:3/3"
    assert world.census(ACROSS).numbers.tally.uncovered == 1
    assert world.census(BY_ZONE).numbers.tally.uncovered == 4


def test_what_left_an_uncovered_place_is_not_owed_by_covered_ones() -> None:
    assert shape(FULL.gone("a0"), OUTSIDE) == "b:3/3 c:3/3"
    (departure,) = FULL.gone("a0").census(OUTSIDE).departures
    assert departure.place == BudgetDomainKey("a", covered=False)


def test_uncovered_places_give_their_share_in_a_scale_down() -> None:
    numbers = FULL.scaled(6).census(OUTSIDE).numbers
    assert {name: domain.target for name, domain in numbers.domains.items()} == {"b": 2, "c": 2}
    assert numbers.gives(BudgetDomainKey("a", covered=False))


def test_one_domain_owes_all_that_is_missing() -> None:
    assert shape(FULL.lost("b0"), OVERALL) == "all:9/8"
    assert shape(spread("3", 4)) == "a:4/3"


def test_what_is_missing_from_nobody_knows_where_may_be_missing_from_another_domain() -> None:
    one_domain = budget(EXISTS, maxUnavailable="100%", maxDisruptedDomains=1)
    assert FULL.lost("c0").allowed(one_domain) == {"a": 0, "b": 0, "c": 0}
    assert FULL.gone("c0").allowed(one_domain) == {"a": 0, "b": 0, "c": 2}
    assert spread("1", 3).allowed(one_domain) == {"a": 0}


def test_a_pod_on_a_vanished_node_keeps_its_slot_and_serves_nobody() -> None:
    world = World(FULL.pods, workloads(9), nodes={name: labels for name, labels in NODES.items() if name != "node-b"})
    labelled = world.changed("b0", "b1", "b2", labels={ZONE: "b"})
    assert shape(labelled) == "a:3/3 b:3/0 c:3/3"


def test_a_relabelled_node_takes_its_pods_along() -> None:
    moved = World(FULL.pods, workloads(9), nodes={**NODES, "node-b": {ZONE: "d"}}, before=FULL)
    assert shape(moved) == "a:3/3 c:3/3 d:3/3"


def test_the_order_of_pods_means_nothing() -> None:
    world = FULL.unready("a1").charged("b0", "c0").terminating("c1").scaled(7)
    backwards = World(dict(reversed(world.pods.items())), world.workloads, world.charges, before=world.before)
    assert world.census(ACROSS) == backwards.census(ACROSS)


def test_a_budget_that_finds_no_pods_has_nothing_to_give() -> None:
    empty = World({}, {})
    assert empty.allowed(OVERALL) == {"all": 0}
    assert empty.allowed(ACROSS) == {}


def test_a_scaled_down_workload_may_be_emptied() -> None:
    assert FULL.scaled(0).allowed(ACROSS) == {"a": 3, "b": 3, "c": 3}
    assert FULL.scaled(0).allowed(OVERALL) == {"all": 9}
    assert FULL.scaled(0).allowed(BY_ZONE) == {"b": 0, "c": 0}


def test_departures_do_not_outgrow_the_document() -> None:
    nodes = {f"n{number}": {ZONE: f"z{number}"} for number in range(2500)}
    pods = {f"p{number}": pod(f"p{number}", f"n{number}") for number in range(2500)}
    world = World(pods, workloads(2500), nodes=nodes)
    assert len(world.gone(*list(pods)[:2400]).census(ACROSS).departures) == 2000


def surging(own: int, *charges: str) -> World:
    """Nine old pods, three in each zone, and two of the new ReplicaSet in zone a that are not ready."""
    world = spread("3/3/3").with_pods(pod("a7", controller=NEW, ready=False), pod("a8", controller=NEW, ready=False))
    wanted = workloads(9)
    return replace(world, workloads=wanted | {"rs-old": wanted["rs-old"]._replace(own=own)}, charges=charges)


def test_a_surge_lends_no_zone_what_it_has_too_many() -> None:
    """The old ReplicaSet replaces what is evicted: only if it shrinks, a pod that is charged takes its slot along."""
    assert surging(9).allowed(ACROSS)["b"] == 1
    assert surging(9, "b0").allowed(ACROSS)["b"] == 0
    assert surging(8, "b0").allowed(ACROSS)["b"] == 1


@pytest.mark.parametrize("own", [8, 9])
def test_a_webhooks_step_in_a_surge_is_the_leaders_count(own: int) -> None:
    entries = list(surging(own, "b0").ledger(ACROSS).values())
    stepped = charged(ACROSS, surging(own).status(ACROSS), entries, replaced=own == 9)
    assert stepped.numbers.domains == surging(own, "b0").status(ACROSS).numbers.domains
