"""How many pods every workload wants: the other half of what the leader counts, beside the pods themselves.

Follows Deployments, ReplicaSets, StatefulSets, DaemonSets and ReplicationControllers by their watches, and every other
owner by its scale subresource. A number that changes touches the budgets over the workload's pods; a change of status
that wants no more and no fewer pods touches nobody but who plans for that workload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from zonewise.disruption.decide.pods import Owner, PodFacts, Workload, Workloads
from zonewise.disruption.watch.informers import (
    DisruptionInformers,
    WorkloadHandler,
    WorkloadKey,
    controller_of,
    ordinals_of,
)
from zonewise.disruption.watch.scale_client import ScaleClient, ScaledOwner
from zonewise.kube.client.client import Client
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.objects import Key, OwnerReference, Pod, Resource
from zonewise.objects.apps import (
    DAEMON_SETS,
    DEPLOYMENTS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    STATEFUL_SETS,
    DaemonSet,
    Deployment,
    ReplicaSet,
    StatefulSet,
)
from zonewise.objects.change import Change

W = TypeVar("W", Deployment, ReplicaSet, StatefulSet, DaemonSet)


class WorkloadInformers:
    """Registered with `caches` before these run; `run` reads scales until cancelled."""

    def __init__(self, client: Client, caches: Caches, sources: DisruptionInformers) -> None:
        self.deployments: Cache[Deployment] = caches.of(DEPLOYMENTS)
        self.stateful_sets: Cache[StatefulSet] = caches.of(STATEFUL_SETS)
        self.daemon_sets: Cache[DaemonSet] = caches.of(DAEMON_SETS)
        self.replication_controllers: Cache[ReplicaSet] = caches.of(REPLICATION_CONTROLLERS)
        self._sources = sources
        self._wanted: dict[str, Workload] = {}
        self._sets_of: dict[str, dict[str, Key]] = {}
        self._scaled: dict[str, ScaledOwner] = {}
        self._handlers: list[WorkloadHandler] = []
        self._scales = ScaleClient(client, caches, self._scale_changed)
        self._follow()

    def _follow(self) -> None:
        self._sources.pods.on_change(self._pod_changed, from_now_on=True)
        self.deployments.on_change(self._deployment_changed)
        self._sources.replica_sets.on_change(self._replica_set_changed)
        self.stateful_sets.on_change(lambda change: self._own_changed(STATEFUL_SETS, change, _replicas))
        self.daemon_sets.on_change(lambda change: self._own_changed(DAEMON_SETS, change, _scheduled))
        self.replication_controllers.on_change(
            lambda change: self._own_changed(REPLICATION_CONTROLLERS, change, _replicas)
        )

    async def run(self) -> None:
        await self._scales.run()

    @property
    def wanted(self) -> Workloads:
        return self._wanted

    @property
    def watches(self) -> tuple[Cache[Any], ...]:
        return (self.deployments, self.stateful_sets, self.daemon_sets, self.replication_controllers)

    @property
    def blind(self) -> bool:
        """Whether a workload may want more than we heard of: then its pods would be taken for too many."""
        return any(watch.problem for watch in (*self.watches, self._sources.replica_sets))

    def on_workload_dirty(self, handler: WorkloadHandler) -> None:
        """Also when the workload itself changes, however little."""
        self._handlers.append(handler)
        self._sources.on_workload_dirty(handler)

    def look_up(self, pods: Iterable[PodFacts]) -> None:
        """Some of these have a controller that is not known: it may be one that can be scaled."""
        for pod in pods:
            controller = pod.controller
            if controller is None or controller.uid in self._wanted or controller.kind in _BUILT_IN:
                continue
            reference = OwnerReference(
                api_version=controller.api_version, kind=controller.kind, name=controller.name, uid=controller.uid
            )
            self._scaled[controller.uid] = self._scales.follow(reference, pod.namespace)

    def _scale_changed(self, uid: str) -> None:
        scaled, desired = self._scaled.get(uid), self._scales.desired(uid)
        if scaled is None or desired is None:
            self._want(uid, None)
        else:
            self._want(uid, Workload(Owner(scaled.kind.kind, scaled.key.name, uid), desired))
        self._forget_if_over(uid)

    def _pod_changed(self, change: Change[Pod]) -> None:
        if change.new is None and change.old is not None and self._scaled:
            controller = controller_of(change.old.metadata)
            if controller is not None:
                self._forget_if_over(controller.uid)

    def _forget_if_over(self, uid: str) -> None:
        """One that wants no pods, such as a Job, or is gone, and has none left."""
        scaled = self._scaled.get(uid)
        if scaled is not None and self._scales.desired(uid) is None and not self._sources.pods_of(uid):
            del self._scaled[uid]
            self._scales.forget(scaled)

    def _own_changed(self, resource: Resource[W], change: Change[W], number: Callable[[W], int]) -> None:
        self._forget_former(change)
        if change.new is not None:
            uid = change.new.metadata.uid
            owner = Owner(resource.kind, change.key.name, uid)
            self._want(uid, Workload(owner, number(change.new), ordinals=_ordinals(change.new)))
        self._touch(WorkloadKey(resource.kind, change.key))

    def _deployment_changed(self, change: Change[Deployment]) -> None:
        self._own_changed(DEPLOYMENTS, change, _replicas)
        for seen in (change.old, change.new):
            for key in tuple(self._sets_of.get(seen.metadata.uid, {}).values()) if seen else ():
                self._count_set(self._sources.replica_sets.get(key))

    def _replica_set_changed(self, change: Change[ReplicaSet]) -> None:
        self._forget_former(change)
        for seen in (change.old, change.new):
            above = controller_of(seen.metadata) if seen else None
            if seen is not None and above is not None:
                sets = self._sets_of.setdefault(above.uid, {})
                sets.pop(seen.metadata.uid, None)
                if seen is change.new:
                    sets[seen.metadata.uid] = change.key
                if not sets:
                    del self._sets_of[above.uid]
        self._count_set(change.new)

    def _count_set(self, replica_set: ReplicaSet | None) -> None:
        """As stock: what its Deployment wants, or its own replicas where none stands above it."""
        if replica_set is None:
            return
        metadata = replica_set.metadata
        above = controller_of(metadata)
        deployment = self._wanted.get(above.uid) if above is not None and above.kind == DEPLOYMENTS.kind else None
        replicas = replica_set.spec.replicas
        own = Workload(Owner(REPLICA_SETS.kind, metadata.name, metadata.uid), replicas)
        self._want(metadata.uid, deployment._replace(own=replicas) if deployment else own)

    def _forget_former(self, change: Change[W]) -> None:
        """One that is gone, or was replaced by another of its name."""
        if change.old is not None and (change.new is None or change.new.metadata.uid != change.old.metadata.uid):
            self._want(change.old.metadata.uid, None)

    def _want(self, uid: str, workload: Workload | None) -> None:
        if self._wanted.get(uid) == workload:
            return
        self._wanted.pop(uid, None)
        if workload is not None:
            self._wanted[uid] = workload
        self._sources.touch_pods_of((uid,))

    def _touch(self, workload: WorkloadKey) -> None:
        for handler in self._handlers:
            handler(workload)


_BUILT_IN = frozenset(
    resource.kind for resource in (DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS, DAEMON_SETS, REPLICATION_CONTROLLERS)
)


def _replicas(workload: Deployment | ReplicaSet | StatefulSet) -> int:
    return workload.spec.replicas


def _ordinals(workload: Deployment | ReplicaSet | StatefulSet | DaemonSet) -> range | None:
    return ordinals_of(workload) if isinstance(workload, StatefulSet) else None


def _scheduled(workload: DaemonSet) -> int:
    return workload.status.desired_number_scheduled
