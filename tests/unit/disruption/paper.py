"""A leader on paper: its caches are fed by hand, and the API server does what a test needs, which no other could be made to.

Controllers and publisher are the real ones. The server keeps budgets and the pods' annotations, and refuses evictions.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec

from zonewise.disruption.controller.budget_store import BudgetStore
from zonewise.disruption.controller.events import BudgetEvents
from zonewise.disruption.controller.rollout import RolloutController
from zonewise.disruption.controller.scaledown import ScaleDownController
from zonewise.disruption.controller.status_writer import StatusWriter
from zonewise.disruption.watch.informers import DisruptionInformers, WorkloadKey
from zonewise.disruption.watch.replicas import WorkloadInformers
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.errors import ApiError, TooManyRequests
from zonewise.objects import NODES, PODS, Key, Pod, Resource, key_of
from zonewise.objects.apps import REPLICA_SETS, STATEFUL_SETS
from zonewise.objects.change import Change
from zonewise.objects.policy import POD_DISRUPTION_BUDGETS, TOPOLOGY_DISRUPTION_BUDGETS
from zonewise.topology import ZONE

DB, BUDGET = WorkloadKey("StatefulSet", Key("shop", "db")), Key("shop", "db")


class PaperServer:
    def __init__(self, budgets: Iterable[dict[str, Any]], clock: Callable[[], float]) -> None:
        self.budgets = {each["metadata"]["name"]: each for each in budgets}
        self.clock = clock
        self.answer: Callable[[str], ApiError | None] = lambda _name: TooManyRequests("not now", status=429)
        self.calls: list[float] = []
        self.tried: list[str] = []
        self.version = 1

    async def evict(self, name: str, *_: Any, **__: Any) -> None:
        self.calls.append(self.clock())
        self.tried.append(name)
        if (refusal := self.answer(name)) is not None:
            raise refusal

    async def get(self, resource: Resource[Any], name: str, *_: Any, **__: Any) -> Any:
        assert resource is TOPOLOGY_DISRUPTION_BUDGETS
        return msgspec.convert(self.budgets[name], resource.view)

    async def patch(self, resource: Resource[Any], name: str, patch: Any, *_: Any, **__: Any) -> Any:
        assert resource is PODS
        self.calls.append(self.clock())
        return self.annotated(name, patch.body["metadata"]["annotations"])

    async def update(self, resource: Resource[Any], body: dict[str, Any], *_: Any, **__: Any) -> Any:
        assert resource is TOPOLOGY_DISRUPTION_BUDGETS
        self.calls.append(self.clock())
        name = body["metadata"]["name"]
        metadata = self.budgets[name]["metadata"]
        version = str(int(metadata["resourceVersion"]) + 1)
        changed = {"metadata": metadata | {"resourceVersion": version}, "status": body["status"]}
        self.budgets[name] = msgspec.json.decode(msgspec.json.encode(self.budgets[name] | changed))
        return msgspec.convert(self.budgets[name], resource.view)

    def annotated(self, name: str, _annotations: dict[str, str]) -> Pod:
        """Somebody takes them off again before anybody hears of it: all that is seen is another version."""
        self.tried.append(name)
        self.version += 1
        return msgspec.convert(replica_pod(name, version=self.version), Pod)


class Silence:
    def record(self, *_: Any, **__: Any) -> None: ...


def feed(caches: Caches, resource: Resource[Any], written: Iterable[dict[str, Any]]) -> None:
    cache = caches.of(resource)
    reflector = cache._reflector
    reflector.page([msgspec.convert(each, resource.view) for each in written], 0.0)
    cache.publish(reflector.listed("1"))


def pod(number: int, zone: str, app: str = "db", *, ready: bool = True) -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "uid": "db", "controller": True}
    labels = {"app": app, "controller-revision-hash": "old"}
    name = {"name": f"db-{number}", "namespace": "shop", "uid": f"uid-{number}", "resourceVersion": "1"}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
    return {
        "metadata": {**name, "labels": labels, "ownerReferences": [owner]},
        "spec": {"nodeName": zone},
        "status": status,
    }


def replica_pod(name: str, version: int = 1, *, ready: bool = True) -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}
    metadata = {"name": name, "namespace": "shop", "uid": f"uid-{name}", "resourceVersion": str(version)}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
    return {
        "metadata": {**metadata, "labels": {"app": "db"}, "ownerReferences": [owner]},
        "spec": {"nodeName": name[0]},
        "status": status,
    }


def budget(name: str = "db", most: int = 1) -> dict[str, Any]:
    term = {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]}
    metadata = {"name": name, "namespace": "shop", "uid": f"budget {name}", "generation": 1, "resourceVersion": "1"}
    selector = {"matchLabels": {"app": "db"}}
    return {"metadata": metadata, "spec": {"selector": selector, "maxUnavailable": most, "nodeSelectorTerm": term}}


def stateful_set() -> dict[str, Any]:
    name = {"name": "db", "namespace": "shop", "uid": "db", "generation": 1, "resourceVersion": "1"}
    status = {"observedGeneration": 1, "currentRevision": "old", "updateRevision": "new"}
    return {
        "metadata": {**name, "annotations": {"zonewise.dev/update": "Evict"}},
        "spec": {"replicas": 6, "updateStrategy": {"type": "OnDelete"}},
        "status": status,
    }


class Paper:
    """The leader of one StatefulSet of six pods, under one budget unless told otherwise."""

    def __init__(
        self,
        zones: str,
        clock: Callable[[], float],
        *,
        unready: Collection[int] = (),
        budgets: Sequence[dict[str, Any]] = (),
    ) -> None:
        budgets = budgets or (budget(),)
        server: Any = PaperServer(budgets, clock)
        silence: Any = Silence()
        caches = self.caches = Caches(server)
        self.server: PaperServer = server
        self.sources = DisruptionInformers(caches)
        workloads = WorkloadInformers(server, caches, self.sources)
        self.book = BudgetStore(server, self.sources.budgets)
        self.publisher = StatusWriter(self.sources, workloads, self.book, BudgetEvents(server, silence), clock=clock)
        self.scale_down = ScaleDownController(server, self.sources, workloads, self.publisher, silence, clock=clock)
        self.rollouts = RolloutController(server, self.sources, workloads, self.publisher, silence, clock=clock)
        feed(caches, NODES, [{"metadata": {"name": zone, "labels": {ZONE: zone}}} for zone in zones])
        feed(caches, STATEFUL_SETS, [stateful_set()])
        feed(caches, POD_DISRUPTION_BUDGETS, [])
        feed(caches, TOPOLOGY_DISRUPTION_BUDGETS, budgets)
        pods = [pod(number, zones[number % len(zones)], ready=number not in unready) for number in range(6)]
        feed(caches, PODS, pods)
        self.workloads = workloads

    def shrink(self, replicas: int, *names: str, unready: Collection[str] = ()) -> None:
        """Beside the StatefulSet a ReplicaSet of the pods named, which wants so many."""
        written = {"name": "web", "namespace": "shop", "uid": "web", "generation": 1, "resourceVersion": "1"}
        feed(self.caches, REPLICA_SETS, [{"metadata": written, "spec": {"replicas": replicas}}])
        feed(self.caches, PODS, [replica_pod(name, ready=name not in unready) for name in names])

    def charged(self, budget: Key = BUDGET) -> set[str]:
        page = self.book.newest(budget)
        return set(page.status.ledger) if page is not None else set()

    def hear(self) -> None:
        """Of the pods as they are now."""
        for name in set(self.server.tried):
            self.change(PODS, msgspec.convert(replica_pod(name, version=self.server.version), Pod))

    def change(self, resource: Resource[Any], new: Any) -> None:
        cache = self.caches.of(resource)
        old, cache._reflector.objects[key_of(new)] = cache.get(key_of(new)), new
        cache.publish([Change(key_of(new), old, new)])

    def remove(self, resource: Resource[Any], key: Key) -> None:
        cache = self.caches.of(resource)
        cache.publish([Change(key, cache._reflector.objects.pop(key), None)])
