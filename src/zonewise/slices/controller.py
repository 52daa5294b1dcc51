"""EndpointSlice controller (mode own): keeps the slices of every Service in line with its pods and the nodes.

The informers say which Service changed and hold its objects, `plan` decides, and the writer writes. The slices are the
only memory, so a killed controller loses nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from zonewise.kube.client.client import Client
from zonewise.kube.controller.controller import Controller
from zonewise.kube.controller.recorder import Recorder, Severity, reference_to
from zonewise.kube.controller.workqueue import Backoff, WorkQueue
from zonewise.kube.decide.election import NotLeader
from zonewise.kube.watch.informers import Caches
from zonewise.kube.watch.service_informers import SyncCause
from zonewise.kube.wire.errors import ApiError, Conflict
from zonewise.objects import SERVICES, EndpointSlice, Key, Service
from zonewise.routing import HintsForm, RoutingNodes
from zonewise.slices.decide.plan import SlicesPlan, has_slices, plan_slices
from zonewise.slices.decide.tracker import EndpointSliceTracker
from zonewise.slices.decide.trigger_time import TriggerTimeTracker
from zonewise.slices.decide.write_delay import can_wait
from zonewise.slices.informers import SliceInformers, SlicesMode
from zonewise.slices.metrics import SYNCS_BY_RESULT, Totals, WriteResult, observe
from zonewise.slices.reporter import RoutingReporter
from zonewise.slices.writer import SliceWriter

QUEUE: Final = "endpoint_slice"
_BACKOFF: Final = Backoff(first_seconds=0.005, longest_seconds=10.0)
_REPAIR_SECONDS: Final = 1.0
"""The least time between two repairs of a Service's slices, so that two disagreeing writers cannot race."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicesConfig:
    endpoints_per_slice: int = 100
    batch_seconds: float = 0.0
    unnoticed_seconds: float = 1.0
    """How long a write that no client would notice may wait to be batched."""
    hints: HintsForm = HintsForm.STABLE
    workers: int = 5


_DEFAULTS: Final = SlicesConfig()


class SliceController:
    """Create it before `caches` run. `run` works until cancelled, and may be called again for each leadership."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        recorder: Recorder,
        settings: SlicesConfig = _DEFAULTS,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._recorder = recorder
        self._reporter = RoutingReporter(client, recorder, stock_events=settings.hints is HintsForm.STRICT)
        self._clock = clock
        self._tracker = EndpointSliceTracker(lambda: self.informers.slices.resource_version)
        self.informers = SliceInformers(caches, SlicesMode.OWN, self._tracker.is_echo)
        self._writer = SliceWriter(client, self._tracker)
        self._triggers = TriggerTimeTracker()
        self._totals = Totals()
        self._touched: set[Key] = set()
        self._repaired_at: dict[Key, float] = {}
        self._delayed_until: dict[Key, float] = {}
        self._queue: WorkQueue[Key] = WorkQueue(QUEUE, backoff=_BACKOFF)
        self._controller = Controller(QUEUE, self._queue, self._reconcile, workers=settings.workers)
        self.informers.on_service_dirty(self._enqueue)

    async def run(self) -> None:
        await self._controller.run()

    def _enqueue(self, service: Key, cause: SyncCause) -> None:
        match cause:
            case SyncCause.PODS:
                self._queue.add_after(service, self._settings.batch_seconds)
            case SyncCause.SLICES:
                self._queue.add_after(service, self._seconds_until_repair(service))
            case _:
                self._queue.add(service)

    def _seconds_until_repair(self, service: Key) -> float:
        """The first repair is immediate: a deleted slice costs traffic."""
        self._touched.add(service)
        due = self._repaired_at.get(service, float("-inf")) + _REPAIR_SECONDS
        return max(due - self._clock(), self._settings.batch_seconds)

    async def _reconcile(self, key: Key) -> float | None:
        service = self.informers.services.get(key)
        if service is None or not has_slices(service):
            self._forget(key)
            return None
        try:
            again_after_seconds = await self._sync(key, service)
        except (asyncio.CancelledError, NotLeader, Conflict):
            raise
        except Exception as error:
            self._note_failure(service, error)
            raise
        SYNCS_BY_RESULT[WriteResult.SUCCESS].inc()
        return again_after_seconds

    async def _sync(self, key: Key, service: Service) -> float | None:
        cluster = self.informers.cluster()
        plan = self._plan(key, service, cluster)
        if delay_seconds := self._delay_seconds(key, service, plan):
            return delay_seconds
        if plan.writes:
            await self._write(key, plan)
        else:
            self._touched.discard(key)
        self._triggers.mark_written(key)
        self._totals.note(service, plan)
        observe(service, plan)
        await self._reporter.report(service, plan.decisions, plan.expressions, cluster)
        return None

    async def _write(self, key: Key, plan: SlicesPlan) -> None:
        if key in self._touched:
            self._touched.remove(key)
            self._repaired_at[key] = self._clock()
        if await self._writer.perform(key, plan):
            self._enqueue(key, SyncCause.SLICES)

    def _delay_seconds(self, key: Key, service: Service, plan: SlicesPlan) -> float:
        now = self._clock()
        due = (
            self._delayed_until.setdefault(key, now + self._settings.unnoticed_seconds)
            if can_wait(service, plan)
            else now
        )
        if due <= now:
            self._delayed_until.pop(key, None)
        return max(0.0, due - now)

    def _plan(self, key: Key, service: Service, cluster: RoutingNodes) -> SlicesPlan:
        pods = self.informers.pods_of(service)
        return plan_slices(
            service,
            pods,
            cluster,
            self._existing(key),
            most_per_slice=self._settings.endpoints_per_slice,
            hints=self._settings.hints,
            drained=self.informers.drained_zones(service),
            trigger_time=self._triggers.since(service, pods),
        )

    def _existing(self, key: Key) -> list[EndpointSlice]:
        slices = self._tracker.merge(key, self.informers.slices_of(key))
        return [endpoint_slice for endpoint_slice in slices if endpoint_slice.metadata.deletion_timestamp is None]

    def _forget(self, key: Key) -> None:
        self._triggers.forget(key)
        self._tracker.forget(key)
        self._totals.forget(key)
        self._reporter.forget(key)
        self._repaired_at.pop(key, None)
        self._touched.discard(key)
        self._delayed_until.pop(key, None)

    def _note_failure(self, service: Service, error: Exception) -> None:
        SYNCS_BY_RESULT[WriteResult.ERROR].inc()
        if isinstance(error, ApiError):
            note = f"EndpointSlices could not be written, will retry: {error}"
            self._recorder.record(
                reference_to(SERVICES, service), Severity.WARNING, "FailedToUpdateEndpointSlices", note
            )
