"""Locks on volumes: one call at a time per volume in this process, and one process at a time for deletions.

Creating an image twice at the same time is harmless: the second call finds the first's image, or waits for it. Removing
one twice is not: librbd 16 can wait for ever for the lock of an image that another process has removed. So a process
that deletes writes its owner id into the journal entry, and others leave the entry to it until it must be dead.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import ObjectType

ABANDONED_AFTER_SECONDS: Final = 20.0


class OperationPending:
    """One call at a time for a name or an id, as the CSI specification requires; others get ABORTED and retry."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[tuple[str, ObjectType, str]] = set()

    @contextmanager
    def exclusive(self, cluster: str, object_type: ObjectType, name_hash: str) -> Iterator[None]:
        key = (cluster, object_type, name_hash)
        with self._lock:
            if key in self._held:
                raise CsiError(GrpcCode.ABORTED, "another call for this volume or snapshot is in progress: retry")
            self._held.add(key)
        try:
            yield
        finally:
            with self._lock:
                self._held.discard(key)


class VolumeLocks:
    """The owner id of this process, and since when it has seen other owners."""

    def __init__(self, abandoned_after_seconds: float = ABANDONED_AFTER_SECONDS) -> None:
        self.owner = secrets.token_hex(4)
        self._abandoned_after_seconds = abandoned_after_seconds
        self._lock = threading.Lock()
        self._since: dict[tuple[str, str], float] = {}

    def is_abandoned(self, token: str, owner: str) -> bool:
        """Whether another owner has held it for so long that it must be dead."""
        now = time.monotonic()
        with self._lock:
            first = self._since.setdefault((token, owner), now)
        return now - first >= self._abandoned_after_seconds

    def forget(self, token: str) -> None:
        with self._lock:
            for key in [key for key in self._since if key[0] == token]:
                del self._since[key]


class Unfinished:
    """Since when half-created images have been seen. After the patience their creator must be dead."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._since: dict[str, float] = {}

    def require_abandoned(self, name: str) -> None:
        """Raises ABORTED until the patience is over."""
        now = time.monotonic()
        with self._lock:
            first = self._since.setdefault(name, now)
        if now - first < self._patience_seconds:
            raise CsiError(
                GrpcCode.ABORTED,
                f"image {name} is being created by another controller, or its creation was interrupted: retry",
            )
        self.forget(name)

    def forget(self, name: str) -> None:
        with self._lock:
            self._since.pop(name, None)
