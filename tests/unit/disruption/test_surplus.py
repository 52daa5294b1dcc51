"""Charges and surplus: a pod that its controller recreates uses up no surplus."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.disruption.build import ACROSS, NEW, OLD, STATEFUL, Cluster, pod, workloads
from unit.disruption.fake_leader import feed
from unit.disruption.fake_store import WEB, FakeStore, ask, fresh, outcomes, request
from zonewise.disruption.decide.allowance import DomainAllowance
from zonewise.disruption.decide.charge import ChargeResult
from zonewise.disruption.decide.drain import DrainView, plan_drain
from zonewise.disruption.decide.pods import ControllerRef, PodFacts
from zonewise.disruption.decide.status import charged
from zonewise.disruption.decide.verdict import BudgetCase
from zonewise.disruption.decide.wave import ChargeOutcome as Paid
from zonewise.disruption.decide.wave_budget import ClusterView as Around
from zonewise.disruption.decide.wave_budget import WaveBudget
from zonewise.disruption.watch.informers import DisruptionInformers
from zonewise.kube.watch.informers import Caches
from zonewise.objects import PODS
from zonewise.objects.apps import REPLICA_SETS, STATEFUL_SETS

NOBODY: Any = None

# StatefulSets: nine pods db-0 to db-8, of which zone a has 0, 3 and 6, and six are wanted.


def stateful(replicas: int = 6, start: int = 0, pods: int = 9) -> Cluster:
    names = {f"db-{start + index}": f"node-{'abc'[index % 3]}" for index in range(pods)}
    return stateful_set(
        Cluster({name: pod(name, node, STATEFUL) for name, node in names.items()}, workloads(9)), replicas, start
    )


def stateful_set(cluster: Cluster, replicas: int, start: int = 0) -> Cluster:
    desired = workloads(replicas)
    db = desired["sts"]._replace(ordinals=range(start, start + replicas))
    return replace(cluster, workloads=desired | {"sts": db})


def zone_a(cluster: Cluster) -> DomainAllowance:
    return cluster.pod_count(ACROSS).numbers.domains["a"]


def test_recreated_pods_use_up_no_surplus() -> None:
    """Both of a's last two pods are evicted: the third, which the scale-down takes, must stay until one is back."""
    cluster = stateful().charged("db-0", "db-3")
    assert zone_a(cluster) == DomainAllowance("a", slots=3, target=2, healthy=1, desired=1, allowed=0)


def test_recreated_pod_is_owed_beside_a_surplus() -> None:
    """One is on its way back and the scale-down takes the third: the one that is left must stay."""
    for away in (
        stateful().charged("db-0").terminating("db-0"),
        stateful().charged("db-0").gone("db-0"),
        stateful().charged("db-0").gone("db-0").pending("db-0", controller=STATEFUL),
    ):
        assert zone_a(away) == DomainAllowance("a", slots=3, target=2, healthy=2, desired=1, allowed=1)
        charged = away.charged("db-6")
        assert zone_a(charged) == DomainAllowance("a", slots=2, target=2, healthy=1, desired=1, allowed=0)
        assert zone_a(charged.terminating("db-6")) == zone_a(charged)
        assert zone_a(replace(charged, before=charged.terminating("db-6")).lost("db-6")) == zone_a(charged)


def test_given_up_pods_are_not_owed() -> None:
    cluster = stateful().charged("db-6", "db-7", "db-8")
    for left in (
        cluster,
        cluster.terminating("db-6", "db-7"),
        cluster.gone("db-6", "db-7", "db-8"),
        cluster.lost("db-8"),
    ):
        assert left.allowed(ACROSS) == {"a": 1, "b": 1, "c": 1}
        assert left.pod_count(ACROSS).numbers.tally.unplaced == 0


def test_surplus_with_ordinals_above_zero() -> None:
    cluster = stateful(start=4)
    assert zone_a(cluster.charged("db-4", "db-7")).allowed == 0
    assert zone_a(cluster.charged("db-10")) == DomainAllowance("a", slots=2, target=2, healthy=2, desired=1, allowed=1)
    moved = stateful_set(stateful(6, pods=6), 3, start=3)
    assert dict(moved.pod_count(ACROSS).numbers.tally.surplus) == {"sts": 3}


def test_uncovered_surplus_of_a_stateful_set_is_counted() -> None:
    bare = stateful().changed("db-8", node="node-bare").pod_count(ACROSS).numbers.tally
    assert (bare.uncovered, dict(bare.surplus)) == (1, {"sts": 3})


# ReplicaSets: the old one of a Deployment has three pods in zone a, and wants two.


def rolling(own: int = 2) -> Cluster:
    names = {**dict.fromkeys(("a0", "a1", "a2"), OLD)}
    names |= {f"{zone}{number}": NEW for zone in "bc" for number in range(4)}
    desired = workloads(9)
    desired |= {"rs-old": desired["rs-old"]._replace(own=own), "rs-new": desired["rs-new"]._replace(own=8)}
    return Cluster({name: pod(name, controller=controller) for name, controller in names.items()}, desired)


def informers(cluster: Cluster) -> DisruptionInformers:
    """As watches tell of this world."""
    caches = Caches(NOBODY)
    lookup = DisruptionInformers(caches)
    feed(caches, PODS, [_written(member) for member in cluster.pods.values()])
    for resource, controllers in ((REPLICA_SETS, (OLD, NEW)), (STATEFUL_SETS, (STATEFUL,))):
        feed(caches, resource, [_controller(cluster, controller) for controller in controllers])
    return lookup


def _controller(cluster: Cluster, controller: ControllerRef) -> dict[str, Any]:
    desired = cluster.workloads[controller.uid]
    replicas = desired.desired if desired.own is None else desired.own
    metadata = {"name": controller.name, "namespace": "shop", "uid": controller.uid, "resourceVersion": "1"}
    ordinals = {"ordinals": {"start": desired.ordinals.start}} if desired.ordinals else {}
    return {"metadata": metadata, "spec": {"replicas": replicas, **ordinals}}


def _written(lookup: PodFacts) -> dict[str, Any]:
    assert lookup.controller is not None
    owner = {"kind": lookup.controller.kind, "name": lookup.controller.name, "uid": lookup.controller.uid}
    metadata = {"name": lookup.name, "namespace": "shop", "uid": lookup.uid, "resourceVersion": "1"}
    conditions = [{"type": "Ready", "status": "True"}] if lookup.ready else []
    leaving = {"deletionTimestamp": "2026-11-16T06:00:00Z"} if lookup.terminating else {}
    return {
        "metadata": {**metadata, **leaving, "ownerReferences": [{**owner, "controller": True}]},
        "spec": {"nodeName": lookup.node},
        "status": {"phase": "Running", "conditions": conditions},
    }


async def test_concurrent_requests_share_the_surplus_of_a_replica_set() -> None:
    cluster = rolling()
    store, lookup = FakeStore({"web": fresh(cluster)}), informers(cluster)
    requests = [
        request(cluster, name, replaced=lambda ledger, name=name: lookup.is_replaced(cluster.pods[name], ledger))
        for name in ("a0", "a1", "a2")
    ]
    assert outcomes(await ask(store, *requests)) == [ChargeResult.CHARGED, ChargeResult.CHARGED, ChargeResult.DENIED]
    assert store.stored["web"].numbers.domains == cluster.charged("a0", "a1").status(WEB).numbers.domains


SHRINKING: dict[str, Cluster] = {
    "an old ReplicaSet that wants two": rolling(),
    "one that wants one": rolling(1),
    "one that wants all it has": rolling(3),
    "a StatefulSet": stateful(),
    "a StatefulSet that lacks one": stateful().terminating("db-4"),
    "a StatefulSet that begins later": stateful(start=7),
    "a StatefulSet that wants all it has": stateful(9),
}


@pytest.mark.parametrize("cluster", SHRINKING.values(), ids=SHRINKING.keys())
@given(data=st.data())
def test_each_charge_equals_a_new_count(cluster: Cluster, data: st.DataObject) -> None:
    """Whatever is charged, in whatever order, the numbers are those that a leader would count."""
    lookup, stepped = informers(cluster), cluster.status(WEB)
    names = sorted(name for name, member in cluster.pods.items() if member.active)
    order: Sequence[str] = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=6))
    for index, name in enumerate(order):
        entry = cluster.charged(*order[: index + 1]).ledger(WEB)[cluster.pods[name].uid]
        replaced = lookup.is_replaced(cluster.pods[name], stepped.ledger)
        stepped = charged(WEB, stepped, [entry], replaced=replaced)
        counted = cluster.charged(*order[: index + 1]).status(WEB)
        assert stepped.numbers.domains == counted.numbers.domains
        assert stepped.numbers.tally.surplus == counted.numbers.tally.surplus


@pytest.mark.parametrize("cluster", SHRINKING.values(), ids=SHRINKING.keys())
def test_each_planned_charge_equals_a_new_count(cluster: Cluster) -> None:
    around = Around(
        node_domains=cluster.node_domains,
        workloads=cluster.workloads,
        selecting=lambda _pod: [WEB.key],
        replaced=informers(cluster).is_replaced,
    )
    wave_budget = WaveBudget(around, {WEB.key: BudgetCase(WEB, cluster.status(WEB))})
    paid = [
        name
        for name, member in cluster.pods.items()
        if member.active and wave_budget.charge(member).outcome is Paid.CHARGED
    ]
    assert wave_budget.cases[WEB.key].status.numbers.domains == cluster.charged(*paid).status(WEB).numbers.domains


def played(cluster: Cluster) -> DrainView:
    return DrainView(
        pods=list(cluster.pods.values()), nodes=cluster.nodes, budgets=[ACROSS], workloads=cluster.workloads
    )


def test_drain_plan_knows_which_pods_come_back() -> None:
    """Of both, one pod may be away beside the one too many."""
    planned = [[leaving.pod.name for leaving in wave.pods] for wave in plan_drain(played(rolling()), ["node-a"]).waves]
    assert [len(wave) for wave in planned] == [2, 1]
    planned = [[leaving.pod.name for leaving in wave.pods] for wave in plan_drain(played(stateful()), ["node-a"]).waves]
    assert planned == [["db-0", "db-3"], ["db-6"]]


def test_only_the_owning_stateful_set_recreates_pods() -> None:
    cluster = stateful()
    lookup = informers(cluster)
    assert [name for name, member in cluster.pods.items() if not lookup.is_replaced(member, {})] == [
        "db-6",
        "db-7",
        "db-8",
    ]
    other = msgspec.structs.replace(cluster.pods["db-0"], controller=STATEFUL._replace(uid="one before it"))
    assert not lookup.is_replaced(other, {})
    assert not lookup.is_replaced(msgspec.structs.replace(other, controller=None), {})
