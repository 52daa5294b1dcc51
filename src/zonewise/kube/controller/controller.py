"""The reconcile loop: workers take keys from a queue and reconcile them.

This is the one place that catches everything: a reconcile that fails is counted, logged and tried again after its
back-off, and no key's failure stops another's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Generic

from zonewise import log
from zonewise.kube import metrics
from zonewise.kube.controller.workqueue import QueueShutDown, WorkQueue
from zonewise.kube.decide.backlog import K
from zonewise.kube.decide.election import NotLeader
from zonewise.kube.wire.errors import ApiError, Conflict

_log = log.get_logger(__name__)

Reconcile = Callable[[K], Awaitable[float | None]]
"""Makes the cluster as the key's object says, reading the cache afresh; may ask to be called again after a while."""


class Result(StrEnum):
    SUCCESS = "success"
    REQUEUED = "requeued"
    OVERTAKEN = "overtaken"
    ERROR = "error"


class Controller(Generic[K]):
    """`run` ends when its queue is shut down and drained, or at once when cancelled; it may then be run again."""

    def __init__(self, name: str, queue: WorkQueue[K], reconcile: Reconcile[K], *, workers: int = 4) -> None:
        self.name = name
        self._queue = queue
        self._reconcile = reconcile
        self._workers = workers
        self._failing: set[K] = set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self._workers):
                group.create_task(self._work(), name=f"{self.name}-{number}")

    async def _work(self) -> None:
        while True:
            try:
                key = await self._queue.get()
            except QueueShutDown:
                return
            await self._process(key)

    async def _process(self, key: K) -> None:
        try:
            with metrics.RECONCILE_SECONDS.labels(self.name).time():
                result = await self._attempt(key)
            metrics.RECONCILES.labels(self.name, result).inc()
        except asyncio.CancelledError:
            self._queue.add(key)  # the next leader finishes the reconcile
            raise
        finally:
            self._queue.done(key)

    async def _attempt(self, key: K) -> Result:
        try:
            again_after_seconds = await self._reconcile(key)
        except Exception as error:  # noqa: BLE001 - the one catch-all
            return self._retry(key, error)
        self._note_success(key)
        if again_after_seconds is None:
            return Result.SUCCESS
        self._queue.add_after(key, again_after_seconds)
        return Result.REQUEUED

    def _retry(self, key: K, error: Exception) -> Result:
        retry_seconds = self._queue.add_rate_limited(key)
        if isinstance(error, Conflict | NotLeader):  # the world moved on; the next try reads it afresh
            return Result.OVERTAKEN
        self._failing.add(key)
        _log.warning(
            "reconcile failed",
            controller=self.name,
            key=str(key),
            error=str(error) or type(error).__name__,
            failures=self._queue.failures(key),
            retry_seconds=retry_seconds,
            exc_info=None if isinstance(error, ApiError) else error,  # a traceback helps only where the fault is ours
        )
        return Result.ERROR

    def _note_success(self, key: K) -> None:
        self._queue.forget(key)
        if key in self._failing:
            self._failing.remove(key)
            _log.info("reconcile recovered", controller=self.name, key=str(key))
