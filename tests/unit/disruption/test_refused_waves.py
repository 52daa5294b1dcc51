"""Updates that another webhook refuses for hours, on a virtual clock: few calls, and never one pod twice in a row.

The controller and the publisher are the real ones. The API server is on paper, because no other could be waited for: it
keeps budgets, and refuses every eviction.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from unit.disruption.fake_leader import BUDGET, DB, FakeLeader, budget, feed, pod
from zonewise.disruption.controller.rollout import _Progress
from zonewise.disruption.decide.ledger import OWN_OPEN_SECONDS, REQUEST_SECONDS, ChargeSource, LedgerEntry
from zonewise.disruption.decide.pods import PodFacts
from zonewise.disruption.watch.informers import WorkloadKey
from zonewise.disruption.webhook.registration import EVICTION_WEBHOOK
from zonewise.kube.wire.errors import BadRequest, ServerError, TooManyRequests
from zonewise.objects import NODES, PODS, Key, Resource
from zonewise.objects.apps import DAEMON_SETS, DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS

HOUR = 3600.0
WEB = WorkloadKey("ReplicaSet", Key("shop", "web"))


REFUSALS = {
    "a budget": TooManyRequests("not now", status=429),
    "a webhook": BadRequest("the ring is not whole", status=400),
    "a webhook that is away": ServerError("failed calling webhook", status=500),
}


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize(
    ("zones", "unready", "most"), [("a", (), 1), ("abc", (), 1), ("a", (5,), 3), ("abc", (4, 5), 1), ("ab", (5,), 2)]
)
async def test_calls_during_eight_hours_of_refusals(
    refusal: str, zones: str, unready: tuple[int, ...], most: int
) -> None:
    now = 1000.0
    leader = FakeLeader(zones, lambda: now, unready=unready, budgets=[budget(most=most)])
    server = leader.server
    server.answer = lambda _name: REFUSALS[refusal]

    await leader.status_writer._reconcile(BUDGET)
    server.calls.clear()
    others_may_go = 0
    while now < 1000.0 + 8 * HOUR:
        await leader.rollouts._reconcile(DB)
        await leader.status_writer._reconcile(BUDGET)
        if len(leader.charged()) == most * len(zones):  # for pods that may go after all: no others may
            others_may_go = len(server.tried) - 1
        now += 5.0 if now < 1000.0 + HOUR / 6 else 150.0  # far more often than anything would wake them

    assert len(server.tried) > 8, "it still asks"
    assert others_may_go < 3
    assert all(one != other for one, other in pairwise(server.tried[others_may_go:]))
    assert {int(name[-1]) % len(zones) for name in server.tried[-len(zones) :]} == set(range(len(zones))), "everywhere"
    busiest = max(sum(start <= call < start + HOUR for call in server.calls) for start in server.calls)
    assert busiest <= 7, server.calls[:30]  # one of them closes a charge


async def test_dead_webhook_and_drains_do_not_block_an_update() -> None:
    """The death makes it ask before it reserves; that a drain took the place meanwhile is answered by our own budgets."""
    now, ours = 1000.0, f'admission webhook "{EVICTION_WEBHOOK}" denied the request: one is away'
    leader = FakeLeader("abc", lambda: now)
    answers = [REFUSALS["a webhook that is away"], *[TooManyRequests(ours, status=429)] * 4]
    leader.server.answer = lambda _name: answers.pop(0)
    await leader.status_writer._reconcile(BUDGET)
    while answers:
        await leader.rollouts._reconcile(DB)
        now += 5.0
        assert now < 1060.0, "blocked"


async def test_reservations_of_untried_pods_are_given_back() -> None:
    now = 1000.0
    leader = FakeLeader("a", lambda: now, budgets=[budget(most=3)])
    await leader.status_writer._reconcile(BUDGET)
    await leader.rollouts._reconcile(DB)
    assert leader.server.tried == ["db-5"]
    assert leader.charged() == {"uid-5", "uid-4", "uid-3"}
    await leader.rollouts._reconcile(DB)  # its domain is closed now: it waits, and holds nothing back
    now += 5.0
    await leader.status_writer._reconcile(BUDGET)
    assert leader.charged() == set()


@pytest.mark.parametrize(("refusal", "stays"), [("a budget", False), ("a webhook that is away", True)])
async def test_charge_expires_if_the_eviction_result_is_unknown(refusal: str, stays: bool) -> None:
    now = 1000.0
    leader = FakeLeader("a", lambda: now)
    leader.server.answer = lambda _name: REFUSALS[refusal]
    await leader.status_writer._reconcile(BUDGET)
    await leader.rollouts._reconcile(DB)
    for seconds, charged in ((5.0, stays), (OWN_OPEN_SECONDS, stays), (5.0, stays), (REQUEST_SECONDS + 10.0, False)):
        await leader.rollouts._reconcile(DB)
        await leader.status_writer._reconcile(BUDGET)
        now += seconds
        await leader.status_writer._reconcile(BUDGET)
        assert leader.charged() == ({"uid-5"} if charged else set())


@pytest.mark.parametrize(
    ("source", "stays"),
    [(ChargeSource.ROLLOUT, False), (ChargeSource.EVICTION, True)],
    ids=["reserved", "another client's"],
)
async def test_give_back_removes_only_reservations_of_rollouts(source: ChargeSource, stays: bool) -> None:
    """Our eviction was refused; another client's eviction of the same pod may be in progress."""
    now = 1000.0
    leader = FakeLeader("a", lambda: now)
    await leader.status_writer._reconcile(BUDGET)
    entry = LedgerEntry(uid="uid-0", name="db-0", domain="a", owner="db", time="then", source=source)
    await leader.status_writer.reserve({BUDGET: [entry]})
    leader.status_writer.give_back(["uid-0"])
    now += 5.0
    await leader.status_writer._reconcile(BUDGET)
    assert ("uid-0" in leader.charged()) is stays


@pytest.mark.parametrize("source", [ChargeSource.ROLLOUT, ChargeSource.SCALE_DOWN])
@pytest.mark.parametrize("relied_on", [False, True])
async def test_refusal_by_a_second_budget_refunds_the_first(source: ChargeSource, relied_on: bool) -> None:
    """A webhook took its last place meanwhile. What another charged to the first is not ours to give back."""
    now, first = 1000.0, Key("shop", "cache")
    leader = FakeLeader("a", lambda: now, budgets=[budget("cache"), budget("db")])
    await leader.status_writer._reconcile(first)
    await leader.status_writer._reconcile(BUDGET)
    taken = LedgerEntry(uid="uid-0", name="db-0", domain="a", owner="db", time="then", source=ChargeSource.EVICTION)
    desired = LedgerEntry(uid="uid-5", name="db-5", domain="a", owner="db", time="now", source=source)
    await leader.status_writer.reserve({BUDGET: [taken]})
    if relied_on:
        await leader.status_writer.reserve({first: [replace(desired, time="then", source=ChargeSource.EVICTION)]})
    assert await leader.status_writer.reserve({first: [desired], BUDGET: [desired]}) == set()
    assert leader.charged(first) == {"uid-5"}
    now += 5.0
    await leader.status_writer._reconcile(first)
    assert leader.charged(first) == ({"uid-5"} if relied_on else set())
    assert leader.charged() == {"uid-0"}


async def test_removed_grant_backs_off() -> None:
    """The pod's controller can't delete without it. Others are tried, and ever more rarely."""
    now = 1000.0
    leader = FakeLeader("abc", lambda: now)
    leader.shrink(3, "a0", "a1", "b0", "b1", "c0", "c1")
    await leader.status_writer._reconcile(BUDGET)
    given: list[float] = []
    while now < 1000.0 + 8 * HOUR:
        before = len(leader.server.tried)
        await leader.scale_down._reconcile(WEB)
        given += [now] * (len(leader.server.tried) - before)
        leader.deliver_pods()
        await leader.status_writer._reconcile(BUDGET)
        now += 1.0 if now < 1000.0 + HOUR / 6 else 150.0

    assert len(given) > 8, "it still tries"
    assert {name[0] for name in leader.server.tried} == set("abc")
    busiest = max(sum(start <= time < start + HOUR for time in given) for start in given if start > given[0] + HOUR)
    assert busiest <= 6, given[:30]


@pytest.mark.parametrize("source", [ChargeSource.EVICTION, ChargeSource.SCALE_DOWN])
async def test_grant_renews_the_charge_of_another_client(source: ChargeSource) -> None:
    """A webhook takes back what it charged at that very time, when another budget refuses. Our own needs no write."""
    leader = FakeLeader("abc", lambda: 1000.0)
    leader.shrink(3, "a0", "a1", "b0", "b1", "c0", "c1")
    await leader.status_writer._reconcile(BUDGET)
    before = LedgerEntry(uid="uid-b1", name="b1", domain="b", owner="web", time="then", source=source)
    await leader.status_writer.reserve({BUDGET: [before]})
    await leader.scale_down._reconcile(WEB)
    assert "b1" in leader.server.tried
    version = leader.store.newest(BUDGET)
    assert version is not None
    after = version.status.ledger["uid-b1"]
    assert after.source is source
    assert (after.time == "then") is (source is ChargeSource.SCALE_DOWN)


async def test_grant_missing_in_the_cache_is_waited_for() -> None:
    now = 1000.0
    leader = FakeLeader("abc", lambda: now)
    leader.shrink(3, "a0", "a1", "b0", "b1", "c0", "c1")
    await leader.status_writer._reconcile(BUDGET)
    await leader.scale_down._reconcile(WEB)
    granted = list(leader.server.tried)
    assert granted
    assert await leader.scale_down._reconcile(WEB)
    assert leader.server.tried == granted


@pytest.mark.parametrize("kind", [PODS, NODES, DEPLOYMENTS, STATEFUL_SETS, REPLICA_SETS], ids=lambda kind: kind.plural)
async def test_uncountable_budget_is_retried(kind: Resource[Any]) -> None:
    """While a watch fails nothing is charged, and no event tells when it works again."""
    leader = FakeLeader("a", lambda: 1000.0)
    await leader.status_writer._reconcile(BUDGET)
    leader.caches.of(kind).problem = "no answer"
    assert leader.status_writer.fresh(BUDGET) is None
    assert await leader.rollouts._reconcile(DB)
    assert not leader.server.tried


@pytest.mark.parametrize(("apps", "guarded"), [(("other", "db"), True), (("other", "other"), False), ((), False)])
def test_one_selected_pod_makes_a_guarded_workload(apps: tuple[str, ...], guarded: bool) -> None:
    """Labels may differ between revisions, and the oldest pod may be the one without."""
    leader = FakeLeader("a", lambda: 1000.0)
    pods = [msgspec.convert(pod(number, "a", app), PODS.view) for number, app in enumerate(apps)]
    assert leader.rollouts._planner.is_guarded(map(PodFacts.of, pods)) is guarded


async def test_update_waiting_for_a_surge_is_not_finished() -> None:
    """All nodes have a ready pod, and none of the old ones may go yet."""
    leader = FakeLeader("abc", lambda: 1000.0)
    await leader.status_writer._reconcile(BUDGET)
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    body = {
        "metadata": {"name": "db", "namespace": "shop", "uid": "db", "generation": 1, "resourceVersion": "1"},
        "spec": {"updateStrategy": strategy},
        "status": {"observedGeneration": 1, "desiredNumberScheduled": 3},
    }
    feed(leader.caches, DAEMON_SETS, [body])
    key = WorkloadKey("DaemonSet", Key("shop", "db"))
    progress = leader.rollouts._progress[key] = _Progress("db", waves=1, generation=1, revision="new")
    leader.server.tried.clear()
    await leader.rollouts._reconcile(key)
    assert leader.rollouts._progress[key] is progress
    assert not leader.server.tried
