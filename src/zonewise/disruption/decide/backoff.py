"""How fast a workload's rollout goes: when the next wave may start, and when a refused one is tried again; pure.

`rollouts` and `scaledown` keep one `RolloutBackoff` per workload and tell it what happened; it answers with seconds to wait. A
refusal closes the pod's domain for 1 s, four times as long with each further one, at most 5 min. A server that fails, as
when a webhook is away, closes all of them. When several in a row were refused wherever they were tried, the whole workload
is blocked and asks four times an hour at most: with the first wave's own writes that makes no more than six calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field
from typing import Final

FIRST_SECONDS: Final = 1.0
LONGEST_SECONDS: Final = 300.0
REFUSALS_AN_HOUR: Final = 4
_HOUR_SECONDS: Final = 3600.0
_GROWTH: Final = 4.0
_BLOCKED_AFTER: Final = 3
"""So many refusals in a row, without any pod that could go, mean that the workload is blocked."""
_BLOCKED_SECONDS: Final = _HOUR_SECONDS / REFUSALS_AN_HOUR
_RESTART_SECONDS: Final = 3.0
_OUTAGE_SECONDS: Final = 30.0
"""What is away at the first try is started again, most likely; and what is away at the second still is."""

_MOST_OUTRUN: Final = 5
"""So many times in a row, it is no coincidence: whoever counts sees something that we don't."""

_LEAST_PATIENCE_SECONDS: Final = 1.0
_PATIENCE: Final = 0.5

Place = Hashable
"""Where a pod stands: what a refusal closes."""


def _recent() -> deque[float]:
    return deque(maxlen=REFUSALS_AN_HOUR)


@dataclass(slots=True)
class RolloutBackoff:
    """Times are seconds of one clock that never goes back."""

    _wave_since: float | None = None
    _possible_since: float | None = None
    _failures: dict[Place, int] = field(default_factory=dict)
    _closed_until: dict[Place, float] = field(default_factory=dict)
    _refusals: deque[float] = field(default_factory=_recent)
    _in_a_row: int = 0
    _outrun: int = 0
    _away_until: float = float("-inf")
    _count: int = 0
    _places: dict[Place, int] = field(default_factory=dict)
    _pods: dict[str, int] = field(default_factory=dict)

    def started(self, now: float) -> None:
        """A wave goes out."""
        self._wave_since = now
        self._possible_since = None

    def ended(self) -> None:
        """Nothing of the wave is under way any more: the next need not wait."""
        self._wave_since = None
        self._possible_since = None

    def is_stuck(self, now: float, seconds: float) -> bool:
        """Whether the wave has been under way for longer than that."""
        return self._wave_since is not None and now - self._wave_since >= seconds

    def seconds_to_gather(self, now: float) -> float:
        """How long to wait for the rest of the wave, of which some may go on already, so that the next is whole.

        At most half as long again as the wave took so far: one slow domain doesn't hold the others for ever.
        """
        if self._wave_since is None:
            return 0.0
        if self._possible_since is None:
            self._possible_since = now
        took = self._possible_since - self._wave_since
        patience = max(_LEAST_PATIENCE_SECONDS, _PATIENCE * took)
        return max(0.0, self._possible_since + patience - now)

    def went(self, place: Place) -> None:
        self._in_a_row = self._outrun = 0
        self._failures.pop(place, None)
        self._closed_until.pop(place, None)
        self._places.pop(place, None)

    def refused(self, place: Place, uid: str, now: float, retry_after_seconds: float = 0.0) -> None:
        self._close(place, uid, now, retry_after_seconds)
        self._refusals.append(now)
        self._in_a_row += 1

    def outrun(self, place: Place, uid: str, now: float, retry_after_seconds: float = 0.0) -> None:
        """Our own budgets said no to a mere question: others, as a drain, took meanwhile what we had seen free."""
        self._outrun += 1
        tell = self.refused if self._outrun > _MOST_OUTRUN else self._close
        tell(place, uid, now, retry_after_seconds)

    def _close(self, place: Place, uid: str, now: float, retry_after_seconds: float) -> None:
        failures = self._failures.get(place, 0)
        wait = min(LONGEST_SECONDS, FIRST_SECONDS * _GROWTH ** min(failures, 16))
        self._failures[place] = failures + 1
        self._closed_until[place] = now + max(wait, retry_after_seconds)
        self._came_to(place, uid)

    def failed(self, place: Place, uid: str, now: float, retry_after_seconds: float = 0.0) -> None:
        """Not refused: nobody could be asked. All that were asked at once count as one."""
        self._came_to(place, uid)
        if now < self._away_until:
            return
        wait = _OUTAGE_SECONDS if self._in_a_row else _RESTART_SECONDS
        self._away_until = now + max(wait, retry_after_seconds)
        self._refusals.append(now)
        self._in_a_row += 1

    def _came_to(self, place: Place, uid: str) -> None:
        self._count += 1
        self._places[place] = self._pods[uid] = self._count

    @property
    def is_doubtful(self) -> bool:
        """Nothing has gone since the last refusal: ask before anything is reserved."""
        return self._in_a_row > 0

    def turn(self, place: Place) -> int:
        """When to come to it: after all that were not refused, the one refused longest ago first."""
        return self._places.get(place, 0)

    def turn_of_pod(self, uid: str) -> int:
        """The same among the pods of a place, where it is remembered though others went."""
        return self._pods.get(uid, 0)

    def is_probing(self, place: Place) -> bool:
        """Whether to try only one pod there: the last was refused."""
        return place in self._failures

    def is_closed(self, place: Place, now: float) -> bool:
        return self._opens(place) > now

    def seconds_until_open(self, places: Collection[Place], now: float) -> float | None:
        """Until one of them may be tried; None if one may be now, or there are none."""
        waits = [self._opens(place) - now for place in places]
        return min(waits) if waits and min(waits) > 0 else None

    def _opens(self, place: Place) -> float:
        return max(self._closed_until.get(place, float("-inf")), self._away_until, self._gate())

    def _gate(self) -> float:
        if self._in_a_row < _BLOCKED_AFTER:
            return float("-inf")
        spaced = self._refusals[-1] + _BLOCKED_SECONDS
        if len(self._refusals) < REFUSALS_AN_HOUR:
            return spaced
        return max(spaced, self._refusals[0] + _HOUR_SECONDS)
