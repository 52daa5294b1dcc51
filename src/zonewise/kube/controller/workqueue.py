"""Work queue of keys, between a change in a cache and its reconcile.

`zonewise.kube.decide.backlog` decides which key is next. `WorkQueue` gives it a clock, lets workers wait for a key and
counts. Everything runs on one event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

from zonewise.kube import metrics
from zonewise.kube.decide.backlog import Backlog, K


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
