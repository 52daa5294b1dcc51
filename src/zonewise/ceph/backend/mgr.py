"""Commands of Ceph's manager, each with a time limit of our own.

librados has one, but when it runs out the answer that comes late is written into memory that was given back (seen in 16.2, where
it aborts the process). So the manager is asked through a connection without limits, in a thread that is left behind when it takes
too long. While a manager is away only so many may wait: who comes then is told at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from zonewise.ceph.decide.errors import CsiError, GrpcCode

MOST_WAITING = 64

Answer = tuple[int, bytes, str]


class CephMgr:
    def __init__(self, connect: Callable[[], Any], timeout_seconds: float) -> None:
        self._connect = connect
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._handle: Any = None
        self._waiting = 0

    def command(self, text: str, input_bytes: bytes, *, timeout: int) -> Answer:  # noqa: ARG002 - as librados has it
        handle = self._enter()
        future: Future[Answer] = Future()
        threading.Thread(target=self._ask, args=(handle, text, input_bytes, future), name="mgr", daemon=True).start()
        try:
            return future.result(self._timeout_seconds)
        except TimeoutError:
            raise CsiError(
                GrpcCode.UNAVAILABLE, f"Ceph's manager did not answer within {self._timeout_seconds:g} s"
            ) from None

    def close(self) -> None:
        """Unless somebody still waits: what he waits for would be pulled away under him."""
        with self._lock:
            if self._handle is not None and not self._waiting:
                self._handle.shutdown()
                self._handle = None

    def _enter(self) -> Any:
        with self._lock:
            if self._waiting >= MOST_WAITING:
                raise CsiError(GrpcCode.UNAVAILABLE, f"{self._waiting} calls wait for Ceph's manager already")
            if self._handle is None:
                self._handle = self._connect()
            self._waiting += 1
            return self._handle

    def _ask(self, handle: Any, text: str, input_bytes: bytes, future: Future[Answer]) -> None:
        try:
            answer = handle.mgr_command(text, input_bytes)
        except BaseException as error:  # noqa: BLE001 - it is raised again where somebody waits
            self._leave()
            future.set_exception(error)
        else:
            self._leave()
            future.set_result(answer)

    def _leave(self) -> None:
        with self._lock:
            self._waiting -= 1
