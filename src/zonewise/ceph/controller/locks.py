"""Who may work on a volume: one call at a time in this process, and for removals one process at a time.

Making an image twice at once does no harm, the second finds the first, or waits for it. Removing one twice at once does: librbd 16 can
wait for ever for the lock of an image that another process has removed meanwhile. So whoever deletes writes its own mark into the
journal with the state, and others leave it to them until they must be dead.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import ObjectType

ABANDONED_AFTER_SECONDS = 20.0


class OperationPending:
    """One call at a time for a name or an id, as the specification asks; the others get ABORTED and come again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: set[tuple[str, ObjectType, str]] = set()

    @contextmanager
    def alone(self, cluster: str, thing: ObjectType, name_hash: str) -> Iterator[None]:
        key = (cluster, thing, name_hash)
        with self._lock:
            if key in self._held:
                raise CsiError(GrpcCode.ABORTED, "another call for the same volume or snapshot is under way")
            self._held.add(key)
        try:
            yield
        finally:
            with self._lock:
                self._held.discard(key)


class VolumeLocks:
    """This process's mark, and since when it has seen marks of others."""

    def __init__(self, abandoned_after_seconds: float = ABANDONED_AFTER_SECONDS) -> None:
        self.mark = secrets.token_hex(4)
        self._abandoned_after_seconds = abandoned_after_seconds
        self._lock = threading.Lock()
        self._since: dict[tuple[str, str], float] = {}

    def is_abandoned(self, token: str, mark: str) -> bool:
        """Whether somebody else's mark has stood there for so long that nobody can be at it."""
        now = time.monotonic()
        with self._lock:
            first = self._since.setdefault((token, mark), now)
        return now - first >= self._abandoned_after_seconds

    def settled(self, token: str) -> None:
        with self._lock:
            for key in [key for key in self._since if key[0] == token]:
                del self._since[key]


class Unfinished:
    """Since when images have been seen that are neither there nor not there: long enough, and their maker must be dead."""

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds
        self._lock = threading.Lock()
        self._since: dict[str, float] = {}

    def wait_for(self, name: str) -> None:
        """ABORTED until the patience is over."""
        now = time.monotonic()
        with self._lock:
            first = self._since.setdefault(name, now)
        if now - first < self._patience_seconds:
            raise CsiError(
                GrpcCode.ABORTED, f"image {name} is being made by another controller, or one died while making it"
            )
        self.done(name)

    def done(self, name: str) -> None:
        with self._lock:
            self._since.pop(name, None)
