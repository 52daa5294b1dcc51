"""An update that somebody else refuses, through a night that takes a second: hardly a call, and never one pod twice in a row.

The controller and the publisher are the real ones. The API server is on paper, because no other could be waited for: it
keeps budgets, and refuses every eviction.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from zonewise.disruption.book import Book
from zonewise.disruption.ledger import Entry, Source
from zonewise.disruption.pods import PodFacts
from zonewise.disruption.publisher import Publisher
from zonewise.disruption.reports import Reports
from zonewise.disruption.rollouts import RolloutController
from zonewise.disruption.sources import Sources, WorkloadKey
from zonewise.disruption.workloads import WorkloadSources
from zonewise.kube.errors import TooManyRequests
from zonewise.kube.informers import Caches
from zonewise.objects import NODES, PODS, Key, Resource
from zonewise.objects.apps import DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS
from zonewise.objects.policy import POD_DISRUPTION_BUDGETS, TOPOLOGY_DISRUPTION_BUDGETS
from zonewise.topology import ZONE

HOUR = 3600.0
DB, BUDGET = WorkloadKey("StatefulSet", Key("shop", "db")), Key("shop", "db")


class PaperServer:
    def __init__(self, budget: dict[str, Any], clock: Callable[[], float]) -> None:
        self.budget = budget
        self.clock = clock
        self.calls: list[float] = []
        self.tried: list[str] = []

    async def evict(self, name: str, *_: Any, **__: Any) -> None:
        self.calls.append(self.clock())
        self.tried.append(name)
        raise TooManyRequests("not now", status=429)

    async def patch(self, resource: Resource[Any], _name: str, patch: Any, *_: Any, **__: Any) -> Any:
        assert resource is TOPOLOGY_DISRUPTION_BUDGETS
        self.calls.append(self.clock())
        metadata = self.budget["metadata"]
        version = str(int(metadata["resourceVersion"]) + 1)
        changed = {"metadata": metadata | {"resourceVersion": version}, "status": patch.body["status"]}
        self.budget = msgspec.json.decode(msgspec.json.encode(self.budget | changed))
        return msgspec.convert(self.budget, resource.view)


class Silence:
    def record(self, *_: Any, **__: Any) -> None: ...


def feed(caches: Caches, resource: Resource[Any], written: Iterable[dict[str, Any]]) -> None:
    cache = caches.of(resource)
    reflector = cache._reflector
    reflector.page([msgspec.convert(each, resource.view) for each in written], 0.0)
    cache.publish(reflector.listed("1"))


def pod(number: int, zone: str, app: str = "db") -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "db", "controller": True}
    labels = {"app": app, "controller-revision-hash": "old"}
    name = {"name": f"db-{number}", "namespace": "shop", "uid": f"uid-{number}", "resourceVersion": "1"}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return {
        "metadata": {**name, "labels": labels, "ownerReferences": [owner]},
        "spec": {"nodeName": zone},
        "status": status,
    }


def budget() -> dict[str, Any]:
    term = {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]}
    name = {"name": "db", "namespace": "shop", "uid": "budget", "generation": 1, "resourceVersion": "1"}
    selector = {"matchLabels": {"app": "db"}}
    return {"metadata": name, "spec": {"selector": selector, "maxUnavailable": 1, "nodeSelectorTerm": term}}


def stateful_set() -> dict[str, Any]:
    name = {"name": "db", "namespace": "shop", "uid": "db", "generation": 1, "resourceVersion": "1"}
    status = {"observedGeneration": 1, "currentRevision": "old", "updateRevision": "new"}
    return {
        "metadata": {**name, "annotations": {"zonewise.dev/update": "Evict"}},
        "spec": {"replicas": 6, "updateStrategy": {"type": "OnDelete"}},
        "status": status,
    }


class Paper:
    """The leader of one StatefulSet of six pods under one budget."""

    def __init__(self, zones: str, clock: Callable[[], float]) -> None:
        server: Any = PaperServer(budget(), clock)
        silence: Any = Silence()
        caches = self.caches = Caches(server)
        self.server: PaperServer = server
        self.sources = Sources(caches)
        workloads = WorkloadSources(server, caches, self.sources)
        self.book = Book(server, self.sources.budgets)
        self.publisher = Publisher(self.sources, workloads, self.book, Reports(server, silence), clock=clock)
        self.rollouts = RolloutController(server, self.sources, workloads, self.publisher, silence, clock=clock)
        feed(caches, NODES, [{"metadata": {"name": zone, "labels": {ZONE: zone}}} for zone in zones])
        feed(caches, STATEFUL_SETS, [stateful_set()])
        feed(caches, POD_DISRUPTION_BUDGETS, [])
        feed(caches, TOPOLOGY_DISRUPTION_BUDGETS, [budget()])
        feed(caches, PODS, [pod(number, zones[number % len(zones)]) for number in range(6)])


@pytest.mark.parametrize("zones", ["a", "abc"])
async def test_a_night_of_refusals(zones: str) -> None:
    now = 1000.0
    paper = Paper(zones, lambda: now)
    server = paper.server

    await paper.publisher._reconcile(BUDGET)
    server.calls.clear()
    while now < 1000.0 + 8 * HOUR:
        await paper.rollouts._reconcile(DB)
        await paper.publisher._reconcile(BUDGET)
        now += 5.0 if now < 1000.0 + HOUR / 6 else 150.0  # far more often than anything would wake them

    assert len(server.tried) > 8, "it still asks"
    assert all(one != other for one, other in pairwise(server.tried))
    busiest = max(sum(start <= call < start + HOUR for call in server.calls) for start in server.calls)
    assert busiest <= 6, server.calls[:30]


@pytest.mark.parametrize(
    ("source", "stays"), [(Source.ROLLOUT, False), (Source.EVICTION, True)], ids=["reserved", "somebody else's"]
)
async def test_only_what_was_reserved_is_given_back(source: Source, stays: bool) -> None:
    """Our eviction was refused; somebody else's of the same pod may be on its way."""
    now = 1000.0
    paper = Paper("a", lambda: now)
    await paper.publisher._reconcile(BUDGET)
    entry = Entry(uid="uid-0", name="db-0", domain="a", owner="db", time="then", source=source)
    await paper.publisher.reserve({BUDGET: [entry]})
    paper.publisher.give_back(["uid-0"])
    now += 5.0
    await paper.publisher._reconcile(BUDGET)
    page = paper.book.newest(BUDGET)
    assert page is not None
    assert ("uid-0" in page.status.ledger) is stays


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
