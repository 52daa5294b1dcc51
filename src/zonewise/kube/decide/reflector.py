"""The list/watch protocol as a state machine without I/O. `informers` performs its commands, `cache` publishes changes.

Ask `next` for a command, perform it, and feed the results: `page` and `listed`, or `opened`, `watched` and `closed`, or
`failed`. The rules:

- List first: as a stream where the server supports it (KEP-3157), else, or if the reader asks for them, in pages. Pages
  are less work for both sides if there is much, but the server holds each page in memory.
- The list is collected aside. Readers keep the old objects until it is complete. Then it replaces them in one step, and
  the difference is returned as changes.
- Then watch from the last resource version; bookmarks advance it. A watch that the server ends is resumed at once,
  unless it ended within a second.
- Retry after a jittered, exponential wait, which starts over after a healthy period.
- Transient errors (no answer, too busy, not allowed) keep the resource version; other watch errors force a relist. So
  does the error of a watch that sent nothing, not even bookmarks: a server behind our version accepts it and is silent.
- The first 410 in a row shortens the wait, because the server answers again. The longest wait and the relist after it
  take less than 30 s, after which a leader that sees no changes exits.
- Resource versions never decrease: a new list must not be older than what was seen. Where the server can't promise
  that, ask for a consistent read. It is authoritative even if it is older (an etcd restored from a backup).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from zonewise.kube.wire.codec import EventType, WatchEvent
from zonewise.kube.wire.errors import (
    ApiError,
    BadRequest,
    DeadlineExceeded,
    Forbidden,
    Gone,
    Invalid,
    ServerTimeout,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    Unreachable,
)
from zonewise.objects import HasMetadata, Key, key_of
from zonewise.objects.change import Change

T = TypeVar("T", bound=HasMetadata)

PAGE_SIZE = 500
WATCH_SECONDS = 300
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 15.0
LONGEST_RETRY_AFTER_SECONDS = 30.0
RELIST_WITHIN_SECONDS = 4.0
HEALTHY_SECONDS = 60.0
SHORTEST_WATCH_SECONDS = 1.0
BOOKMARKS_DUE_SECONDS = 75.0
UNFINISHED_STREAMS_ALLOWED = 2


@dataclass(frozen=True, slots=True)
class List:
    """Fetch everything: not older than `resource_version`, or the most recent when that is empty."""

    resource_version: str
    page_size: int


@dataclass(frozen=True, slots=True)
class Watch:
    """Follow changes after `resource_version`; with initial events, first everything as by `List`."""

    resource_version: str
    initial_events: bool
    timeout_seconds: int


@dataclass(frozen=True, slots=True)
class Wait:
    seconds: float


Command = List | Watch | Wait

_TRANSIENT = (Unreachable, DeadlineExceeded, TooManyRequests, Unavailable, ServerTimeout, Unauthorized, Forbidden)


class StaleList(ApiError):  # noqa: N818 - named like the errors of `errors`
    kind = "stale list"


class Reflector(Generic[T]):
    """Time is any clock that only goes forward; a chance is a random number in [0, 1)."""

    def __init__(self, page_size: int | None = None, keep: Callable[[T], Any] | None = None) -> None:
        """`page_size`: list in pages of this size, not as a stream. `keep`: what to keep of an object, if not all."""
        self._keep = keep or (lambda viewed: viewed)
        self.objects: dict[Key, T] = {}
        self.resource_version = ""
        self.synced = False
        self.heard_at: float | None = None
        self._page_size = page_size or PAGE_SIZE
        self._request: List | Watch = List("", self._page_size)
        self._requested_at = 0.0
        self._opened_at = float("inf")
        self._collected: dict[Key, T] = {}
        self._has_place = False
        self._streams_lists = page_size is None
        self._unfinished_streams = 0
        self._pages_expired = False
        self._needs_consistent_read = False
        self._failures = 0
        self._expired = False
        self._healthy_since: float | None = None
        self._wait_seconds = 0.0

    def next(self, now: float, chance: float) -> Command:
        if self._wait_seconds:
            wait, self._wait_seconds = Wait(self._wait_seconds), 0.0
            return wait
        self._request = self._plan(chance)
        self._requested_at = now
        self._opened_at = float("inf")
        self._collected = {}
        return self._request

    def opened(self, now: float) -> None:
        """The server has accepted the watch."""
        self._note_activity(now)
        self._opened_at = now

    def page(self, objects: Iterable[T], now: float) -> None:
        self._note_activity(now)
        for viewed in objects:
            self._collect(viewed)

    def listed(self, resource_version: str) -> Sequence[Change[T]]:
        """All pages came; `resource_version` is the list's."""
        return self._replace(resource_version)

    def watched(self, event: WatchEvent[T], now: float) -> Sequence[Change[T]]:
        self._note_activity(now)
        viewed = event.object
        if event.type is EventType.BOOKMARK:
            return self._bookmarked(viewed.metadata.resource_version, ends_list=event.end_of_initial_events)
        if event.type is EventType.DELETED:
            return self._removed(viewed)
        return self._put(viewed)

    def closed(self, now: float, chance: float) -> None:
        """The server ended the watch in good order."""
        if self._has_place and now - self._requested_at >= SHORTEST_WATCH_SECONDS:
            return
        self._unfinished_streams += self._is_streaming_list
        self._back_off(now, chance)

    def failed(self, error: ApiError, now: float, chance: float) -> None:
        if self._is_streaming_list and isinstance(error, BadRequest | Invalid):
            self._streams_lists = False
            return
        self._unfinished_streams += self._is_streaming_list
        if self._has_place:
            self._has_place = isinstance(error, _TRANSIENT) and not self._had_no_events(now)
        else:
            self._change_list_mode(error)
        self._back_off(now, chance, error.retry_after_seconds, is_expired=isinstance(error, Gone))

    @property
    def follows(self) -> bool:
        """The state is whole, and what is asked for are changes after it."""
        return self._has_place

    @property
    def _is_streaming_list(self) -> bool:
        return not self._has_place and isinstance(self._request, Watch)

    def _had_no_events(self, now: float) -> bool:
        return self.heard_at == self._opened_at and now - self._opened_at >= BOOKMARKS_DUE_SECONDS

    def _plan(self, chance: float) -> List | Watch:
        timeout_seconds = int(WATCH_SECONDS * (1 + chance))
        if self._has_place:
            return Watch(self.resource_version, initial_events=False, timeout_seconds=timeout_seconds)
        oldest = "" if self._needs_consistent_read else self.resource_version
        if self._pages_expired:
            return List(oldest, page_size=0)
        if self._streams_lists and self._unfinished_streams < UNFINISHED_STREAMS_ALLOWED:
            return Watch(oldest, initial_events=True, timeout_seconds=timeout_seconds)
        return List(oldest, self._page_size)

    def _note_activity(self, now: float) -> None:
        self.heard_at = now
        if self._healthy_since is None:
            self._healthy_since = now

    def _collect(self, viewed: T) -> None:
        """An object we already hold is kept as it is: a relist then costs no second copy of everything."""
        key = key_of(viewed)
        known, kept = self.objects.get(key), self._keep(viewed)
        self._collected[key] = known if known is not None and known == kept else kept

    def _put(self, viewed: T) -> Sequence[Change[T]]:
        if not self._has_place:
            self._collect(viewed)
            return ()
        key = key_of(viewed)
        old = self.objects.get(key)
        new = self.objects[key] = self._keep(viewed)
        self.resource_version = viewed.metadata.resource_version
        return (Change(key, old, new),)

    def _removed(self, viewed: T) -> Sequence[Change[T]]:
        key = key_of(viewed)
        if not self._has_place:
            self._collected.pop(key, None)
            return ()
        self.resource_version = viewed.metadata.resource_version
        old = self.objects.pop(key, None)
        return () if old is None else (Change(key, old, None),)

    def _bookmarked(self, resource_version: str, *, ends_list: bool) -> Sequence[Change[T]]:
        if not self._has_place:
            return self._replace(resource_version) if ends_list else ()
        if not _is_older(resource_version, self.resource_version):
            self.resource_version = resource_version
        return ()

    def _replace(self, resource_version: str) -> Sequence[Change[T]]:
        if self._request.resource_version and _is_older(resource_version, self.resource_version):
            raise StaleList(f"the server listed at {resource_version}, after it had shown {self.resource_version}")
        before, self.objects = self.objects, self._collected
        self._collected = {}
        self.resource_version = resource_version
        self.synced = self._has_place = True
        self._needs_consistent_read = self._pages_expired = False
        self._unfinished_streams = 0
        return _difference(before, self.objects)

    def _change_list_mode(self, error: ApiError) -> None:
        if isinstance(error, Gone) and self._collected:
            self._pages_expired = True
        elif isinstance(error, Gone | StaleList) or _says_too_large(error):
            self._needs_consistent_read = True

    def _back_off(self, now: float, chance: float, at_least_seconds: float = 0.0, *, is_expired: bool = False) -> None:
        """The clients of one server expire together, so the wait spreads their relists. Repeated 410s back off."""
        if self._healthy_since is not None and now - self._healthy_since >= HEALTHY_SECONDS:
            self._failures = 0
        self._healthy_since = None
        longest = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2**self._failures)
        self._failures += longest < LONGEST_WAIT_SECONDS
        if is_expired and not self._expired:
            longest = min(longest, RELIST_WITHIN_SECONDS)
        self._expired = is_expired
        self._wait_seconds = min(at_least_seconds, LONGEST_RETRY_AFTER_SECONDS) + longest * (1 + chance) / 2


def _difference(before: Mapping[Key, T], after: Mapping[Key, T]) -> list[Change[T]]:
    """The changes a watch would have reported: removals first; an object recreated under its name is two changes."""
    removed = [Change(key, old, None) for key, old in before.items() if not _is_same(old, after.get(key))]
    put = []
    for key, new in after.items():
        old = before.get(key)
        if new is not old:
            put.append(Change(key, old if _is_same(new, old) else None, new))
    return removed + put


def _is_same(viewed: T, other: T | None) -> bool:
    return other is not None and viewed.metadata.uid == other.metadata.uid


def _is_older(version: str, than: str) -> bool:
    """Resource versions of stock API servers are ordered integers (KEP-5504); others can't be compared."""
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)


def _says_too_large(error: ApiError) -> bool:
    return any(cause.reason == "ResourceVersionTooLarge" for cause in error.causes)
