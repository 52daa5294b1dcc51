"""Queue of workloads for the rollout and the scale-down controller, with the budgets that each workload holds.

Changes of workloads and pods enqueue a workload. So does any change of a budget that it holds: while a budget is held,
rising numbers are not published, because the next reservation carries them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, Generic, TypeVar

from zonewise.disruption.controller.planner import Reservations
from zonewise.disruption.watch.informers import DisruptionInformers, WorkloadKey
from zonewise.disruption.watch.replicas import WorkloadInformers
from zonewise.kube.controller.controller import Controller
from zonewise.kube.controller.workqueue import Backoff, WorkQueue
from zonewise.kube.watch.cache import Cache
from zonewise.objects import Key
from zonewise.objects.apps import DaemonSet, ReplicaSet, StatefulSet

BATCH_SECONDS: Final = 0.03
"""Changes of pods come in bursts, which are handled together."""

W = TypeVar("W", bound=ReplicaSet | StatefulSet | DaemonSet)
Reconcile = Callable[[WorkloadKey], Awaitable[float | None]]


class WorkloadQueue(Generic[W]):
    """`caches` by kind: the workloads to reconcile. Create it before these run."""

    def __init__(
        self,
        name: str,
        caches: Mapping[str, Cache[Any]],
        reservations: Reservations,
        reconcile: Reconcile,
        backoff: Backoff,
    ) -> None:
        self._caches = caches
        self._reservations = reservations
        self._holding: dict[WorkloadKey, set[Key]] = {}
        self._queue: WorkQueue[WorkloadKey] = WorkQueue(name, backoff=backoff)
        self._controller = Controller(name, self._queue, reconcile, workers=4)

    def watch(self, informers: DisruptionInformers, workloads: WorkloadInformers) -> None:
        workloads.on_workload_dirty(self._workload_changed)
        informers.on_budget_dirty(self._budget_changed)

    async def run(self) -> None:
        """Reconciles all workloads, then those that change; until cancelled. Holds of an earlier run are dropped."""
        self._holding.clear()
        for kind, cache in self._caches.items():
            for key in cache.keys():  # noqa: SIM118 - a cache is no dict
                self._queue.add(WorkloadKey(kind, key))
        await self._controller.run()

    def find(self, key: WorkloadKey) -> W | None:
        cache = self._caches.get(key.kind)
        return cache.get(key.key) if cache is not None else None

    def hold(self, key: WorkloadKey, budgets: Collection[Key]) -> None:
        """Holds exactly these budgets for the workload."""
        before = self._holding.get(key, set())
        for budget in set(budgets) - before:
            self._reservations.hold(budget, str(key))
        for budget in before - set(budgets):
            self._reservations.release(budget, str(key))
        self._holding[key] = set(budgets)

    def release(self, key: WorkloadKey) -> None:
        for budget in self._holding.pop(key, ()):
            self._reservations.release(budget, str(key))

    def holds(self, key: WorkloadKey) -> bool:
        return bool(self._holding.get(key))

    def _workload_changed(self, key: WorkloadKey) -> None:
        if key.kind in self._caches:
            self._queue.add_after(key, BATCH_SECONDS)

    def _budget_changed(self, budget: Key) -> None:
        for key, budgets in self._holding.items():
            if budget in budgets:
                self._queue.add_after(key, BATCH_SECONDS)
