"""Leader election on a Lease: a state machine without I/O. `zonewise.kube.controller.elector` performs its steps.

Every write of the lease is a compare-and-set on its resource version, so of two writers one loses. On top of that:

  a leader     acts until `renew_deadline_seconds` after it *sent* its last successful write, by its own clock;
  a candidate  takes a held lease over once it has seen it unchanged for `lease_seconds`, by its own clock.

A candidate sees a write only after the leader has sent it, and `renew_deadline_seconds < lease_seconds`. So the old
leader has stopped before a new one starts, however late messages arrive and however long either is paused. The clock
must count while the machine sleeps (CLOCK_BOOTTIME). Wall clocks are written into the lease for people to read and are
never compared.

Manual edits of the lease are respected: another holder's name ends leadership at the next renewal, clearing the
holder hands over at once. A deleted lease is recreated by its leader; others first wait as if it were held, except
a candidate that never saw it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from zonewise.objects import Lease, LeaseSpec, micro_time

_SPREAD = 0.2
_RELEASED_LEASE_SECONDS = 1


class NotLeader(Exception):  # noqa: N818 - a state of the process, not a fault
    """A write was refused because this process does not, or no longer, hold the lease."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a lease lasts, how long a leader acts without renewing it, and how often it renews."""

    lease_seconds: int = 15
    renew_deadline_seconds: float = 10.0
    retry_seconds: float = 2.0

    def __post_init__(self) -> None:
        longest_pause = self.retry_seconds * (1 + _SPREAD)
        if not 0 < longest_pause < self.renew_deadline_seconds < self.lease_seconds:
            raise ValueError(
                f"lease timing must be retry < renew deadline < lease duration, with {_SPREAD:.0%} to spare for the retry:"
                f" got {self.retry_seconds} s, {self.renew_deadline_seconds} s, {self.lease_seconds} s"
            )


@dataclass(frozen=True, slots=True)
class ElectionWait:
    seconds: float


@dataclass(frozen=True, slots=True)
class Read:
    pass


@dataclass(frozen=True, slots=True)
class Create:
    spec: LeaseSpec


@dataclass(frozen=True, slots=True)
class Replace:
    """Write `spec` if the lease's resource version still is `version`."""

    version: str
    spec: LeaseSpec


Step = ElectionWait | Read | Create | Replace


class Election:
    """One candidate: `next_step` says what to do; `read`, `wrote`, `overtaken` or `failed` take the outcome.

    `identity` must be this process's alone. `spread` in [0, 1) makes candidates ask at different times.
    """

    def __init__(self, identity: str, timing: Timing, spread: float = 0.0) -> None:
        self.identity = identity
        self._timing = timing
        self._pause_seconds = timing.retry_seconds * (1 + _SPREAD * spread)
        self._lease: Lease | None = None
        self._seen_version = ""
        self._seen_at = float("-inf")
        self._up_to_date = False
        self._resting_until = float("-inf")
        self._renewed_at: float | None = None

    @property
    def holder(self) -> str:
        """The holder of the lease as last read; empty if it has none."""
        return _holder(self._lease)

    def remaining_seconds(self, now: float) -> float:
        """How long this process may still act; zero or less when it does not lead."""
        if self._renewed_at is None:
            return 0.0
        return self._renewed_at + self._timing.renew_deadline_seconds - now

    def leads(self, now: float) -> bool:
        return self.remaining_seconds(now) > 0

    def rests(self, now: float) -> bool:
        return now < self._resting_until

    def next_step(self, now: float, wall: datetime) -> Step:
        if self.rests(now):
            return ElectionWait(self._resting_until - now)
        if not self._up_to_date:
            return Read()
        if self._lease is None:
            return Create(self._claim(wall))
        return Replace(self._lease.metadata.resource_version, self._claim(wall))

    def read(self, lease: Lease | None, now: float) -> None:
        """The lease as the server has it; `now` is when the answer was in hand."""
        self._note_version(lease, now)
        if lease is None and self._lease is not None and not self.leads(now) and not self._expired(now):
            self._rest(now)  # deleted, maybe under a leader that still acts: only that leader may recreate it at once
            return
        self._lease = lease
        if self._held_by_other():
            self._renewed_at = None
        if self._held_by_other() and not self._expired(now):
            self._rest(now)
        else:
            self._up_to_date = True
            self._resting_until = now

    def wrote(self, lease: Lease, sent_at: float) -> None:
        """A create or replace succeeded; `sent_at` is a time before the request left this process."""
        self._note_version(lease, sent_at)
        self._lease = lease
        self._renewed_at = sent_at
        self._up_to_date = True
        self._resting_until = sent_at + self._pause_seconds

    def overtaken(self) -> None:
        """Another writer was first, or the lease was deleted: read again at once."""
        self._up_to_date = False

    def failed(self, since: float) -> None:
        """A call begun at `since` failed. If it was a write, it may have been processed."""
        self._rest(since)

    def resign(self) -> None:
        """Stop acting now, even if the lease is still ours."""
        self._renewed_at = None
        self._up_to_date = False
        self._resting_until = float("-inf")

    def release(self, lease: Lease | None, wall: datetime) -> Replace | None:
        """The write that releases the lease, so that the next candidate need not wait; None if it is not ours."""
        if lease is None or _holder(lease) != self.identity:
            return None
        spec = LeaseSpec(
            holder_identity=None,
            lease_duration_seconds=_RELEASED_LEASE_SECONDS,
            acquire_time=lease.spec.acquire_time,
            renew_time=micro_time(wall),
            lease_transitions=lease.spec.lease_transitions,
        )
        return Replace(lease.metadata.resource_version, spec)

    def _note_version(self, lease: Lease | None, now: float) -> None:
        version = lease.metadata.resource_version if lease else ""
        if version != self._seen_version:
            self._seen_version, self._seen_at = version, now

    def _rest(self, now: float) -> None:
        self._up_to_date = False
        self._resting_until = now + self._pause_seconds

    def _held_by_other(self) -> bool:
        return self.holder not in {"", self.identity}

    def _expired(self, now: float) -> bool:
        """A duration shortened by hand does not bind the leader, so candidates must not rely on it."""
        lease_seconds = self._lease.spec.lease_duration_seconds if self._lease else None
        return now - self._seen_at >= max(lease_seconds or 0, self._timing.lease_seconds)

    def _claim(self, wall: datetime) -> LeaseSpec:
        old = self._lease.spec if self._lease else LeaseSpec()
        ours = self.holder == self.identity
        stamp = micro_time(wall)
        if stamp == old.renew_time:  # a write that changes nothing is no sign of life: others would see no new version
            stamp = micro_time(wall + timedelta(microseconds=1))
        return LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=self._timing.lease_seconds,
            acquire_time=old.acquire_time if ours else stamp,
            renew_time=stamp,
            lease_transitions=(old.lease_transitions or 0) + (0 if ours or self._lease is None else 1),
        )


def _holder(lease: Lease | None) -> str:
    return (lease.spec.holder_identity or "") if lease else ""
