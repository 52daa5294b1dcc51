"""Leader with hand-fed caches and a fake API server, for behaviour that no real server shows on demand.

Controllers and status writer are the real ones. The server keeps budgets and pod annotations, and refuses evictions.
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


class FakeApiServer:
    def __init__(self, budgets: Iterable[dict[str, Any]], clock: Callable[[], float]) -> None:
        self.budgets = {body["metadata"]["name"]: body for body in budgets}
        self.pods: dict[str, dict[str, Any]] = {}
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
        if resource is PODS:
            return msgspec.convert(self.pods[name], resource.view)
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
        """Another client removes them before any watch event: only the version changes."""
        self.tried.append(name)
        self.version += 1
        return msgspec.convert(replica_pod(name, version=self.version), Pod)


class NullRecorder:
    def record(self, *_: Any, **__: Any) -> None: ...


def feed(caches: Caches, resource: Resource[Any], bodies: Iterable[dict[str, Any]]) -> None:
    cache = caches.of(resource)
    reflector = cache._reflector
    reflector.page([msgspec.convert(body, resource.view) for body in bodies], 0.0)
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


class FakeLeader:
    """The leader of one StatefulSet of six pods, under one budget by default."""

    def __init__(
        self,
        zones: str,
        clock: Callable[[], float],
        *,
        unready: Collection[int] = (),
        budgets: Sequence[dict[str, Any]] = (),
    ) -> None:
        budgets = budgets or (budget(),)
        server: Any = FakeApiServer(budgets, clock)
        silence: Any = NullRecorder()
        caches = self.caches = Caches(server)
        self.server: FakeApiServer = server
        self.informers = DisruptionInformers(caches)
        workloads = WorkloadInformers(server, caches, self.informers)
        self.store = BudgetStore(server, self.informers.budgets)
        self.status_writer = StatusWriter(
            server, self.informers, workloads, self.store, BudgetEvents(server, silence), clock=clock
        )
        self.scale_down = ScaleDownController(
            server, self.informers, workloads, self.status_writer, silence, clock=clock
        )
        self.rollouts = RolloutController(server, self.informers, workloads, self.status_writer, silence, clock=clock)
        feed(caches, NODES, [{"metadata": {"name": zone, "labels": {ZONE: zone}}} for zone in zones])
        feed(caches, STATEFUL_SETS, [stateful_set()])
        feed(caches, POD_DISRUPTION_BUDGETS, [])
        feed(caches, TOPOLOGY_DISRUPTION_BUDGETS, budgets)
        pods = [pod(number, zones[number % len(zones)], ready=number not in unready) for number in range(6)]
        feed(caches, PODS, pods)
        self.server.pods = {body["metadata"]["name"]: body for body in pods}
        self.workloads = workloads

    def shrink(self, replicas: int, *names: str, unready: Collection[str] = ()) -> None:
        """Add a ReplicaSet with the named pods and `replicas` beside the StatefulSet."""
        bodies = {"name": "web", "namespace": "shop", "uid": "web", "generation": 1, "resourceVersion": "1"}
        feed(self.caches, REPLICA_SETS, [{"metadata": bodies, "spec": {"replicas": replicas}}])
        pods = [replica_pod(name, ready=name not in unready) for name in names]
        feed(self.caches, PODS, pods)
        self.server.pods |= {body["metadata"]["name"]: body for body in pods}

    def charged(self, budget: Key = BUDGET) -> set[str]:
        version = self.store.newest(budget)
        return set(version.status.ledger) if version is not None else set()

    def deliver_pods(self) -> None:
        """Send watch events of the pods as they are now."""
        for name in set(self.server.tried):
            self.change(PODS, msgspec.convert(replica_pod(name, version=self.server.version), Pod))

    def change(self, resource: Resource[Any], new: Any) -> None:
        cache = self.caches.of(resource)
        old, cache._reflector.objects[key_of(new)] = cache.get(key_of(new)), new
        cache.publish([Change(key_of(new), old, new)])

    def remove(self, resource: Resource[Any], key: Key) -> None:
        cache = self.caches.of(resource)
        cache.publish([Change(key, cache._reflector.objects.pop(key), None)])
