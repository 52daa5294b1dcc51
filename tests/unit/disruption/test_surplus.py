"""Which of the pods that are charged are those too many: what their controllers make again is not."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.disruption.build import ACROSS, NEW, OLD, STATEFUL, World, pod, workloads
from unit.disruption.charge_store import WEB, Store, ask, fresh, outcomes, request
from unit.disruption.paper import feed
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


def stateful(replicas: int = 6, start: int = 0, pods: int = 9) -> World:
    names = {f"db-{start + index}": f"node-{'abc'[index % 3]}" for index in range(pods)}
    return stateful_set(
        World({name: pod(name, node, STATEFUL) for name, node in names.items()}, workloads(9)), replicas, start
    )


def stateful_set(world: World, replicas: int, start: int = 0) -> World:
    wanted = workloads(replicas)
    db = wanted["sts"]._replace(ordinals=range(start, start + replicas))
    return replace(world, workloads=wanted | {"sts": db})


def zone_a(world: World) -> DomainAllowance:
    return world.census(ACROSS).numbers.domains["a"]


def test_pods_that_come_back_are_not_those_too_many() -> None:
    """Both of a's last two pods are evicted: the third, which the scale-down takes, must stay until one is back."""
    world = stateful().charged("db-0", "db-3")
    assert zone_a(world) == DomainAllowance("a", slots=3, target=2, healthy=1, desired=1, allowed=0)


def test_a_pod_that_comes_back_is_owed_beside_those_too_many() -> None:
    """One is on its way back and the scale-down takes the third: the one that is left must stay."""
    for away in (
        stateful().charged("db-0").terminating("db-0"),
        stateful().charged("db-0").gone("db-0"),
        stateful().charged("db-0").gone("db-0").pending("db-0", controller=STATEFUL),
    ):
        assert zone_a(away) == DomainAllowance("a", slots=3, target=2, healthy=2, desired=1, allowed=1)
        promised = away.charged("db-6")
        assert zone_a(promised) == DomainAllowance("a", slots=2, target=2, healthy=1, desired=1, allowed=0)
        assert zone_a(promised.terminating("db-6")) == zone_a(promised)
        assert zone_a(replace(promised, before=promised.terminating("db-6")).lost("db-6")) == zone_a(promised)


def test_pods_that_are_given_up_are_owed_by_nobody() -> None:
    world = stateful().charged("db-6", "db-7", "db-8")
    for left in (world, world.terminating("db-6", "db-7"), world.gone("db-6", "db-7", "db-8"), world.lost("db-8")):
        assert left.allowed(ACROSS) == {"a": 1, "b": 1, "c": 1}
        assert left.census(ACROSS).numbers.tally.unplaced == 0


def test_ordinals_may_begin_anywhere() -> None:
    world = stateful(start=4)
    assert zone_a(world.charged("db-4", "db-7")).allowed == 0
    assert zone_a(world.charged("db-10")) == DomainAllowance("a", slots=2, target=2, healthy=2, desired=1, allowed=1)
    moved = stateful_set(stateful(6, pods=6), 3, start=3)
    assert dict(moved.census(ACROSS).numbers.tally.surplus) == {"sts": 3}


def test_what_a_stateful_set_gives_up_is_counted_where_no_budget_covers_it() -> None:
    bare = stateful().changed("db-8", node="node-bare").census(ACROSS).numbers.tally
    assert (bare.uncovered, dict(bare.surplus)) == (1, {"sts": 3})


# ReplicaSets: the old one of a Deployment has three pods in zone a, and wants two.


def rolling(own: int = 2) -> World:
    names = {**dict.fromkeys(("a0", "a1", "a2"), OLD)}
    names |= {f"{zone}{number}": NEW for zone in "bc" for number in range(4)}
    wanted = workloads(9)
    wanted |= {"rs-old": wanted["rs-old"]._replace(own=own), "rs-new": wanted["rs-new"]._replace(own=8)}
    return World({name: pod(name, controller=controller) for name, controller in names.items()}, wanted)


def sources(world: World) -> DisruptionInformers:
    """As watches tell of this world."""
    caches = Caches(NOBODY)
    known = DisruptionInformers(caches)
    feed(caches, PODS, [_written(each) for each in world.pods.values()])
    for resource, controllers in ((REPLICA_SETS, (OLD, NEW)), (STATEFUL_SETS, (STATEFUL,))):
        feed(caches, resource, [_controller(world, controller) for controller in controllers])
    return known


def _controller(world: World, controller: ControllerRef) -> dict[str, Any]:
    wanted = world.workloads[controller.uid]
    replicas = wanted.desired if wanted.own is None else wanted.own
    metadata = {"name": controller.name, "namespace": "shop", "uid": controller.uid, "resourceVersion": "1"}
    ordinals = {"ordinals": {"start": wanted.ordinals.start}} if wanted.ordinals else {}
    return {"metadata": metadata, "spec": {"replicas": replicas, **ordinals}}


def _written(known: PodFacts) -> dict[str, Any]:
    assert known.controller is not None
    owner = {"kind": known.controller.kind, "name": known.controller.name, "uid": known.controller.uid}
    metadata = {"name": known.name, "namespace": "shop", "uid": known.uid, "resourceVersion": "1"}
    conditions = [{"type": "Ready", "status": "True"}] if known.ready else []
    leaving = {"deletionTimestamp": "2026-11-16T06:00:00Z"} if known.terminating else {}
    return {
        "metadata": {**metadata, **leaving, "ownerReferences": [{**owner, "controller": True}]},
        "spec": {"nodeName": known.node},
        "status": {"phase": "Running", "conditions": conditions},
    }


async def test_pods_asked_for_together_share_what_their_replica_set_gives_up() -> None:
    world = rolling()
    kept, known = Store({"web": fresh(world)}), sources(world)
    asked = [
        request(world, name, replaced=lambda ledger, name=name: known.is_replaced(world.pods[name], ledger))
        for name in ("a0", "a1", "a2")
    ]
    assert outcomes(await ask(kept, *asked)) == [ChargeResult.CHARGED, ChargeResult.CHARGED, ChargeResult.DENIED]
    assert kept.stored["web"].numbers.domains == world.charged("a0", "a1").status(WEB).numbers.domains


SHRINKING: dict[str, World] = {
    "an old ReplicaSet that wants two": rolling(),
    "one that wants one": rolling(1),
    "one that wants all it has": rolling(3),
    "a StatefulSet": stateful(),
    "a StatefulSet that lacks one": stateful().terminating("db-4"),
    "a StatefulSet that begins later": stateful(start=7),
    "a StatefulSet that wants all it has": stateful(9),
}


@pytest.mark.parametrize("world", SHRINKING.values(), ids=SHRINKING.keys())
@given(data=st.data())
def test_each_step_of_a_webhook_is_the_leaders_count(world: World, data: st.DataObject) -> None:
    """Whatever is charged, in whatever order, the numbers are those that a leader would count."""
    known, stepped = sources(world), world.status(WEB)
    names = sorted(name for name, each in world.pods.items() if each.active)
    order: Sequence[str] = data.draw(st.lists(st.sampled_from(names), unique=True, max_size=6))
    for index, name in enumerate(order):
        entry = world.charged(*order[: index + 1]).ledger(WEB)[world.pods[name].uid]
        replaced = known.is_replaced(world.pods[name], stepped.ledger)
        stepped = charged(WEB, stepped, [entry], replaced=replaced)
        counted = world.charged(*order[: index + 1]).status(WEB)
        assert stepped.numbers.domains == counted.numbers.domains
        assert stepped.numbers.tally.surplus == counted.numbers.tally.surplus


@pytest.mark.parametrize("world", SHRINKING.values(), ids=SHRINKING.keys())
def test_a_plan_pays_what_the_leader_will_count(world: World) -> None:
    around = Around(
        atlas=world.atlas,
        workloads=world.workloads,
        selecting=lambda _pod: [WEB.key],
        replaced=sources(world).is_replaced,
    )
    purse = WaveBudget(around, {WEB.key: BudgetCase(WEB, world.status(WEB))})
    paid = [name for name, each in world.pods.items() if each.active and purse.pay(each).outcome is Paid.CHARGED]
    assert purse.cases[WEB.key].status.numbers.domains == world.charged(*paid).status(WEB).numbers.domains


def played(world: World) -> DrainView:
    return DrainView(pods=list(world.pods.values()), nodes=world.nodes, budgets=[ACROSS], workloads=world.workloads)


def test_a_plan_of_a_drain_knows_what_comes_back() -> None:
    """Of both, one pod may be away beside the one too many."""
    planned = [[leaving.pod.name for leaving in wave.pods] for wave in plan_drain(played(rolling()), ["node-a"]).waves]
    assert [len(wave) for wave in planned] == [2, 1]
    planned = [[leaving.pod.name for leaving in wave.pods] for wave in plan_drain(played(stateful()), ["node-a"]).waves]
    assert planned == [["db-0", "db-3"], ["db-6"]]


def test_only_its_own_stateful_set_says_which_pods_come_back() -> None:
    world = stateful()
    known = sources(world)
    assert [name for name, each in world.pods.items() if not known.is_replaced(each, {})] == ["db-6", "db-7", "db-8"]
    other = msgspec.structs.replace(world.pods["db-0"], controller=STATEFUL._replace(uid="one before it"))
    assert not known.is_replaced(other, {})
    assert not known.is_replaced(msgspec.structs.replace(other, controller=None), {})
