"""Looking at a mount that may hang: in a thread, with a deadline, and never twice at the same time.

A file system whose cluster is away blocks whoever touches it, without end. The thread that hangs is left; until it comes back,
everybody else is told at once.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future

TIMEOUT_SECONDS = 5.0


class VolumeStats:
    def __init__(self, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._under_way: dict[str, Future[os.statvfs_result]] = {}

    def usage(self, path: str) -> os.statvfs_result:
        """Raises OSError for what is wrong there, TimeoutError when nothing is said in time."""
        with self._lock:
            future = self._under_way.get(path)
            if future is None:
                future = self._under_way[path] = Future()
                threading.Thread(target=self._look, args=(path, future), name="look", daemon=True).start()
        return future.result(self._timeout_seconds)

    def _look(self, path: str, future: Future[os.statvfs_result]) -> None:
        try:
            result = os.statvfs(path)
        except OSError as error:
            self._forget(path)
            future.set_exception(error)
        else:
            self._forget(path)
            future.set_result(result)

    def _forget(self, path: str) -> None:
        with self._lock:
            del self._under_way[path]
