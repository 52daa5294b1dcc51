"""A leader on paper: its caches are fed by hand, and the API server does what a test needs, which no other could be made to.

Controllers and publisher are the real ones. The server keeps one budget and the pods' annotations, and refuses evictions.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

from zonewise.disruption.book import Book
from zonewise.disruption.publisher import Publisher
from zonewise.disruption.reports import Reports
from zonewise.disruption.rollouts import RolloutController
from zonewise.disruption.scaledown import ScaleDownController
from zonewise.disruption.sources import Sources, WorkloadKey
from zonewise.disruption.workloads import WorkloadSources
from zonewise.kube.errors import TooManyRequests
from zonewise.kube.informers import Caches
from zonewise.kube.reflector import Change
from zonewise.objects import NODES, PODS, Key, Pod, Resource, key_of
from zonewise.objects.apps import REPLICA_SETS, STATEFUL_SETS
from zonewise.objects.policy import POD_DISRUPTION_BUDGETS, TOPOLOGY_DISRUPTION_BUDGETS
from zonewise.topology import ZONE

DB, BUDGET = WorkloadKey("StatefulSet", Key("shop", "db")), Key("shop", "db")


class PaperServer:
    def __init__(self, budget: dict[str, Any], clock: Callable[[], float]) -> None:
        self.budget = budget
        self.clock = clock
        self.calls: list[float] = []
        self.tried: list[str] = []
        self.version = 1

    async def evict(self, name: str, *_: Any, **__: Any) -> None:
        self.calls.append(self.clock())
        self.tried.append(name)
        raise TooManyRequests("not now", status=429)

    async def get(self, resource: Resource[Any], *_: Any, **__: Any) -> Any:
        assert resource is TOPOLOGY_DISRUPTION_BUDGETS
        return msgspec.convert(self.budget, resource.view)

    async def patch(self, resource: Resource[Any], name: str, patch: Any, *_: Any, **__: Any) -> Any:
        assert resource is PODS
        self.calls.append(self.clock())
        return self.annotated(name, patch.body["metadata"]["annotations"])

    async def update(self, resource: Resource[Any], body: dict[str, Any], *_: Any, **__: Any) -> Any:
        assert resource is TOPOLOGY_DISRUPTION_BUDGETS
        self.calls.append(self.clock())
        metadata = self.budget["metadata"]
        version = str(int(metadata["resourceVersion"]) + 1)
        changed = {"metadata": metadata | {"resourceVersion": version}, "status": body["status"]}
        self.budget = msgspec.json.decode(msgspec.json.encode(self.budget | changed))
        return msgspec.convert(self.budget, resource.view)

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


def replica_pod(name: str, version: int = 1, *, ready: bool = True) -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}
    metadata = {"name": name, "namespace": "shop", "uid": f"uid-{name}", "resourceVersion": str(version)}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]}
    return {
        "metadata": {**metadata, "labels": {"app": "db"}, "ownerReferences": [owner]},
        "spec": {"nodeName": name[0]},
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
        self.scale_down = ScaleDownController(server, self.sources, workloads, self.publisher, silence, clock=clock)
        self.rollouts = RolloutController(server, self.sources, workloads, self.publisher, silence, clock=clock)
        feed(caches, NODES, [{"metadata": {"name": zone, "labels": {ZONE: zone}}} for zone in zones])
        feed(caches, STATEFUL_SETS, [stateful_set()])
        feed(caches, POD_DISRUPTION_BUDGETS, [])
        feed(caches, TOPOLOGY_DISRUPTION_BUDGETS, [budget()])
        feed(caches, PODS, [pod(number, zones[number % len(zones)]) for number in range(6)])
        self.workloads = workloads

    def shrink(self, replicas: int, *names: str, unready: Collection[str] = ()) -> None:
        """Beside the StatefulSet a ReplicaSet of the pods named, which wants so many."""
        written = {"name": "web", "namespace": "shop", "uid": "web", "generation": 1, "resourceVersion": "1"}
        feed(self.caches, REPLICA_SETS, [{"metadata": written, "spec": {"replicas": replicas}}])
        feed(self.caches, PODS, [replica_pod(name, ready=name not in unready) for name in names])

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
