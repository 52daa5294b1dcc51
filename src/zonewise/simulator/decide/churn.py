"""What change costs: a trace replayed through the controller's own logic, counting slices written and endpoints moved.

Three ways are compared: a full rebalance at every step, the same with padding around the starting threshold, and what
the controller does, padding with lazy rebalance.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final

import msgspec

from zonewise.routing.algorithms import Algorithm
from zonewise.routing.load import Consumers
from zonewise.routing.prefer import Preference, PreferLimits, prefer
from zonewise.routing.tuning import DEFAULT_START
from zonewise.simulator.decide.traces import Trace

SLICE_CAPACITY: Final = 100
PADDING: Final = 3
EVERYONE: Final[Consumers] = ()


class ChurnMode(StrEnum):
    FULL = "full"
    PADDED = "padded"
    LAZY = "lazy"


class Churn(msgspec.Struct, frozen=True, rename="camel"):
    """Sums over a trace; `in_zone` is the mean share over its steps, `worst_overload` the highest seen."""

    trace: str
    algorithm: Algorithm
    way: ChurnMode
    steps: int
    slices_written: int
    endpoints_moved: int
    flips: int
    in_zone: float
    worst_overload: float


def replay(trace: Trace, algorithm: Algorithm, way: ChurnMode, overload: float = 0.5) -> Churn:
    limits = PreferLimits(
        algorithm, DEFAULT_START, 0 if way is ChurnMode.FULL else PADDING, overload, overload, way is ChurnMode.LAZY
    )
    shelf = SliceStore()
    answers: list[Preference] = []
    for situation in trace.situations:
        answer = prefer(situation.nodes, situation.homes, limits, answers[-1].memory if answers else None)
        consumers = answer.consumers or dict.fromkeys(situation.homes, EVERYONE)
        shelf.put(consumers, first=not answers)
        answers.append(answer)
    flips = sum(bool(before.consumers) != bool(after.consumers) for before, after in pairwise(answers))
    return _sum(trace, algorithm, way, shelf, answers, flips)


def _sum(
    trace: Trace, algorithm: Algorithm, way: ChurnMode, shelf: SliceStore, answers: list[Preference], flips: int
) -> Churn:
    return Churn(
        trace=trace.name,
        algorithm=algorithm,
        way=way,
        steps=len(answers) - 1,
        slices_written=shelf.written,
        endpoints_moved=shelf.moved,
        flips=flips,
        in_zone=sum(answer.in_domain for answer in answers) / len(answers),
        worst_overload=max(answer.worst_overload for answer in answers),
    )


@dataclass
class SliceStore:
    """Slices as the controller keeps them: an endpoint stays where it is until its consumers change."""

    written: int = 0
    moved: int = 0
    _place: dict[str, tuple[Consumers, int]] = field(default_factory=dict)
    _slices: dict[tuple[Consumers, int], set[str]] = field(default_factory=dict)
    _numbers: int = 0

    def put(self, consumers: Mapping[str, Consumers], *, first: bool) -> None:
        touched: set[tuple[Consumers, int]] = set()
        waiting: dict[Consumers, list[str]] = defaultdict(list)
        for name in [known for known in self._place if known not in consumers]:
            touched.add(self._take(name))
        for name, wanted in consumers.items():
            place = self._place.get(name)
            if place is not None and place[0] == wanted:
                continue
            if place is not None:
                self.moved += 1
                touched.add(self._take(name))
            waiting[wanted].append(name)
        for wanted, names in waiting.items():
            touched |= self._fill(wanted, names)
        self._slices = {at: held for at, held in self._slices.items() if held}
        self.written += 0 if first else len(touched)

    def _take(self, name: str) -> tuple[Consumers, int]:
        place = self._place.pop(name)
        self._slices[place].discard(name)
        return place

    def _fill(self, wanted: Consumers, names: Iterable[str]) -> set[tuple[Consumers, int]]:
        """Into the fullest slices of the group that have room, then new ones."""
        touched = set()
        for name in names:
            room = [at for at, held in self._slices.items() if at[0] == wanted and len(held) < SLICE_CAPACITY]
            if not room:
                self._numbers += 1
            place = max(room, key=lambda at: len(self._slices[at]), default=(wanted, self._numbers))
            self._slices.setdefault(place, set()).add(name)
            self._place[name] = place
            touched.add(place)
        return touched
