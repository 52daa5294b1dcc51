"""Monitor of the leader's lease, for webhooks: whether the published numbers are kept up to date.

A renewed lease changes every few seconds. How long it has not changed is measured by our own clock from the last watch
event: clocks of two machines are never compared, and no call is made. The first version of the lease proves nothing: its
holder may have been dead for hours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from zonewise.kube.clock import boot_seconds
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.objects import LEASES, Key, Lease
from zonewise.objects.change import Change

SILENT_SECONDS: Final = 30.0
"""How long numbers are trusted without a renewal: twice the lease duration, to include a change of leader."""


class LeaderMonitor:
    """`lease` is the key of the leader's Lease."""

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
        self._since = clock()
        self._renewal_seen = False
        self.watch.on_change(self._changed)

    @property
    def undecided(self) -> bool:
        """Just started, without a renewal yet: other replicas know more."""
        return not self._renewal_seen and not self._is_silent

    def trouble(self) -> str:
        """Why the numbers can't be trusted now; empty while they can."""
        if self._is_silent:
            return (
                f"the budget controller is not running: its lease {self._lease} was not renewed for"
                f" {self._silent_seconds_now:.0f} s; see that `zonewise controller --parts disruption` runs"
            )
        if not self._renewal_seen:
            return f"whether the budget controller runs is not known yet, a moment after the start: lease {self._lease}"
        return ""

    @property
    def _is_silent(self) -> bool:
        return self._silent_seconds_now > self._silent_seconds

    @property
    def _silent_seconds_now(self) -> float:
        return self._clock() - self._since

    def _changed(self, change: Change[Lease]) -> None:
        """A lease that was released or deleted is no renewal."""
        if change.old is None or change.new is None or not change.new.spec.holder_identity:
            return
        if change.new.spec.renew_time != change.old.spec.renew_time:
            self._since, self._renewal_seen = self._clock(), True
