"""Volume statistics with statvfs(2), in a thread with a timeout, one at a time per path.

A file system whose cluster is unreachable blocks every call without end. A blocked thread is left behind; until it
returns, other callers wait for its result, up to the timeout.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from typing import Final

TIMEOUT_SECONDS: Final = 5.0


class VolumeStats:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[str, Future[os.statvfs_result]] = {}

    def usage(self, path: str) -> os.statvfs_result:
        """Raises OSError for a broken file system, TimeoutError for one that does not answer."""
        with self._lock:
            future = self._pending.get(path)
            if future is None:
                future = self._pending[path] = Future()
                threading.Thread(target=self._statvfs, args=(path, future), name="statvfs", daemon=True).start()
        return future.result(TIMEOUT_SECONDS)

    def _statvfs(self, path: str, future: Future[os.statvfs_result]) -> None:
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
            del self._pending[path]
