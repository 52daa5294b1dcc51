"""Desired replicas of every workload, which the leader compares with the pods.

Watches Deployments, ReplicaSets, StatefulSets, DaemonSets and ReplicationControllers; any other owner is read through its
scale subresource. A changed number marks the budgets of the workload's pods dirty. A change that leaves the number alone
only notifies the handlers of that workload.
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
    """Create it before `caches` run. `run` reads scales until cancelled."""

    def __init__(self, client: Client, caches: Caches, informers: DisruptionInformers) -> None:
        self.deployments: Cache[Deployment] = caches.of(DEPLOYMENTS)
        self.stateful_sets: Cache[StatefulSet] = caches.of(STATEFUL_SETS)
        self.daemon_sets: Cache[DaemonSet] = caches.of(DAEMON_SETS)
        self.replication_controllers: Cache[ReplicaSet] = caches.of(REPLICATION_CONTROLLERS)
        self._informers = informers
        self._desired: dict[str, Workload] = {}
        self._sets_of: dict[str, dict[str, Key]] = {}
        self._scaled: dict[str, ScaledOwner] = {}
        self._handlers: list[WorkloadHandler] = []
        self._scales = ScaleClient(client, caches, self._scale_changed)
        self._follow()

    def _follow(self) -> None:
        self._informers.pods.on_change(self._pod_changed, from_now_on=True)
        self.deployments.on_change(self._deployment_changed)
        self._informers.replica_sets.on_change(self._replica_set_changed)
        self.stateful_sets.on_change(lambda change: self._workload_changed(STATEFUL_SETS, change, _replicas))
        self.daemon_sets.on_change(lambda change: self._workload_changed(DAEMON_SETS, change, _scheduled))
        self.replication_controllers.on_change(
            lambda change: self._workload_changed(REPLICATION_CONTROLLERS, change, _replicas)
        )

    async def run(self) -> None:
        await self._scales.run()

    @property
    def desired(self) -> Workloads:
        return self._desired

    @property
    def watches(self) -> tuple[Cache[Any], ...]:
        return (self.deployments, self.stateful_sets, self.daemon_sets, self.replication_controllers)

    @property
    def blind(self) -> bool:
        """Whether a workload may want more pods than the caches know: its pods would count as a surplus then."""
        return any(watch.problem for watch in (*self.watches, self._informers.replica_sets))

    def on_workload_dirty(self, handler: WorkloadHandler) -> None:
        """Call `handler` also when the workload object itself changes."""
        self._handlers.append(handler)
        self._informers.on_workload_dirty(handler)

    def read_scales(self, pods: Iterable[PodFacts]) -> None:
        """Reads the scale of unknown controllers of these pods."""
        for pod in pods:
            controller = pod.controller
            if controller is None or controller.uid in self._desired or controller.kind in _BUILT_IN:
                continue
            reference = OwnerReference(
                api_version=controller.api_version, kind=controller.kind, name=controller.name, uid=controller.uid
            )
            self._scaled[controller.uid] = self._scales.follow(reference, pod.namespace)

    def _scale_changed(self, uid: str) -> None:
        scaled, desired = self._scaled.get(uid), self._scales.desired(uid)
        if scaled is None or desired is None:
            self._set_desired(uid, None)
        else:
            self._set_desired(uid, Workload(Owner(scaled.kind.kind, scaled.key.name, uid), desired))
        self._forget_if_unused(uid)

    def _pod_changed(self, change: Change[Pod]) -> None:
        if change.new is None and change.old is not None and self._scaled:
            controller = controller_of(change.old.metadata)
            if controller is not None:
                self._forget_if_unused(controller.uid)

    def _forget_if_unused(self, uid: str) -> None:
        """An owner without a scale, such as a Job, or one that is gone, once it has no pods left."""
        scaled = self._scaled.get(uid)
        if scaled is not None and self._scales.desired(uid) is None and not self._informers.pods_of(uid):
            del self._scaled[uid]
            self._scales.forget(scaled)

    def _workload_changed(self, resource: Resource[W], change: Change[W], number: Callable[[W], int]) -> None:
        self._forget_former(change)
        if change.new is not None:
            uid = change.new.metadata.uid
            owner = Owner(resource.kind, change.key.name, uid)
            self._set_desired(uid, Workload(owner, number(change.new), ordinals=_ordinals(change.new)))
        self._touch(WorkloadKey(resource.kind, change.key))

    def _deployment_changed(self, change: Change[Deployment]) -> None:
        self._workload_changed(DEPLOYMENTS, change, _replicas)
        for version in (change.old, change.new):
            for key in tuple(self._sets_of.get(version.metadata.uid, {}).values()) if version else ():
                self._update_replica_set(self._informers.replica_sets.get(key))

    def _replica_set_changed(self, change: Change[ReplicaSet]) -> None:
        self._forget_former(change)
        for version in (change.old, change.new):
            owner = controller_of(version.metadata) if version else None
            if version is not None and owner is not None:
                sets = self._sets_of.setdefault(owner.uid, {})
                sets.pop(version.metadata.uid, None)
                if version is change.new:
                    sets[version.metadata.uid] = change.key
                if not sets:
                    del self._sets_of[owner.uid]
        self._update_replica_set(change.new)

    def _update_replica_set(self, replica_set: ReplicaSet | None) -> None:
        """As for stock PDBs: the replicas of its Deployment, or its own without a Deployment."""
        if replica_set is None:
            return
        metadata = replica_set.metadata
        owner = controller_of(metadata)
        deployment = self._desired.get(owner.uid) if owner is not None and owner.kind == DEPLOYMENTS.kind else None
        replicas = replica_set.spec.replicas
        own = Workload(Owner(REPLICA_SETS.kind, metadata.name, metadata.uid), replicas)
        self._set_desired(metadata.uid, deployment._replace(own=replicas) if deployment else own)

    def _forget_former(self, change: Change[W]) -> None:
        """Forget a workload that is gone, or was replaced by another of its name."""
        if change.old is not None and (change.new is None or change.new.metadata.uid != change.old.metadata.uid):
            self._set_desired(change.old.metadata.uid, None)

    def _set_desired(self, uid: str, workload: Workload | None) -> None:
        if self._desired.get(uid) == workload:
            return
        self._desired.pop(uid, None)
        if workload is not None:
            self._desired[uid] = workload
        self._informers.touch_pods_of((uid,))

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
