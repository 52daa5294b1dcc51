"""Progress of long work: one updated line on a terminal, a few lines elsewhere."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TextIO

_LINE_EVERY_PERCENT = 10
_REDRAW_EVERY_SECONDS = 0.2
_GUESS_AFTER_FRACTION = 0.02  # before that a guess says more about the first package than about the rest


@dataclass
class Estimate:
    """How far a build is, with packages weighed by the size of their sources. Pure: the clock is an argument."""

    weights: Mapping[str, int]
    linking: int = 0  # the weight of what comes after the last package
    _done: set[str] = field(default_factory=set)
    _done_weight: int = 0

    def add(self, package: str) -> None:
        if package in self.weights and package not in self._done:
            self._done.add(package)
            self._done_weight += self.weights[package]

    @property
    def count(self) -> int:
        return len(self._done)

    @property
    def fraction(self) -> float:
        total = sum(self.weights.values()) + self.linking
        return self._done_weight / total if total else 0.0

    def seconds_left(self, elapsed_seconds: float) -> float | None:
        """At the pace so far; None while that is a guess."""
        if self.fraction < _GUESS_AFTER_FRACTION:
            return None
        return elapsed_seconds * (1 - self.fraction) / self.fraction


def duration(seconds: float) -> str:
    """In the words one would say: 40 s, 3 min, 1 h 5 min."""
    whole = round(seconds)
    if whole < 90:
        return f"{whole} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class ProgressReporter:
    """Steps of some work, and how far the current one is."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._living = stream.isatty()
        self._begin = clock()
        self._drawn_at = -_REDRAW_EVERY_SECONDS
        self._shown_percent = 0
        self._open_line = False

    def step(self, text: str) -> None:
        """A new step: its line stays."""
        self._write(f"{self._clock() - self._begin:5.1f} s  {text}", stays=True)
        self._shown_percent = 0

    def advance(self, text: str, fraction: float) -> None:
        """Within a step: redrawn in place on a terminal, otherwise a line for every tenth of the way."""
        now = self._clock()
        percent = int(fraction * 100)
        if self._living:
            if now - self._drawn_at >= _REDRAW_EVERY_SECONDS:
                self._drawn_at = now
                self._write(f"{percent:3d} %  {text}", stays=False)
        elif percent // _LINE_EVERY_PERCENT > self._shown_percent // _LINE_EVERY_PERCENT:
            self._shown_percent = percent
            self._write(f"{percent:3d} %  {text}", stays=True)

    def close(self) -> None:
        if self._open_line:
            self._stream.write("\r\033[K")
            self._stream.flush()
            self._open_line = False

    def _write(self, line: str, *, stays: bool) -> None:
        self.close()
        self._stream.write(f"{line}\n" if stays else line)
        self._stream.flush()
        self._open_line = not stays
