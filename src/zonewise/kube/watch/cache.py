"""The watch cache: objects of one kind by key and by index, and handlers that are called on every change.

`informers` feeds a `Reflector` and passes its changes to `publish`. State and indexes change together and between two
awaits, so readers on the event loop never see one without the other, nor a partial list; handlers run after both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic

from zonewise import log
from zonewise.kube.decide.reflector import Reflector, T
from zonewise.objects import Key, key_of
from zonewise.objects.change import Change

_log = log.get_logger(__name__)

Handler = Callable[[Change[T]], None]
Matters = Callable[[T | None, T | None], bool]
"""Whether a reader sees a difference between two states of an object; None stands for its absence."""
IndexFunction = Callable[[T], Iterable[str]]


def matters_by(facts: Callable[[T], object]) -> Matters[T]:
    """Objects that come, go, or change in `facts`."""
    return lambda old, new: old is None or new is None or facts(old) != facts(new)


class Cache(Generic[T]):
    """`name` stands in logs and metrics; `count_error` is called for every handler or index function that raised."""

    def __init__(self, name: str, reflector: Reflector[T], count_error: Callable[[], None]) -> None:
        self.name = name
        self.problem = ""
        """Why the watch does not work now; empty while it does."""
        self._reflector = reflector
        self._count_error = count_error
        self._indexes: dict[str, _Index[T]] = {}
        self._handlers: list[tuple[Handler[T], Matters[T] | None]] = []
        self._synced = asyncio.Event()

    @property
    def synced(self) -> bool:
        """The whole state was read at least once."""
        return self._synced.is_set()

    @property
    def resource_version(self) -> str:
        return self._reflector.resource_version

    def staleness_seconds(self, now: float) -> float:
        """Seconds since the server last sent anything, bookmarks included, by the monotonic clock."""
        heard_at = self._reflector.heard_at
        return float("inf") if heard_at is None else max(0.0, now - heard_at)

    async def wait_synced(self) -> None:
        await self._synced.wait()

    def get(self, key: Key) -> T | None:
        return self._reflector.objects.get(key)

    def __len__(self) -> int:
        return len(self._reflector.objects)

    def __iter__(self) -> Iterator[T]:
        """Over a snapshot: the loop's body may await."""
        return iter(tuple(self._reflector.objects.values()))

    def __contains__(self, key: object) -> bool:
        return key in self._reflector.objects

    def keys(self) -> Sequence[Key]:
        return tuple(self._reflector.objects)

    def by_index(self, name: str, value: str) -> list[T]:
        index = self._indexes.get(name)
        if index is None:
            raise KeyError(f"{self.name} has no index {name!r}, only {sorted(self._indexes)}: add_index first")
        return list(index.entries.get(value, {}).values())

    def add_index(self, name: str, function: IndexFunction[T]) -> None:
        """`function` returns the index values of an object; it must depend on the object alone."""
        present = self._indexes.get(name)
        if present is not None:
            if present.function is not function:
                raise ValueError(f"{self.name} already has another index {name!r}: choose another name")
            return
        index = self._indexes[name] = _Index(name, function)
        for key, viewed in self._reflector.objects.items():
            self._update_index(index, Change(key, None, viewed))

    def on_change(self, handler: Handler[T], *, when: Matters[T] | None = None, from_now_on: bool = False) -> None:
        """Call `handler` for every change that matters, at first for the present objects, as additions.

        With `from_now_on` the present objects are left out.
        """
        self._handlers.append((handler, when))
        for viewed in () if from_now_on else self:
            self._call(handler, when, Change(key_of(viewed), None, viewed))

    def publish(self, changes: Sequence[Change[T]]) -> None:
        """The reflector's state has changed by `changes`: bring indexes, waiters and handlers up to date."""
        for index in self._indexes.values():
            for change in changes:
                self._update_index(index, change)
        if self._reflector.synced and not self._synced.is_set():
            self._synced.set()
            _log.info("cache synced", watch=self.name, objects=len(self), resource_version=self.resource_version)
        for handler, when in tuple(self._handlers):
            for change in changes:
                self._call(handler, when, change)

    def _update_index(self, index: _Index[T], change: Change[T]) -> None:
        if change.old is not None:
            index.remove(change.key, self._values(index, change.old))
        if change.new is not None:
            index.put(change.key, change.new, self._values(index, change.new))

    def _values(self, index: _Index[T], viewed: T) -> Sequence[str]:
        """An object whose index function raises is not in that index; it raises again when the object goes."""
        try:
            return tuple(index.function(viewed))
        except Exception:  # noqa: BLE001 - foreign code; counted and logged, and the watch continues
            self._count_error()
            _log.exception("an index function failed", watch=self.name, index=index.name, key=str(key_of(viewed)))
            return ()

    def _call(self, handler: Handler[T], when: Matters[T] | None, change: Change[T]) -> None:
        try:
            if when is None or when(change.old, change.new):
                handler(change)
        except Exception:  # noqa: BLE001 - as above
            self._count_error()
            _log.exception("a handler failed", watch=self.name, handler=repr(handler), key=str(change.key))


def trouble_of(watches: Iterable[Cache[Any]]) -> str | None:
    """For readiness: the watches that do not work, or are not synced yet, and why."""
    problems = [
        f"{watch.name}: {watch.problem or 'not read yet'}" for watch in watches if watch.problem or not watch.synced
    ]
    return "; ".join(problems) or None


class _Index(Generic[T]):
    def __init__(self, name: str, function: IndexFunction[T]) -> None:
        self.name = name
        self.function = function
        self.entries: dict[str, dict[Key, T]] = {}

    def put(self, key: Key, viewed: T, values: Iterable[str]) -> None:
        for value in values:
            self.entries.setdefault(value, {})[key] = viewed

    def remove(self, key: Key, values: Iterable[str]) -> None:
        for value in values:
            entry = self.entries.get(value, {})
            entry.pop(key, None)
            if not entry:
                self.entries.pop(value, None)
