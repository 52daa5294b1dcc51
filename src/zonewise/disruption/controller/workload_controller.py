"""Base of the rollout and the scale-down controller: a queue of workloads, their budgets, and the progress of each.

Changes of workloads and pods enqueue a workload. So does any change of a budget that it holds: while a budget is held,
rising numbers are not published, because the next reservation carries them.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar

from zonewise.disruption.controller.planner import Planner, Reservations
from zonewise.disruption.controller.workload_events import WorkloadEvents
from zonewise.disruption.decide.backoff import RolloutBackoff
from zonewise.disruption.watch.informers import DisruptionInformers, WorkloadKey
from zonewise.disruption.watch.replicas import WorkloadInformers
from zonewise.kube.client.client import Client
from zonewise.kube.controller.controller import Controller
from zonewise.kube.controller.recorder import Recorder
from zonewise.kube.controller.workqueue import Backoff, WorkQueue
from zonewise.kube.watch.cache import Cache
from zonewise.objects import Key
from zonewise.objects.apps import (
    DAEMON_SETS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    STATEFUL_SETS,
    DaemonSet,
    ReplicaSet,
    StatefulSet,
)

BATCH_SECONDS: Final = 0.03
"""Changes of pods come in bursts, which are handled together."""


@dataclass(slots=True)
class WorkloadProgress:
    """Remembered while pods of a workload are to go. In memory only: a new leader starts without it."""

    uid: str
    backoff: RolloutBackoff = field(default_factory=RolloutBackoff)


W = TypeVar("W", bound=ReplicaSet | StatefulSet | DaemonSet)
P = TypeVar("P", bound=WorkloadProgress)


class WorkloadController(ABC, Generic[W, P]):
    """Create it before `caches` run. `run` works until cancelled, and may run again with every new leadership."""

    _NAME: ClassVar[str]
    _KINDS: ClassVar[Collection[str]]
    _RETRY: ClassVar[Backoff]

    def __init__(
        self,
        client: Client,
        informers: DisruptionInformers,
        workloads: WorkloadInformers,
        reservations: Reservations,
        recorder: Recorder,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._informers = informers
        self._workloads = workloads
        self._reservations = reservations
        self._planner = Planner(informers, reservations, workloads)
        self._events = WorkloadEvents(recorder)
        self._clock = clock
        self._progress: dict[WorkloadKey, P] = {}
        self._holding: dict[WorkloadKey, set[Key]] = {}
        caches: dict[str, Cache[Any]] = {
            REPLICA_SETS.kind: informers.replica_sets,
            STATEFUL_SETS.kind: workloads.stateful_sets,
            DAEMON_SETS.kind: workloads.daemon_sets,
            REPLICATION_CONTROLLERS.kind: workloads.replication_controllers,
        }
        self._caches = {kind: caches[kind] for kind in self._KINDS}
        self._queue: WorkQueue[WorkloadKey] = WorkQueue(self._NAME, backoff=self._RETRY)
        self._controller = Controller(self._NAME, self._queue, self._reconcile, workers=4)
        workloads.on_workload_dirty(self._workload_changed)
        informers.on_budget_dirty(self._budget_changed)

    @abstractmethod
    async def _reconcile(self, key: WorkloadKey) -> float | None: ...

    @abstractmethod
    def _new_progress(self, uid: str) -> P: ...

    async def run(self) -> None:
        """All workloads, then those that change. Another process may have led since the last run: what it left is forgotten."""
        self._progress.clear()
        self._holding.clear()
        for kind, cache in self._caches.items():
            for key in cache.keys():  # noqa: SIM118 - a cache is no dict
                self._queue.add(WorkloadKey(kind, key))
        await self._controller.run()

    def _find(self, key: WorkloadKey) -> W | None:
        cache = self._caches.get(key.kind)
        return cache.get(key.key) if cache is not None else None

    def _progress_of(self, key: WorkloadKey, workload: W) -> P:
        """New for a workload that replaced another of the same name."""
        progress = self._progress.get(key)
        if progress is None or progress.uid != workload.metadata.uid:
            self._forget(key)
            progress = self._progress[key] = self._new_progress(workload.metadata.uid)
        return progress

    def _forget(self, key: WorkloadKey) -> None:
        self._release(key)
        progress = self._progress.pop(key, None)
        if progress is not None:
            self._events.forget(progress.uid)

    def _hold(self, key: WorkloadKey, budgets: Collection[Key]) -> None:
        """Holds exactly these budgets for the workload."""
        before = self._holding.get(key, set())
        for budget in set(budgets) - before:
            self._reservations.hold(budget, str(key))
        for budget in before - set(budgets):
            self._reservations.release(budget, str(key))
        self._holding[key] = set(budgets)

    def _release(self, key: WorkloadKey) -> None:
        for budget in self._holding.pop(key, ()):
            self._reservations.release(budget, str(key))

    def _workload_changed(self, key: WorkloadKey) -> None:
        if key.kind in self._caches:
            self._queue.add_after(key, BATCH_SECONDS)

    def _budget_changed(self, budget: Key) -> None:
        for key, budgets in self._holding.items():
            if budget in budgets:
                self._queue.add_after(key, BATCH_SECONDS)
