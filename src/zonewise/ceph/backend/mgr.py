"""Commands of the Ceph manager, with a timeout of our own.

librados has a timeout, but a reply after it is written into freed memory (seen in 16.2, where it aborts the process).
So commands are sent through a connection without timeouts, in a thread that is left behind when it takes too long. The
number of such threads is limited: beyond it calls fail at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

from zonewise.ceph.decide.errors import CsiError, GrpcCode

MAX_WAITING: Final = 64

Reply = tuple[int, bytes, str]


class CephMgr:
    def __init__(self, connect: Callable[[], Any], timeout_seconds: float) -> None:
        self._connect = connect
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._handle: Any = None
        self._waiting = 0

    def command(self, text: str, input_bytes: bytes, *, timeout: int) -> Reply:  # noqa: ARG002 - signature of librados
        handle = self._enter()
        future: Future[Reply] = Future()
        threading.Thread(target=self._send, args=(handle, text, input_bytes, future), name="mgr", daemon=True).start()
        try:
            return future.result(self._timeout_seconds)
        except TimeoutError:
            raise CsiError(
                GrpcCode.UNAVAILABLE,
                f"the Ceph manager did not answer within {self._timeout_seconds:g} s: check `ceph mgr stat`",
            ) from None

    def close(self) -> None:
        """Keeps the connection open while a call is waiting on it."""
        with self._lock:
            if self._handle is not None and not self._waiting:
                self._handle.shutdown()
                self._handle = None

    def _enter(self) -> Any:
        with self._lock:
            if self._waiting >= MAX_WAITING:
                raise CsiError(
                    GrpcCode.UNAVAILABLE,
                    f"{self._waiting} calls are waiting for the Ceph manager already: check `ceph mgr stat`",
                )
            if self._handle is None:
                self._handle = self._connect()
            self._waiting += 1
            return self._handle

    def _send(self, handle: Any, text: str, input_bytes: bytes, future: Future[Reply]) -> None:
        try:
            reply = handle.mgr_command(text, input_bytes)
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            self._leave()
            future.set_exception(error)
        else:
            self._leave()
            future.set_result(reply)

    def _leave(self) -> None:
        with self._lock:
            self._waiting -= 1
