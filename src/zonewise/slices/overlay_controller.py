"""Keeps hints right while nobody writes: relabelled nodes, changed CPU, annotations, drains.

The webhook answers when the stock controller writes a slice; this controller writes the slices whose answer changed
meanwhile, and puts right what a webhook decided from a cache that lagged behind. It writes hints only, under a field
manager by which the webhook knows to let it pass. Run it under a lease; several webhooks may run beside it.
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
"""How long a webhook may still speak for a policy that a Service no longer has."""

_STAYS_SECONDS: Final = 10.0
"""How long hints that were taken off again and again must stay to be believed."""

_UNDONE: Final = RoutingReason(
    RoutingCode.NEEDS_PROXY,
    "the stock controller takes the hints off again and no webhook puts them back: see that `zonewise webhook` runs and"
    " that API servers reach it",
)

_WRITES: Final = Counter("zonewise_overlay_writes", "Slices written because the answer changed while nobody wrote")


class _Done(NamedTuple):
    """How many slices were written, when to come back for those that have to wait, and whether hints don't stay."""

    written: int = 0
    again_after_seconds: float | None = None
    undone: bool = False


class OverlayReports(Protocol):
    """Tells people how a Service is routed, and why."""

    async def report(
        self,
        service: Service,
        decisions: Mapping[str, Decision],
        expressions: Mapping[str, HintsExpression],
        cluster: RoutingNodes,
    ) -> None: ...

    def forget(self, service: Key) -> None: ...


class OverlayController:
    """`run` works until cancelled and may be run again; Services that change meanwhile are kept in mind."""

    def __init__(
        self,
        client: Client,
        sources: SliceInformers,
        reporter: OverlayReports,
        *,
        hints: HintsForm = HintsForm.STABLE,
        workers: int = 4,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client.named(OVERLAY_FIELD_MANAGER)
        self.sources = sources
        self._reporter = reporter
        self._hints = hints
        self._clock = clock
        self._repairs = RepairBackoff()
        self._queue: WorkQueue[Key] = WorkQueue("overlay")
        self._controller = Controller("overlay", self._queue, self.reconcile, workers=workers)
        sources.on_service_dirty(lambda key, _cause: self._queue.add(key))

    async def run(self) -> None:
        await self._controller.run()

    async def reconcile(self, key: Key) -> float | None:
        service = self.sources.services.get(key)
        if service is None or service.metadata.deletion_timestamp:
            self._forget(key)
            return None  # its slices go with it
        slices = [found for found in self.sources.slices_of(key) if is_stock(found)]
        self._repairs.forget_all_but(key, {key_of(found) for found in slices})
        cluster, drained = self.sources.cluster(), self.sources.drained_zones(service)
        answer = overlay(service, slices, cluster, hints=self._hints, drained=drained)
        done = _Done()
        if not answer.is_silent or ROUTING_STATE in service.metadata.annotations:
            done = await self._write(key, answer, slices)
            if done.written and answer.is_silent:
                return RECHECK_SECONDS  # the note that we hinted it stays until the hints are seen to be gone
        expressions = _without_effect(answer.expressions) if done.undone else answer.expressions
        await self._reporter.report(service, answer.decisions, expressions, cluster)
        return done.again_after_seconds

    def _forget(self, key: Key) -> None:
        self._repairs.forget_all_but(key, ())
        self._reporter.forget(key)

    async def _write(self, key: Key, answer: Overlay, slices: Iterable[EndpointSlice]) -> _Done:
        now = self._clock()
        undone = False
        waits: list[float] = []
        pending: list[Awaitable[None]] = []
        for found in slices:
            if operations := answer.operations_on(found):
                hints = answer.hints[key_of(found)]
                undone = undone or self._repairs.is_undone(key, key_of(found), hints, now)
                if wait := self._repairs.wait_seconds(key, key_of(found), hints, now):
                    waits.append(wait)
                else:
                    pending.append(self._put(key, found, hints, operations))
        for outcome in await asyncio.gather(*pending, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        return _Done(len(pending), min(waits, default=_STAYS_SECONDS if undone else None), undone)

    async def _put(self, key: Key, found: EndpointSlice, hints: Hints, operations: Operations) -> None:
        """Only onto the version that was read: endpoints are named by their place."""
        version = found.metadata.resource_version
        same = {"op": "replace", "path": pointer("metadata", "resourceVersion"), "value": version}
        patch = JsonPatch((same, *operations))
        try:
            await self._client.patch(ENDPOINT_SLICES, found.metadata.name, patch, found.metadata.namespace)
        except NotFound:
            return  # deleted since the cache heard of it
        except Invalid as error:
            if error.causes:
                raise
            # Not that a field is wrong: the patch does not fit a newer version, which comes to the same as a conflict.
            raise Conflict(error.message, action=error.action) from error
        self._repairs.note(key, key_of(found), hints, self._clock())
        _WRITES.inc()


def _without_effect(expressions: Mapping[str, HintsExpression]) -> dict[str, HintsExpression]:
    return {
        family: replace(expression, losses=(*expression.losses, _UNDONE)) for family, expression in expressions.items()
    }
