"""Whether somebody keeps the published numbers true: the leader's lease, as webhooks watch it.

A lease that is renewed changes every few seconds. How long it has not changed is measured by our own clock, from when
the change was heard: clocks of two machines are never compared, and nothing is asked of the API server. As it is found at
the start a lease tells nothing: its holder may have been dead for hours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from zonewise.kube.controller.elector import boot_seconds
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.objects import LEASES, Key, Lease
from zonewise.objects.change import Change

SILENT_SECONDS: Final = 30.0
"""So long may numbers be trusted that nobody is seen to keep: twice a lease's duration, a change of leader included."""


class LeaderMonitor:
    """`lease` is where the leader holds it."""

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
        self._heard = False
        self.watch.on_change(self._changed)

    @property
    def undecided(self) -> bool:
        """Just started: another replica knows already what this one still listens for."""
        return not self._heard and not self._is_silent

    def trouble(self) -> str:
        """Why the numbers can't be trusted now; empty while they can."""
        if self._is_silent:
            return (
                f"the budget controller is not running: its lease {self._lease} was not renewed for"
                f" {self._silent_seconds_now:.0f} s; see that `zonewise controller --parts disruption` runs"
            )
        if not self._heard:
            return f"whether the budget controller runs is not known yet, a moment after the start: lease {self._lease}"
        return ""

    @property
    def _is_silent(self) -> bool:
        return self._silent_seconds_now > self._silent_seconds

    @property
    def _silent_seconds_now(self) -> float:
        return self._clock() - self._since

    def _changed(self, change: Change[Lease]) -> None:
        """A lease that its holder gave back, or that was deleted, is nobody's renewal."""
        if change.old is None or change.new is None or not change.new.spec.holder_identity:
            return
        if change.new.spec.renew_time != change.old.spec.renew_time:
            self._since, self._heard = self._clock(), True
