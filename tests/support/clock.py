"""A wall clock that a test sets forward and back while programs run; their monotonic clock goes on."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from support.preload import compile_preload

HOUR_SECONDS: Final = 3600
DAY_SECONDS: Final = 24 * HOUR_SECONDS
SHIFTS: Final = (HOUR_SECONDS, -HOUR_SECONDS, DAY_SECONDS, -DAY_SECONDS, 0)
"""One after the other: jumps of up to two days."""


class WallClock:
    """Programs that start with `environ` go by it."""

    def __init__(self, directory: Path) -> None:
        library = compile_preload("shifted_clock.c", directory)
        self._shift = directory / "clock-shift"
        self._shift.write_bytes(struct.pack("q", 0))
        self.environ = {"LD_PRELOAD": str(library), "ZONEWISE_TEST_CLOCK": str(self._shift)}

    def shift(self, seconds: int) -> None:
        """Set it this far ahead of the true time, or behind it; in place, since programs have the file mapped."""
        with self._shift.open("r+b") as file:
            file.write(struct.pack("q", seconds))
