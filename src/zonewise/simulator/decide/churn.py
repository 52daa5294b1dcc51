"""Churn of a trace: slices written and endpoints moved when the controller's logic replays it.

Three modes are compared: a full rebalance at every step, the same with padding around the starting threshold, and the
controller's mode, padding with lazy rebalance.
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
    """Sums over a trace; `in_zone` is the mean share over its steps, `worst_overload` the highest."""

    trace: str
    algorithm: Algorithm
    way: ChurnMode
    steps: int
    slices_written: int
    endpoints_moved: int
    flips: int
    in_zone: float
    worst_overload: float


def replay(trace: Trace, algorithm: Algorithm, mode: ChurnMode, overload: float = 0.5) -> Churn:
    limits = PreferLimits(
        algorithm, DEFAULT_START, 0 if mode is ChurnMode.FULL else PADDING, overload, overload, mode is ChurnMode.LAZY
    )
    store = SliceStore()
    decisions: list[Preference] = []
    for state in trace.states:
        decision = prefer(state.nodes, state.zone_of, limits, decisions[-1].memory if decisions else None)
        consumers = decision.consumers or dict.fromkeys(state.zone_of, EVERYONE)
        store.put(consumers, first=not decisions)
        decisions.append(decision)
    flips = sum(bool(before.consumers) != bool(after.consumers) for before, after in pairwise(decisions))
    return _sum(trace, algorithm, mode, store, decisions, flips)


def _sum(
    trace: Trace, algorithm: Algorithm, mode: ChurnMode, store: SliceStore, decisions: list[Preference], flips: int
) -> Churn:
    return Churn(
        trace=trace.name,
        algorithm=algorithm,
        way=mode,
        steps=len(decisions) - 1,
        slices_written=store.written,
        endpoints_moved=store.moved,
        flips=flips,
        in_zone=sum(decision.in_domain for decision in decisions) / len(decisions),
        worst_overload=max(decision.worst_overload for decision in decisions),
    )


@dataclass
class SliceStore:
    """Slices as the controller keeps them: an endpoint stays in its slice until its consumers change."""

    written: int = 0
    moved: int = 0
    _slice_of: dict[str, tuple[Consumers, int]] = field(default_factory=dict)
    _slices: dict[tuple[Consumers, int], set[str]] = field(default_factory=dict)
    _numbers: int = 0

    def put(self, consumers: Mapping[str, Consumers], *, first: bool) -> None:
        changed: set[tuple[Consumers, int]] = set()
        unplaced: dict[Consumers, list[str]] = defaultdict(list)
        for name in [old_name for old_name in self._slice_of if old_name not in consumers]:
            changed.add(self._remove(name))
        for name, group in consumers.items():
            slice_key = self._slice_of.get(name)
            if slice_key is not None and slice_key[0] == group:
                continue
            if slice_key is not None:
                self.moved += 1
                changed.add(self._remove(name))
            unplaced[group].append(name)
        for group, names in unplaced.items():
            changed |= self._fill(group, names)
        self._slices = {slice_key: members for slice_key, members in self._slices.items() if members}
        self.written += 0 if first else len(changed)

    def _remove(self, name: str) -> tuple[Consumers, int]:
        slice_key = self._slice_of.pop(name)
        self._slices[slice_key].discard(name)
        return slice_key

    def _fill(self, group: Consumers, names: Iterable[str]) -> set[tuple[Consumers, int]]:
        """Fill the fullest slices of the group that have room, then new ones."""
        changed = set()
        for name in names:
            room = [
                slice_key
                for slice_key, members in self._slices.items()
                if slice_key[0] == group and len(members) < SLICE_CAPACITY
            ]
            if not room:
                self._numbers += 1
            slice_key = max(room, key=lambda slice_key: len(self._slices[slice_key]), default=(group, self._numbers))
            self._slices.setdefault(slice_key, set()).add(name)
            self._slice_of[name] = slice_key
            changed.add(slice_key)
        return changed
