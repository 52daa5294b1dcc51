"""How long requests for one budget gather before the next write: not at all, unless races for it are lost. Pure.

`charges` keeps one per budget while requests for it come. Several webhooks that charge one budget lose races to each
other, and a write that is lost costs the API server as much as one that is stored. Every lost one makes the pause longer
by the time that a write takes, every stored one shorter by a quarter of that: so it settles where one in five is lost,
however many write and however fast the server is, or at the longest pause.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

LONGEST_SECONDS: Final = 0.1
_STORED: Final = 0.25
_MOST_STEPS: Final = 16.0
"""No more than that is remembered of a storm."""


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
        """It took so long."""
        self._steps = max(0.0, self._steps - _STORED)
        self._write_seconds = seconds
