"""Whether somebody keeps the published numbers true: the leader's lease, as webhooks watch it.

A lease that is renewed changes every few seconds. How long it has not changed is measured by our own clock, from when
the change was heard: clocks of two machines are never compared, and nothing is asked of the API server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from zonewise.kube.cache import Cache
from zonewise.kube.informers import Caches
from zonewise.kube.lease import boot_seconds
from zonewise.kube.reflector import Change
from zonewise.objects import LEASES, Key, Lease

LEASE: Final = "zonewise-disruption"
SILENT_SECONDS: Final = 30.0
"""So long may numbers be trusted that nobody is seen to keep: twice a lease's duration, a change of leader included."""


class LeaderWatch:
    """`lease` is where the leader holds it. Before it is heard of, the time since we listen counts."""

    def __init__(
        self,
        caches: Caches,
        lease: Key,
        *,
        silent_seconds: float = SILENT_SECONDS,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        self.watch: Cache[Lease] = caches.of(LEASES, lease.namespace, fields=f"metadata.name={lease.name}")
        self._lease = lease
        self._silent_seconds = silent_seconds
        self._clock = clock
        self._heard_at = clock()
        self.watch.on_change(self._heard)

    def trouble(self) -> str:
        """Why the numbers can't be trusted now; empty while they can."""
        silent_seconds = self._clock() - self._heard_at
        if silent_seconds <= self._silent_seconds:
            return ""
        return (
            f"the budget controller is not running: its lease {self._lease} was not renewed for"
            f" {silent_seconds:.0f} s; see that `zonewise controller --parts disruption` runs"
        )

    def _heard(self, change: Change[Lease]) -> None:
        """A lease that its holder gave back, or that was deleted, is nobody's renewal."""
        if change.new is not None and change.new.spec.holder_identity:
            self._heard_at = self._clock()
