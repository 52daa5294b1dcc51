"""Informers: perform each reflector's lists and watches with the client, and publish the changes to its cache.

A program has one `Caches`. All readers of the same selection of a kind share one watch and one copy of its objects.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, overload

from prometheus_client import Counter, Gauge

from zonewise import log
from zonewise.kube.client.client import SILENCE_SECONDS, Client
from zonewise.kube.decide.read_batching import ReadBatching
from zonewise.kube.decide.reflector import List, Reflector, T, Wait, Watch
from zonewise.kube.watch.cache import Cache
from zonewise.kube.wire.codec import EventType
from zonewise.kube.wire.errors import ApiError
from zonewise.objects import HasMetadata, Resource

PAGE_DEADLINE_SECONDS: Final = 120.0
EVENTS_BETWEEN_YIELDS: Final = 64

_WATCH: Final = ("resource", "selection")
OBJECTS = Gauge("zonewise_watch_objects", "Objects in a watch cache", _WATCH)
STALENESS = Gauge("zonewise_watch_staleness_seconds", "Seconds since the server last sent anything", _WATCH)
EVENTS = Counter("zonewise_watch_events", "Watch events received, bookmarks included", (*_WATCH, "type"))
RELISTS = Counter("zonewise_watch_relists", "Times the whole state was asked for again", _WATCH)
RECONNECTS = Counter("zonewise_watch_reconnects", "Lists and watches that ended, by cause", (*_WATCH, "cause"))
HANDLER_ERRORS = Counter("zonewise_watch_handler_errors", "Handlers and index functions that raised", _WATCH)

_log = log.get_logger(__name__)

Kept = TypeVar("Kept", bound=HasMetadata)
"""What a reader keeps of an object."""


@dataclass(frozen=True, slots=True)
class _Selection(Generic[T]):
    resource: Resource[T]
    namespace: str = ""
    selector: str = ""
    fields: str = ""
    keep: Callable[[T], HasMetadata] | None = None

    @property
    def labels(self) -> tuple[str, str]:
        limits = {"namespace": self.namespace, "selector": self.selector, "fields": self.fields}
        return str(self.resource), " ".join(f"{name}={value}" for name, value in limits.items() if value)

    def __str__(self) -> str:
        return " ".join(label for label in self.labels if label)


class Caches:
    """`async with Caches(client) as caches: pods = caches.of(PODS)`, or `run` as a task of the program's group."""

    def __init__(
        self,
        client: Client,
        *,
        silence_seconds: float = SILENCE_SECONDS,
        page_size: int | None = None,
        longest_rest_seconds: float = 0.0,
    ) -> None:
        """`page_size`: read the initial state in pages of this size, not as a stream.

        `longest_rest_seconds`: longest delay of changes while many arrive (see `read_batching`).
        """
        self._client = client
        self._longest_rest_seconds = longest_rest_seconds
        self._silence_seconds = silence_seconds
        self._page_size = page_size
        self._informers: dict[_Selection[Any], _Informer[Any]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @overload
    def of(
        self, resource: Resource[T], namespace: str = "", selector: str = "", fields: str = "", keep: None = None
    ) -> Cache[T]: ...

    @overload
    def of(
        self,
        resource: Resource[T],
        namespace: str = "",
        selector: str = "",
        fields: str = "",
        *,
        keep: Callable[[T], Kept],
    ) -> Cache[Kept]: ...

    def of(
        self,
        resource: Resource[Any],
        namespace: str = "",
        selector: str = "",
        fields: str = "",
        keep: Callable[[Any], Any] | None = None,
    ) -> Cache[Any]:
        """The cache of this selection; its watch starts at once, or with `run`.

        `keep` returns what to keep of an object, for readers of few fields in large clusters: its key, and its uid if
        the reader must know that an object was replaced by another of the same name.
        """
        selection = _Selection(resource, namespace, selector, fields, keep)
        informer = self._informers.get(selection)
        if informer is None:
            informer = self._informers[selection] = _Informer(
                self._client,
                selection,
                self._silence_seconds,
                self._page_size,
                ReadBatching(self._longest_rest_seconds),
            )
            self._start(informer)
        return informer.cache

    async def wait_synced(self) -> None:
        for informer in tuple(self._informers.values()):
            await informer.cache.wait_synced()

    async def run(self) -> None:
        """Until cancelled; may then be run again and continues where it was."""
        async with self:
            await asyncio.Event().wait()

    async def __aenter__(self) -> Self:
        self._group = await asyncio.TaskGroup().__aenter__()
        for informer in self._informers.values():
            self._start(informer)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._group is not None
        group, self._group = self._group, None
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        # A cancellation may come from a crashed watch, which the group raises; other errors of the body pass unchanged.
        if isinstance(error, asyncio.CancelledError):
            await group.__aexit__(kind, error, trace)
        else:
            await group.__aexit__(None, None, None)

    def _start(self, informer: _Informer[Any]) -> None:
        if self._group is not None:
            self._tasks.append(self._group.create_task(informer.run(), name=f"watch {informer.selection}"))


class _Informer(Generic[T]):
    def __init__(
        self,
        client: Client,
        selection: _Selection[T],
        silence_seconds: float,
        page_size: int | None,
        batching: ReadBatching,
    ) -> None:
        labels = selection.labels
        self.selection = selection
        self._client = client
        self._silence_seconds = silence_seconds
        self._reflector: Reflector[T] = Reflector(page_size, selection.keep)
        self.cache = Cache(str(selection), self._reflector, HANDLER_ERRORS.labels(*labels).inc)
        self._events = {kind: EVENTS.labels(*labels, kind) for kind in EventType}
        self._relists = RELISTS.labels(*labels)
        self._batching = batching
        self._problem = ""

    async def run(self) -> None:
        labels = self.selection.labels
        OBJECTS.labels(*labels).set_function(lambda: len(self.cache))
        STALENESS.labels(*labels).set_function(lambda: self.cache.staleness_seconds(time.monotonic()))
        try:
            while True:
                await self._step()
        finally:
            OBJECTS.remove(*labels)
            STALENESS.remove(*labels)

    async def _step(self) -> None:
        match self._reflector.next(time.monotonic(), _chance()):
            case Wait(seconds):
                await self._wait(seconds)
            case command:
                await self._attempt(command)

    async def _wait(self, seconds: float) -> None:
        if self._problem != self.cache.problem:
            self.cache.problem = self._problem
            _log.warning("watch interrupted", watch=self.cache.name, error=self._problem, retry_in_seconds=seconds)
        await asyncio.sleep(seconds)

    async def _attempt(self, command: List | Watch) -> None:
        if self.cache.synced and (isinstance(command, List) or command.initial_events):
            self._relists.inc()
        try:
            if isinstance(command, List):
                await self._list(command)
            else:
                await self._watch(command)
        except ApiError as error:
            self._ended(str(error), error.kind)
            self._reflector.failed(error, time.monotonic(), _chance())

    def _ended(self, problem: str, cause: str) -> None:
        self._problem = problem
        RECONNECTS.labels(*self.selection.labels, cause).inc()

    async def _list(self, command: List) -> None:
        selection = self.selection
        version = ""
        pages = self._client.pages(
            selection.resource,
            selection.namespace,
            selector=selection.selector,
            fields=selection.fields,
            resource_version=command.resource_version,
            page_size=command.page_size,
            deadline_seconds=PAGE_DEADLINE_SECONDS,
        )
        async with aclosing(pages):
            async for page in pages:
                self._reflector.page(page.items, time.monotonic())
                version = page.resource_version
        changes = self._reflector.listed(version)
        self._note_recovered()
        self.cache.publish(changes)

    async def _watch(self, command: Watch) -> None:
        selection = self.selection
        events = self._client.watch(
            selection.resource,
            selection.namespace,
            selector=selection.selector,
            fields=selection.fields,
            resource_version=command.resource_version,
            initial_events=command.initial_events,
            timeout_seconds=command.timeout_seconds,
            silence_seconds=self._silence_seconds,
            on_open=self._opened,
            rest_after=self._rest_after,
        )
        received = 0
        async with aclosing(events):
            async for event in events:
                self._events[event.type].inc()
                changes = self._reflector.watched(event, time.monotonic())
                self._note_recovered()
                self.cache.publish(changes)
                received += 1
                if received % EVENTS_BETWEEN_YIELDS == 0:
                    await asyncio.sleep(0)
        self._ended("the server closed the watch", "closed")
        self._reflector.closed(time.monotonic(), _chance())

    def _rest_after(self, events: int) -> float:
        """The initial state is read without rests."""
        return self._batching.rest_after(events) if self.cache.synced else 0.0

    def _opened(self) -> None:
        self._reflector.opened(time.monotonic())
        self._note_recovered()

    def _note_recovered(self) -> None:
        """Not while a new initial state is being read: until it is complete, readers see the old one."""
        if self.cache.problem and self._reflector.follows:
            self.cache.problem = ""
            _log.info("watch works again", watch=self.cache.name)


def _chance() -> float:
    return random.random()  # noqa: S311 - spreads load, no secret
