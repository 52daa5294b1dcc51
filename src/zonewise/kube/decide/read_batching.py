"""Read batching of a watch: how long to wait before the next read. Pure.

Waking up for a change costs more than the change itself. Changes that come one by one are read at once; while they come
in bursts, more and more of them are read together, up to the longest wait that the reader allows.
"""

from __future__ import annotations

from typing import Final

SHORTEST_SECONDS: Final = 0.04


class ReadBatching:
    def __init__(self, longest_seconds: float) -> None:
        """0 for never any rest."""
        self._longest_seconds = longest_seconds
        self._seconds = SHORTEST_SECONDS

    def rest_after(self, events: int) -> float:
        """The rest after so many events at once: longer with every crowd, shorter with every single one."""
        wanted = self._seconds * 2 if events > 1 else self._seconds / 2
        self._seconds = min(max(SHORTEST_SECONDS, wanted), self._longest_seconds)
        return self._seconds
