"""How often the same hints are put back where somebody takes them off again. Pure: the time is an argument.

The overlay controller asks before it writes. With a webhook at work nobody undoes what it writes; without one the stock
controller does, a second later, every time. The first repair is made at once, as a webhook may only have lagged behind;
after that each waits longer than the last, so that the two do not write in circles and traffic is not moved about.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from zonewise.objects import Key
from zonewise.slices.decide.overlay import Hints

_PAUSES_SECONDS: Final = (0.0, 2.0, 10.0, 60.0)
_LONGEST_SECONDS: Final = 300.0
_OFTEN: Final = 3
"""A webhook that lags behind does not need so many repairs of the same."""


@dataclass(frozen=True, slots=True)
class _Written:
    hints: Hints
    at: float
    times: int

    def is_repeated(self, hints: Hints, now: float) -> bool:
        return self.hints == hints and now - self.at <= 2 * _LONGEST_SECONDS

    @property
    def pause_seconds(self) -> float:
        return _PAUSES_SECONDS[self.times - 1] if self.times <= len(_PAUSES_SECONDS) else _LONGEST_SECONDS


class RepairBackoff:
    """What was written last, by Service and slice."""

    def __init__(self) -> None:
        self._written: dict[Key, dict[Key, _Written]] = {}

    def wait_seconds(self, service: Key, found: Key, hints: Hints, now: float) -> float:
        """How long to wait before these hints are written; another answer than the last is written at once."""
        last = self._written.get(service, {}).get(found)
        if last is None or last.hints != hints:
            return 0.0
        return max(0.0, last.at + last.pause_seconds - now)

    def is_undone(self, service: Key, found: Key, hints: Hints, now: float) -> bool:
        """Of a slice without these hints: whether they are taken off again and again."""
        last = self._written.get(service, {}).get(found)
        return last is not None and last.is_repeated(hints, now) and last.times >= _OFTEN

    def note(self, service: Key, found: Key, hints: Hints, now: float) -> None:
        of_service = self._written.setdefault(service, {})
        last = of_service.get(found)
        of_service[found] = _Written(hints, now, last.times + 1 if last and last.is_repeated(hints, now) else 1)

    def forget_all_but(self, service: Key, slices: Collection[Key]) -> None:
        """The others are gone; without slices the Service is, too."""
        left = {key: last for key, last in self._written.pop(service, {}).items() if key in slices}
        if left:
            self._written[service] = left
