"""Backoff of a workload's rollout or scale-down: when the next wave may start, and when to retry a refused pod. Pure.

`controller.rollout` and `controller.scaledown` keep one `RolloutBackoff` per workload. A refusal closes the pod's domain
for 1 s, four times as long with each further one, at most 5 min. A server error, as when a webhook is down, closes all
domains. After several refusals in a row, in whatever domains, the whole workload is blocked and retries at most four times
an hour: with the first wave's own writes that makes no more than six calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Final

from zonewise.disruption.decide.wave import WaveLimits

STUCK_SECONDS: Final = 60.0
"""How long a wave may take before an event tells what it waits for."""
FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 300.0
REFUSALS_AN_HOUR: Final = 4
_HOUR_SECONDS: Final = 3600.0
_GROWTH: Final = 4.0
_BLOCKED_AFTER: Final = 3
"""After so many refusals in a row the workload is blocked."""
_BLOCKED_SECONDS: Final = _HOUR_SECONDS / REFUSALS_AN_HOUR
_RESTART_SECONDS: Final = 3.0
_OUTAGE_SECONDS: Final = 30.0
"""A webhook that is down at the first try most likely restarts; one that is down at the second stays down longer."""

_MOST_LOST_RACES: Final = 5
"""After so many times in a row it is no race: the webhooks see something that the leader does not."""

_LEAST_PATIENCE_SECONDS: Final = 1.0
_PATIENCE: Final = 0.5

Domain = Hashable
"""What a refusal closes."""


def _recent() -> deque[float]:
    return deque(maxlen=REFUSALS_AN_HOUR)


@dataclass(slots=True)
class RolloutBackoff:
    """Times are seconds of one monotonic clock."""

    _wave_since: float | None = None
    _possible_since: float | None = None
    _failures: dict[Domain, int] = field(default_factory=dict)
    _closed_until: dict[Domain, float] = field(default_factory=dict)
    _refusals: deque[float] = field(default_factory=_recent)
    _refused_in_a_row: int = 0
    _lost_races: int = 0
    _down_until: float = float("-inf")
    _count: int = 0
    _domain_ranks: dict[Domain, int] = field(default_factory=dict)
    _pod_ranks: dict[str, int] = field(default_factory=dict)

    def started(self, now: float) -> None:
        """A wave begins."""
        self._wave_since = now
        self._possible_since = None

    def ended(self) -> None:
        """The wave is complete: the next need not wait."""
        self._wave_since = None
        self._possible_since = None

    def is_stuck(self, now: float) -> bool:
        return self._wave_since is not None and now - self._wave_since >= STUCK_SECONDS

    def seconds_to_gather(self, now: float) -> float:
        """How long to wait for the rest of the wave although some pods could go already, so that waves stay together.

        At most half as long again as the wave took so far: one slow domain must not hold the others for ever.
        """
        if self._wave_since is None:
            return 0.0
        if self._possible_since is None:
            self._possible_since = now
        took = self._possible_since - self._wave_since
        patience = max(_LEAST_PATIENCE_SECONDS, _PATIENCE * took)
        return max(0.0, self._possible_since + patience - now)

    def went(self, domain: Domain) -> None:
        self._refused_in_a_row = self._lost_races = 0
        self._failures.pop(domain, None)
        self._closed_until.pop(domain, None)
        self._domain_ranks.pop(domain, None)

    def refused(self, domain: Domain, uid: str, now: float, retry_after_seconds: float = 0.0) -> None:
        self._close(domain, uid, now, retry_after_seconds)
        self._refusals.append(now)
        self._refused_in_a_row += 1

    def lost_race(self, domain: Domain, uid: str, now: float, retry_after_seconds: float = 0.0) -> None:
        """Our own budgets refused a dry run: another client, such as a drain, was charged in the meantime."""
        self._lost_races += 1
        note = self.refused if self._lost_races > _MOST_LOST_RACES else self._close
        note(domain, uid, now, retry_after_seconds)

    def _close(self, domain: Domain, uid: str, now: float, retry_after_seconds: float) -> None:
        failures = self._failures.get(domain, 0)
        wait = min(LONGEST_SECONDS, FIRST_SECONDS * _GROWTH ** min(failures, 16))
        self._failures[domain] = failures + 1
        self._closed_until[domain] = now + max(wait, retry_after_seconds)
        self._rank_last(domain, uid)

    def failed(self, domain: Domain, uid: str, now: float, retry_after_seconds: float = 0.0) -> None:
        """A server error, which is no refusal. All calls that fail together count once."""
        self._rank_last(domain, uid)
        if now < self._down_until:
            return
        wait = _OUTAGE_SECONDS if self._refused_in_a_row else _RESTART_SECONDS
        self._down_until = now + max(wait, retry_after_seconds)
        self._refusals.append(now)
        self._refused_in_a_row += 1

    def _rank_last(self, domain: Domain, uid: str) -> None:
        self._count += 1
        self._domain_ranks[domain] = self._pod_ranks[uid] = self._count

    @property
    def is_doubtful(self) -> bool:
        """No pod has gone since the last refusal: try a dry run before reserving anything."""
        return self._refused_in_a_row > 0

    def refusal_rank(self, domain: Domain) -> int:
        """The order of a domain: after all that were not refused, the one refused longest ago first."""
        return self._domain_ranks.get(domain, 0)

    def pod_refusal_rank(self, uid: str) -> int:
        """The order of a pod in its domain; it is kept even if other pods went."""
        return self._pod_ranks.get(uid, 0)

    def is_probing(self, domain: Domain) -> bool:
        """Whether to try only one pod of the domain: the last was refused."""
        return domain in self._failures

    def is_closed(self, domain: Domain, now: float) -> bool:
        return self._opens(domain) > now

    def seconds_until_open(self, domains: Collection[Domain], now: float) -> float | None:
        """Until one of them opens; None if one is open, or there are none."""
        waits = [self._opens(domain) - now for domain in domains]
        return min(waits) if waits and min(waits) > 0 else None

    def seconds_until_retry(self, domains: Collection[Domain], now: float) -> float:
        """The longest wait without an event: no event tells that a refusal is over."""
        return min(self.seconds_until_open(domains, now) or STUCK_SECONDS, STUCK_SECONDS)

    def wave_limits(self, most: int | None, now: float) -> WaveLimits:
        return WaveLimits(most, lambda domain: self.is_closed(domain, now), self.is_probing, self.refusal_rank)

    def _opens(self, domain: Domain) -> float:
        return max(self._closed_until.get(domain, float("-inf")), self._down_until, self._unblocks())

    def _unblocks(self) -> float:
        if self._refused_in_a_row < _BLOCKED_AFTER:
            return float("-inf")
        spaced = self._refusals[-1] + _BLOCKED_SECONDS
        if len(self._refusals) < REFUSALS_AN_HOUR:
            return spaced
        return max(spaced, self._refusals[0] + _HOUR_SECONDS)
