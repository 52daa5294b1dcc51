"""Delay between two writes of a contended budget, during which requests gather; zero without conflicts. Pure.

`webhook.charger` keeps one per budget while requests come. Several webhooks that charge one budget conflict, and a write
that conflicts costs the API server as much as one that is stored. Every conflict makes the delay longer by the time of one
write, every stored write shorter by a quarter of that. So it settles where one write in five conflicts, however many
webhooks write and however fast the server is, or at the longest delay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LONGEST_SECONDS: Final = 0.1
_STORED: Final = 0.25
_MOST_STEPS: Final = 16.0
"""Limits how long a storm of conflicts has an effect."""


@dataclass(slots=True)
class ContentionDelay:
    _steps: float = 0.0
    _write_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        return min(LONGEST_SECONDS, self._steps * self._write_seconds)

    def lost(self) -> None:
        self._steps = min(_MOST_STEPS, self._steps + 1.0)

    def stored(self, seconds: float) -> None:
        """A write was stored within `seconds`."""
        self._steps = max(0.0, self._steps - _STORED)
        self._write_seconds = seconds
