"""Backoff for hints that another writer removes again and again. The time is an argument.

The overlay controller asks before each write. With a working webhook its writes stay; without one the stock controller
removes the hints a second later, every time. The first repair is immediate, because a webhook may only have lagged;
each further repair waits longer, so that the two controllers do not overwrite each other in a loop and move traffic.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from zonewise.objects import Key
from zonewise.slices.decide.overlay import Hints

_PAUSES_SECONDS: Final = (0.0, 2.0, 10.0, 60.0)
_LONGEST_SECONDS: Final = 300.0
_UNDONE_AFTER: Final = 3
"""From so many repairs of the same hints on, a lagging webhook is ruled out."""


@dataclass(frozen=True, slots=True)
class _LastWrite:
    hints: Hints
    at: float
    times: int

    def is_repeated(self, hints: Hints, now: float) -> bool:
        return self.hints == hints and now - self.at <= 2 * _LONGEST_SECONDS

    @property
    def pause_seconds(self) -> float:
        return _PAUSES_SECONDS[self.times - 1] if self.times <= len(_PAUSES_SECONDS) else _LONGEST_SECONDS


class RepairBackoff:
    """Remembers the last write, by Service and slice."""

    def __init__(self) -> None:
        self._last_writes: dict[Key, dict[Key, _LastWrite]] = {}

    def wait_seconds(self, service: Key, slice_key: Key, hints: Hints, now: float) -> float:
        """Seconds to wait before writing these hints; hints that differ from the last write do not wait."""
        last = self._last_writes.get(service, {}).get(slice_key)
        if last is None or last.hints != hints:
            return 0.0
        return max(0.0, last.at + last.pause_seconds - now)

    def is_undone(self, service: Key, slice_key: Key, hints: Hints, now: float) -> bool:
        """Whether the hints, which the slice lacks now, were removed repeatedly."""
        last = self._last_writes.get(service, {}).get(slice_key)
        return last is not None and last.is_repeated(hints, now) and last.times >= _UNDONE_AFTER

    def note(self, service: Key, slice_key: Key, hints: Hints, now: float) -> None:
        of_service = self._last_writes.setdefault(service, {})
        last = of_service.get(slice_key)
        of_service[slice_key] = _LastWrite(hints, now, last.times + 1 if last and last.is_repeated(hints, now) else 1)

    def forget_all_but(self, service: Key, slices: Collection[Key]) -> None:
        """Forgets slices that no longer exist; all of them if `slices` is empty."""
        remaining = {key: last for key, last in self._last_writes.pop(service, {}).items() if key in slices}
        if remaining:
            self._last_writes[service] = remaining
