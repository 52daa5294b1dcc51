"""An update that somebody else refuses, through a night that takes a second: hardly a call, and never one pod twice in a row.

The controller and the publisher are the real ones. The API server is on paper, because no other could be waited for: it
keeps budgets, and refuses every eviction.
"""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from unit.disruption.paper import BUDGET, DB, Paper, budget, feed, pod
from zonewise.disruption.controller.rollout import _Progress
from zonewise.disruption.decide.ledger import UNCONFIRMED_SECONDS, ChargeSource, LedgerEntry
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
async def test_a_night_of_refusals(refusal: str, zones: str, unready: tuple[int, ...], most: int) -> None:
    now = 1000.0
    paper = Paper(zones, lambda: now, unready=unready, budgets=[budget(most=most)])
    server = paper.server
    server.answer = lambda _name: REFUSALS[refusal]

    await paper.publisher._reconcile(BUDGET)
    server.calls.clear()
    others_may_go = 0
    while now < 1000.0 + 8 * HOUR:
        await paper.rollouts._reconcile(DB)
        await paper.publisher._reconcile(BUDGET)
        if len(paper.charged()) == most * len(zones):  # for pods that may go after all: no others may
            others_may_go = len(server.tried) - 1
        now += 5.0 if now < 1000.0 + HOUR / 6 else 150.0  # far more often than anything would wake them

    assert len(server.tried) > 8, "it still asks"
    assert others_may_go < 3
    assert all(one != other for one, other in pairwise(server.tried[others_may_go:]))
    assert {int(name[-1]) % len(zones) for name in server.tried[-len(zones) :]} == set(range(len(zones))), "everywhere"
    busiest = max(sum(start <= call < start + HOUR for call in server.calls) for start in server.calls)
    assert busiest <= 6, server.calls[:30]


async def test_a_webhook_that_died_and_drains_beside_it_block_no_update() -> None:
    """The death makes it ask before it reserves; that a drain took the place meanwhile is answered by our own budgets."""
    now, ours = 1000.0, f'admission webhook "{EVICTION_WEBHOOK}" denied the request: one is away'
    paper = Paper("abc", lambda: now)
    answers = [REFUSALS["a webhook that is away"], *[TooManyRequests(ours, status=429)] * 4]
    paper.server.answer = lambda _name: answers.pop(0)
    await paper.publisher._reconcile(BUDGET)
    while answers:
        await paper.rollouts._reconcile(DB)
        now += 5.0
        assert now < 1060.0, "blocked"


async def test_what_was_reserved_beside_a_refused_pod_and_not_tried_is_given_back() -> None:
    now = 1000.0
    paper = Paper("a", lambda: now, budgets=[budget(most=3)])
    await paper.publisher._reconcile(BUDGET)
    await paper.rollouts._reconcile(DB)
    assert paper.server.tried == ["db-5"]
    assert paper.charged() == {"uid-5", "uid-4", "uid-3"}
    await paper.rollouts._reconcile(DB)  # its domain is closed now: it waits, and holds nothing back
    now += 5.0
    await paper.publisher._reconcile(BUDGET)
    assert paper.charged() == set()


@pytest.mark.parametrize(("refusal", "stays"), [("a budget", False), ("a webhook that is away", True)])
async def test_a_charge_stays_until_it_runs_out_where_nobody_knows_whether_the_pod_goes(
    refusal: str, stays: bool
) -> None:
    now = 1000.0
    paper = Paper("a", lambda: now)
    paper.server.answer = lambda _name: REFUSALS[refusal]
    await paper.publisher._reconcile(BUDGET)
    await paper.rollouts._reconcile(DB)
    for seconds, charged in ((5.0, stays), (UNCONFIRMED_SECONDS, False)):
        await paper.rollouts._reconcile(DB)
        await paper.publisher._reconcile(BUDGET)
        now += seconds
        await paper.publisher._reconcile(BUDGET)
        assert paper.charged() == ({"uid-5"} if charged else set())


@pytest.mark.parametrize(
    ("source", "stays"),
    [(ChargeSource.ROLLOUT, False), (ChargeSource.EVICTION, True)],
    ids=["reserved", "somebody else's"],
)
async def test_only_what_was_reserved_is_given_back(source: ChargeSource, stays: bool) -> None:
    """Our eviction was refused; somebody else's of the same pod may be on its way."""
    now = 1000.0
    paper = Paper("a", lambda: now)
    await paper.publisher._reconcile(BUDGET)
    entry = LedgerEntry(uid="uid-0", name="db-0", domain="a", owner="db", time="then", source=source)
    await paper.publisher.reserve({BUDGET: [entry]})
    paper.publisher.give_back(["uid-0"])
    now += 5.0
    await paper.publisher._reconcile(BUDGET)
    assert ("uid-0" in paper.charged()) is stays


@pytest.mark.parametrize("source", [ChargeSource.ROLLOUT, ChargeSource.SCALE_DOWN])
@pytest.mark.parametrize("relied_on", [False, True])
async def test_what_a_second_budget_refuses_is_given_back_to_the_first(source: ChargeSource, relied_on: bool) -> None:
    """A webhook took its last place meanwhile. What another charged to the first is not ours to give back."""
    now, first = 1000.0, Key("shop", "cache")
    paper = Paper("a", lambda: now, budgets=[budget("cache"), budget("db")])
    await paper.publisher._reconcile(first)
    await paper.publisher._reconcile(BUDGET)
    taken = LedgerEntry(uid="uid-0", name="db-0", domain="a", owner="db", time="then", source=ChargeSource.EVICTION)
    wanted = LedgerEntry(uid="uid-5", name="db-5", domain="a", owner="db", time="now", source=source)
    await paper.publisher.reserve({BUDGET: [taken]})
    if relied_on:
        await paper.publisher.reserve({first: [replace(wanted, time="then", source=ChargeSource.EVICTION)]})
    assert await paper.publisher.reserve({first: [wanted], BUDGET: [wanted]}) == set()
    assert paper.charged(first) == {"uid-5"}
    now += 5.0
    await paper.publisher._reconcile(first)
    assert paper.charged(first) == ({"uid-5"} if relied_on else set())
    assert paper.charged() == {"uid-0"}


async def test_a_grant_that_somebody_takes_away_is_not_given_all_night() -> None:
    """The pod's controller can't delete without it. Others are tried, and ever more rarely."""
    now = 1000.0
    paper = Paper("abc", lambda: now)
    paper.shrink(3, "a0", "a1", "b0", "b1", "c0", "c1")
    await paper.publisher._reconcile(BUDGET)
    given: list[float] = []
    while now < 1000.0 + 8 * HOUR:
        before = len(paper.server.tried)
        await paper.scale_down._reconcile(WEB)
        given += [now] * (len(paper.server.tried) - before)
        paper.hear()
        await paper.publisher._reconcile(BUDGET)
        now += 1.0 if now < 1000.0 + HOUR / 6 else 150.0

    assert len(given) > 8, "it still tries"
    assert {name[0] for name in paper.server.tried} == set("abc")
    busiest = max(sum(start <= time < start + HOUR for time in given) for start in given if start > given[0] + HOUR)
    assert busiest <= 6, given[:30]


@pytest.mark.parametrize("source", [ChargeSource.EVICTION, ChargeSource.SCALE_DOWN])
async def test_who_grants_by_the_charge_of_another_lets_nobody_take_it_back(source: ChargeSource) -> None:
    """A webhook takes back what it charged at that very time, when another budget refuses. Our own needs no write."""
    paper = Paper("abc", lambda: 1000.0)
    paper.shrink(3, "a0", "a1", "b0", "b1", "c0", "c1")
    await paper.publisher._reconcile(BUDGET)
    before = LedgerEntry(uid="uid-b1", name="b1", domain="b", owner="web", time="then", source=source)
    await paper.publisher.reserve({BUDGET: [before]})
    await paper.scale_down._reconcile(WEB)
    assert "b1" in paper.server.tried
    page = paper.book.newest(BUDGET)
    assert page is not None
    after = page.status.ledger["uid-b1"]
    assert after.source is source
    assert (after.time == "then") is (source is ChargeSource.SCALE_DOWN)


async def test_a_grant_not_heard_of_yet_is_waited_for() -> None:
    now = 1000.0
    paper = Paper("abc", lambda: now)
    paper.shrink(3, "a0", "a1", "b0", "b1", "c0", "c1")
    await paper.publisher._reconcile(BUDGET)
    await paper.scale_down._reconcile(WEB)
    granted = list(paper.server.tried)
    assert granted
    assert await paper.scale_down._reconcile(WEB)
    assert paper.server.tried == granted


@pytest.mark.parametrize("kind", [PODS, NODES, DEPLOYMENTS, STATEFUL_SETS, REPLICA_SETS], ids=lambda kind: kind.plural)
async def test_what_can_not_be_counted_now_is_looked_at_again(kind: Resource[Any]) -> None:
    """While a watch fails nothing is promised; nobody tells when it works again."""
    paper = Paper("a", lambda: 1000.0)
    await paper.publisher._reconcile(BUDGET)
    paper.caches.of(kind).problem = "no answer"
    assert paper.publisher.fresh(BUDGET) is None
    assert await paper.rollouts._reconcile(DB)
    assert not paper.server.tried


@pytest.mark.parametrize(("apps", "guarded"), [(("other", "db"), True), (("other", "other"), False), ((), False)])
def test_one_pod_that_a_budget_selects_makes_a_guarded_workload(apps: tuple[str, ...], guarded: bool) -> None:
    """Labels may differ between revisions, and the oldest pod may be the one without."""
    paper = Paper("a", lambda: 1000.0)
    pods = [msgspec.convert(pod(number, "a", app), PODS.view) for number, app in enumerate(apps)]
    assert paper.rollouts._planner.is_guarded(map(PodFacts.of, pods)) is guarded


async def test_an_update_that_waits_for_a_surge_is_not_over() -> None:
    """All nodes have a ready pod, and none of the old ones may go yet."""
    paper = Paper("abc", lambda: 1000.0)
    await paper.publisher._reconcile(BUDGET)
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    written = {
        "metadata": {"name": "db", "namespace": "shop", "uid": "db", "generation": 1, "resourceVersion": "1"},
        "spec": {"updateStrategy": strategy},
        "status": {"observedGeneration": 1, "desiredNumberScheduled": 3},
    }
    feed(paper.caches, DAEMON_SETS, [written])
    key = WorkloadKey("DaemonSet", Key("shop", "db"))
    progress = paper.rollouts._progress[key] = _Progress("db", waves=1, generation=1, revision="new")
    paper.server.tried.clear()
    await paper.rollouts._reconcile(key)
    assert paper.rollouts._progress[key] is progress
    assert not paper.server.tried
