"""Event recorder: writes Kubernetes Events, as `kubectl describe` and `kubectl get events` show them.

`Recorder.record` only queues and returns: it never blocks and never fails. In the background each series that
`zonewise.kube.decide.event_correlator` keeps is written as one events.k8s.io/v1 Event, whose count is patched as it
repeats. Events that the server refuses are dropped; while it is away they wait, up to a limit.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

import msgspec

from zonewise import log
from zonewise.kube import metrics
from zonewise.kube.client.client import Client
from zonewise.kube.controller.workqueue import Backoff, WorkQueue
from zonewise.kube.decide.event_correlator import Correlator, Dropped, EventLimits, EventSubject, Series, SeriesKey
from zonewise.kube.wire.errors import (
    AlreadyExists,
    ApiError,
    DeadlineExceeded,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
)
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import EVENTS, HasMetadata, ObjectReference, Resource, micro_time
from zonewise.objects.events import Severity

__all__ = ["EventLimits", "Recorder", "Severity", "reference_to"]

_log = log.get_logger(__name__)

_PASSING = (Unreachable, DeadlineExceeded, ServerError, TooManyRequests, Unauthorized)
_EVENTS_PER_SECOND = 10
_EVENTS_AT_ONCE = 25
_WRITE_SECONDS = 10.0
_BACKOFF = Backoff(first_seconds=0.5, longest_seconds=30.0)

# What the server allows, in bytes: pkg/apis/core/validation/events.go
_LONGEST_WORD = 128
_LONGEST_NOTE = 1024


def reference_to(resource: Resource[Any], viewed: HasMetadata) -> ObjectReference:
    """Names the very object, by its uid, so that `kubectl describe` shows the event there."""
    metadata = viewed.metadata
    return ObjectReference(
        api_version=resource.api_version,
        kind=resource.kind,
        namespace=metadata.namespace,
        name=metadata.name,
        uid=metadata.uid,
    )


class Recorder:
    """`async with Recorder(client, "zonewise.dev/controller", identity) as recorder: recorder.record(...)`."""

    def __init__(
        self,
        client: Client,
        controller: str,
        instance: str,
        *,
        limits: EventLimits | None = None,
        repeat_seconds: float = 5.0,
        drain_seconds: float = 5.0,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client.limited("events", _EVENTS_PER_SECOND, _EVENTS_AT_ONCE)
        self._controller = controller
        self._instance = _cut(instance, _LONGEST_WORD)
        self._correlator = Correlator(unique=uuid.uuid4().hex[:12], limits=limits)
        self._queue: WorkQueue[SeriesKey] = WorkQueue("events", backoff=_BACKOFF)
        self._repeat_seconds = repeat_seconds
        self._drain_seconds = drain_seconds
        self._wall = wall
        self._group = asyncio.TaskGroup()
        self._trouble = ""

    def record(
        self, regarding: ObjectReference, severity: Severity, reason: str, note: str, *, action: str = ""
    ) -> None:
        """`reason` says why, in CamelCase and for machines; `note` says it to people; `action` is what was tried."""
        subject = EventSubject(regarding, severity, _cut(reason, _LONGEST_WORD), _cut(action or reason, _LONGEST_WORD))
        match self._correlator.observe(subject, note, time.monotonic(), self._wall()):
            case Dropped() as reason_dropped:
                metrics.EVENTS.labels(reason_dropped).inc()
            case series:
                self._queue.add_after(series.key, self._repeat_seconds if series.written else 0)

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        self._writing = self._group.create_task(self._write_forever(), name="events")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Write what is left, for a bounded time."""
        self._writing.cancel()
        try:
            # A cancellation may come from a writer that crashed, which the group knows; other errors pass as they are.
            if isinstance(error, asyncio.CancelledError):
                await self._group.__aexit__(kind, error, trace)
            else:
                await self._group.__aexit__(None, None, None)
        finally:
            self._queue.shut_down()
            await self._drain()

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._drain_seconds):
                for key in list(self._correlator.unwritten()):
                    await self._write(key)
        except (ApiError, TimeoutError) as error:
            left = len(list(self._correlator.unwritten()))
            metrics.EVENTS.labels("lost").inc(left)
            _log.warning("events lost at shutdown", count=left, error=str(error) or "no time left")

    async def _write_forever(self) -> None:
        while True:
            key = await self._queue.get()
            try:
                await self._write(key)
            except _PASSING as error:
                self._queue.add_rate_limited(key)
                self._note_trouble(str(error))
            else:
                self._queue.forget(key)
                self._note_trouble("")
            finally:
                self._queue.done(key)

    async def _write(self, key: SeriesKey) -> None:
        """Tell the server of all occurrences so far. Passing troubles are raised, a refusal ends the series."""
        series = self._correlator.get(key)
        if series is None or series.written == series.count:
            return
        try:
            await self._create(series)
            await self._raise_count(series)
        except _PASSING:
            raise
        except ApiError as error:
            self._correlator.discard(key)
            metrics.EVENTS.labels("refused").inc()
            _log.warning("event refused", reason=series.subject.reason, note=series.note, error=str(error))

    async def _create(self, series: Series) -> None:
        """Once per event. Where an answer was lost the event may already be there."""
        if series.written:
            return
        count = series.count
        try:
            await self._client.create(EVENTS, self._body(series), deadline_seconds=_WRITE_SECONDS)
        except AlreadyExists:
            count = 1
        series.written = count
        metrics.EVENTS.labels("created").inc()

    async def _raise_count(self, series: Series) -> None:
        count = series.count
        if series.written == count:
            return
        patch = MergePatch({"series": _series(series)})
        try:
            await self._client.patch(EVENTS, series.name, patch, _namespace(series), deadline_seconds=_WRITE_SECONDS)
        except NotFound:  # the server deletes events after an hour, or as configured
            self._correlator.begin_anew(series, self._wall())
            await self._create(series)
            return
        series.written = count
        metrics.EVENTS.labels("repeated").inc()

    def _body(self, series: Series) -> dict[str, Any]:
        subject = series.subject
        body = {
            "metadata": {"name": series.name, "namespace": _namespace(series)},
            "eventTime": micro_time(series.first),
            "type": subject.severity,
            "reason": subject.reason,
            "action": subject.action,
            "note": _cut(series.note, _LONGEST_NOTE),
            "regarding": msgspec.to_builtins(subject.regarding),
            "reportingController": self._controller,
            "reportingInstance": self._instance,
        }
        return body | ({"series": _series(series)} if series.count > 1 else {})

    def _note_trouble(self, trouble: str) -> None:
        if trouble and not self._trouble:
            _log.warning("events wait for the server", error=trouble)
        self._trouble = trouble


def _series(series: Series) -> dict[str, Any]:
    return {"count": series.count, "lastObservedTime": micro_time(series.last)}


def _namespace(series: Series) -> str:
    """Events of cluster-scoped objects live in `default`, where kubectl reads them."""
    return series.subject.regarding.namespace or "default"


def _cut(text: str, longest_bytes: int) -> str:
    encoded = text.encode(errors="replace")  # half a surrogate pair must not fail the caller
    if len(encoded) <= longest_bytes:
        return encoded.decode()
    return encoded[: longest_bytes - 3].decode(errors="ignore") + "..."
