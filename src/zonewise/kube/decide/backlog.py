"""Backlog of a work queue: which key is worked on next. The time is an argument.

`zonewise.kube.controller.workqueue` performs it. Keys, not objects, are queued: a key added ten times is worked on
once, and its reconcile reads the cache afresh.

A key that is added while a worker holds it runs again once that worker is done, behind the keys that wait already:
no two workers ever hold one key, and a noisy key can't starve the others.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K", bound=Hashable)


class QueuedKey(NamedTuple, Generic[K]):
    """A key in a worker's hands, and how long it had waited for one."""

    key: K
    waited_seconds: float


class Backlog(Generic[K]):
    """Which key is worked on next. Times are seconds of one clock that never goes back.

    Three containers, after client-go's work queue:
      `_dirty`       every key that needs work, with the time since when;
      `_processing`  every key in a worker's hands, with the time since when;
      `_ready`       the keys in `_dirty` and not in `_processing`, in the order they will be handed out.
    And beside them `_due`, the keys that are to be added later, with the time when.
    """

    def __init__(self) -> None:
        self._dirty: dict[K, float] = {}
        self._processing: dict[K, float] = {}
        self._ready: deque[K] = deque()
        self._due: dict[K, float] = {}
        self._alarms: list[tuple[float, int, K]] = []
        self._order = itertools.count()
        self._failures: dict[K, int] = {}
        self._shut_down = False

    def __len__(self) -> int:
        """How many keys wait for a worker; delayed ones do not count."""
        return len(self._ready)

    @property
    def exhausted(self) -> bool:
        """No key will ever be handed out again."""
        return self._shut_down and not self._dirty

    @property
    def drained(self) -> bool:
        return self.exhausted and not self._processing

    def add(self, key: K, now: float) -> bool:
        """Whether the key is new to the backlog; one that already waits keeps its place."""
        if self._shut_down or key in self._dirty:
            return False
        self._dirty[key] = now
        if key not in self._processing:
            self._ready.append(key)
        return True

    def add_later(self, key: K, due: float) -> None:
        """Of several delayed adds of a key the earliest counts; the others are forgotten."""
        if self._shut_down or due >= self._due.get(key, float("inf")):
            return
        self._due[key] = due
        heapq.heappush(self._alarms, (due, next(self._order), key))

    def add_due(self, now: float) -> int:
        """Add the keys whose time has come; how many of them were new."""
        added = 0
        while self._alarms and self._alarms[0][0] <= now:
            due, _, key = heapq.heappop(self._alarms)
            if self._due.get(key) == due:
                del self._due[key]
                added += self.add(key, now)
        return added

    def next_due(self) -> float | None:
        """When the next delayed add comes due; an alarm that an earlier one replaced may ring for nothing."""
        return self._alarms[0][0] if self._alarms else None

    def take(self, now: float) -> QueuedKey[K] | None:
        if not self._ready:
            return None
        key = self._ready.popleft()
        waited = now - self._dirty.pop(key)
        self._processing[key] = now
        return QueuedKey(key, waited)

    def done(self, key: K, now: float) -> float:
        """The worker gives the key back; how long it held it."""
        started = self._processing.pop(key)
        if key in self._dirty:
            self._ready.append(key)
        return now - started

    def fail(self, key: K) -> int:
        """Count one more failure in a row; how many there were before it."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        return failures

    def forget(self, key: K) -> None:
        """The key works again: its next failure is the first."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        return self._failures.get(key, 0)

    def shut_down(self) -> None:
        """Take nothing more in: delayed adds are dropped, what is dirty is still handed out."""
        self._shut_down = True
        self._due.clear()
        self._alarms.clear()

    def unfinished_seconds(self, now: float) -> float:
        return sum(now - started for started in self._processing.values())

    def longest_running_seconds(self, now: float) -> float:
        return max((now - started for started in self._processing.values()), default=0.0)
