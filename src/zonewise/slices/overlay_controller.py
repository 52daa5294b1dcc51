"""Overlay controller: corrects hints when nodes, annotations or drains change and no slice is being written.

The webhook sets hints when the stock controller writes a slice. This controller writes the slices whose hints changed
since, and corrects what a webhook decided from a stale cache. It writes only hints, under a field manager that the
webhook lets pass. Run it under a lease; several webhooks may run beside it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from prometheus_client import Counter

from zonewise.api.names import OVERLAY_FIELD_MANAGER, ROUTING_STATE
from zonewise.kube.client.client import Client
from zonewise.kube.controller.controller import Controller
from zonewise.kube.controller.workqueue import WorkQueue
from zonewise.kube.wire.errors import Conflict, Invalid, NotFound
from zonewise.kube.wire.patch import JsonPatch, pointer
from zonewise.objects import ENDPOINT_SLICES, EndpointSlice, Key, Service, key_of
from zonewise.routing import Decision, HintsExpression, HintsForm, RoutingCode, RoutingNodes, RoutingReason
from zonewise.slices.decide.overlay import Hints, Operations, Overlay, is_stock, overlay
from zonewise.slices.decide.repair_backoff import RepairBackoff
from zonewise.slices.informers import SliceInformers

RECHECK_SECONDS: Final = 2.0
"""How long a webhook may still decide by a policy that the Service no longer has."""

_STAYS_SECONDS: Final = 10.0
"""How long hints that were removed repeatedly must stay before they count as effective."""

_HINTS_REMOVED: Final = RoutingReason(
    RoutingCode.NEEDS_PROXY,
    "the stock controller removes the hints again and no webhook restores them: check that `zonewise webhook` runs and"
    " that API servers reach it",
)

_WRITES: Final = Counter("zonewise_overlay_writes", "Slices written because their hints changed")


class _WriteOutcome(NamedTuple):
    """The number of slices written, the delay until those in backoff are due, and whether hints were removed again."""

    slices_written: int = 0
    again_after_seconds: float | None = None
    removed_again: bool = False


class OverlayReports(Protocol):
    """Reports how a Service is routed, and why."""

    async def report(
        self,
        service: Service,
        decisions: Mapping[str, Decision],
        expressions: Mapping[str, HintsExpression],
        cluster: RoutingNodes,
    ) -> None: ...

    def forget(self, service: Key) -> None: ...


class OverlayController:
    """`run` works until cancelled and may be called again; changes in between stay queued."""

    def __init__(
        self,
        client: Client,
        informers: SliceInformers,
        reporter: OverlayReports,
        *,
        hints: HintsForm = HintsForm.STABLE,
        workers: int = 4,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client.named(OVERLAY_FIELD_MANAGER)
        self.informers = informers
        self._reporter = reporter
        self._hints = hints
        self._clock = clock
        self._repairs = RepairBackoff()
        self._queue: WorkQueue[Key] = WorkQueue("overlay")
        self._controller = Controller("overlay", self._queue, self.reconcile, workers=workers)
        informers.on_service_dirty(lambda key, _cause: self._queue.add(key))

    async def run(self) -> None:
        await self._controller.run()

    async def reconcile(self, key: Key) -> float | None:
        service = self.informers.services.get(key)
        if service is None or service.metadata.deletion_timestamp:
            self._forget(key)
            return None  # garbage collection deletes its slices
        slices = [endpoint_slice for endpoint_slice in self.informers.slices_of(key) if is_stock(endpoint_slice)]
        self._repairs.forget_all_but(key, set(map(key_of, slices)))
        cluster, drained = self.informers.cluster(), self.informers.drained_zones(service)
        answer = overlay(service, slices, cluster, hints=self._hints, drained=drained)
        outcome = _WriteOutcome()
        if not answer.is_silent or ROUTING_STATE in service.metadata.annotations:
            outcome = await self._write(key, answer, slices)
            if outcome.slices_written and answer.is_silent:
                return RECHECK_SECONDS  # keep the state annotation until the hints are gone
        expressions = _without_effect(answer.expressions) if outcome.removed_again else answer.expressions
        await self._reporter.report(service, answer.decisions, expressions, cluster)
        return outcome.again_after_seconds

    def _forget(self, key: Key) -> None:
        self._repairs.forget_all_but(key, ())
        self._reporter.forget(key)

    async def _write(self, key: Key, answer: Overlay, slices: Iterable[EndpointSlice]) -> _WriteOutcome:
        now = self._clock()
        removed_again = False
        delays: list[float] = []
        pending: list[Awaitable[None]] = []
        for endpoint_slice in slices:
            if operations := answer.operations_on(endpoint_slice):
                hints = answer.hints[key_of(endpoint_slice)]
                removed_again = removed_again or self._repairs.is_undone(key, key_of(endpoint_slice), hints, now)
                if delay := self._repairs.wait_seconds(key, key_of(endpoint_slice), hints, now):
                    delays.append(delay)
                else:
                    pending.append(self._put(key, endpoint_slice, hints, operations))
        for outcome in await asyncio.gather(*pending, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        return _WriteOutcome(
            len(pending), min(delays, default=_STAYS_SECONDS if removed_again else None), removed_again
        )

    async def _put(self, key: Key, endpoint_slice: EndpointSlice, hints: Hints, operations: Operations) -> None:
        """Patches only the version that was read: the patch addresses endpoints by index."""
        version = endpoint_slice.metadata.resource_version
        version_check = {"op": "replace", "path": pointer("metadata", "resourceVersion"), "value": version}
        patch = JsonPatch((version_check, *operations))
        try:
            await self._client.patch(
                ENDPOINT_SLICES, endpoint_slice.metadata.name, patch, endpoint_slice.metadata.namespace
            )
        except NotFound:
            return  # deleted, and the cache is stale
        except Invalid as error:
            if error.causes:
                raise
            # No field is invalid: the patch does not fit a newer version, which is a conflict.
            raise Conflict(error.message, action=error.action) from error
        self._repairs.note(key, key_of(endpoint_slice), hints, self._clock())
        _WRITES.inc()


def _without_effect(expressions: Mapping[str, HintsExpression]) -> dict[str, HintsExpression]:
    return {
        family: replace(expression, losses=(*expression.losses, _HINTS_REMOVED))
        for family, expression in expressions.items()
    }
