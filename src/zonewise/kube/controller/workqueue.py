"""Work queue of keys, between a change in a cache and its reconcile.

`Backlog` decides and is pure: the time is an argument. `WorkQueue` gives it a clock, lets workers wait for a key and
counts. Keys, not objects, are queued: a key added ten times is worked on once, and its reconcile reads the cache afresh.

A key that is added while a worker holds it runs again once that worker is done, behind the keys that wait already:
no two workers ever hold one key, and a noisy key can't starve the others. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from zonewise.kube import metrics

K = TypeVar("K", bound=Hashable)


class QueueShutDown(Exception):  # noqa: N818 - a state of the queue, not a fault
    """The queue was shut down and everything in it has been handed out."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a failing key waits: `first_seconds`, doubled with every further failure, at most `longest_seconds`."""

    first_seconds: float = 0.005
    longest_seconds: float = 60.0

    def delay_seconds(self, failures: int) -> float:
        doublings = min(failures, 64)  # a key that fails for years must not overflow a float
        return float(min(self.first_seconds * 2.0**doublings, self.longest_seconds))


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


class WorkQueue(Generic[K]):
    """The backlog with a clock, waiting workers and metrics. A worker calls `get`, and `done` in any case."""

    def __init__(
        self, name: str, *, backoff: Backoff | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.name = name
        self._backoff = backoff or Backoff()
        self._clock = clock
        self._backlog: Backlog[K] = Backlog()
        self._waiting_workers: deque[asyncio.Future[None]] = deque()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_due = 0.0
        self._drained = asyncio.Event()
        self._metrics = metrics.QueueMetrics(
            name,
            depth=lambda: len(self._backlog),
            unfinished_seconds=lambda: self._backlog.unfinished_seconds(self._clock()),
            longest_running_seconds=lambda: self._backlog.longest_running_seconds(self._clock()),
        )

    def __len__(self) -> int:
        return len(self._backlog)

    def add(self, key: K) -> None:
        if self._backlog.add(key, self._clock()):
            self._metrics.adds.inc()
            self._wake_worker()

    def add_after(self, key: K, seconds: float) -> None:
        if seconds <= 0:
            self.add(key)
            return
        self._backlog.add_later(key, self._clock() + seconds)
        self._set_alarm()

    def add_rate_limited(self, key: K) -> float:
        """Add a key that failed once its back-off is over; how long that is."""
        seconds = self._backoff.delay_seconds(self._backlog.fail(key))
        self._metrics.retries.inc()
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: K) -> None:
        self._backlog.forget(key)

    def failures(self, key: K) -> int:
        """How often in a row the key has failed."""
        return self._backlog.failures(key)

    async def get(self) -> K:
        """The key that waited longest; raises `QueueShutDown` when there will be none."""
        while (taken := self._backlog.take(self._clock())) is None:
            if self._backlog.exhausted:
                raise QueueShutDown(f"the queue {self.name} is shut down")
            await self._wait_for_key()
        self._metrics.queue_seconds.observe(taken.waited_seconds)
        return taken.key

    def done(self, key: K) -> None:
        worked_seconds = self._backlog.done(key, self._clock())
        self._metrics.work_seconds.observe(worked_seconds)
        self._wake_worker()
        self._note_shut_down()

    def shut_down(self) -> None:
        """Take nothing more in; workers get what is left and are then sent home."""
        self._backlog.shut_down()
        self._set_alarm()
        self._note_shut_down()

    async def drained(self) -> None:
        """Wait until, after `shut_down`, the last worker is done with the last key."""
        await self._drained.wait()

    async def _wait_for_key(self) -> None:
        worker = asyncio.get_running_loop().create_future()
        self._waiting_workers.append(worker)
        try:
            await worker
        except asyncio.CancelledError:
            if not worker.cancelled():  # woken and cancelled at once: another worker must take the key
                self._wake_worker()
            raise

    def _wake_worker(self) -> None:
        """Wake the worker that waited longest if there is a key; should it find none, it waits again."""
        if len(self._backlog):
            self._wake_next()

    def _wake_next(self) -> bool:
        while self._waiting_workers:
            worker = self._waiting_workers.popleft()
            if not worker.done():  # a cancelled worker no longer waits
                worker.set_result(None)
                return True
        return False

    def _note_shut_down(self) -> None:
        if self._backlog.exhausted:
            while self._wake_next():
                pass
        if self._backlog.drained:
            self._drained.set()

    def _set_alarm(self) -> None:
        due = self._backlog.next_due()
        if self._alarm is not None and due == self._alarm_due:
            return
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if due is not None:
            self._alarm = asyncio.get_running_loop().call_later(due - self._clock(), self._add_due)
            self._alarm_due = due

    def _add_due(self) -> None:
        self._alarm = None
        for _ in range(self._backlog.add_due(self._clock())):
            self._metrics.adds.inc()
            self._wake_worker()
        self._set_alarm()
