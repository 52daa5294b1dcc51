"""Data sets of the simulator: generated and split into chunks, never stored.

An input is the numbers of nodes and endpoints in three zones. In the published sets the i-th smallest number of
endpoints is always in the zone with the i-th smallest number of nodes, which favours every algorithm; `all-pairings`
has every order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import comb, gcd
from typing import Final

from zonewise.simulator.decide.inputs import NamedInput

CHUNK_INPUTS: Final = 400_000
"""About a second of work for all algorithms, and a few megabytes of scores."""

Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class DatasetPart:
    """All `nodes` combined with all triples of endpoint numbers in `values`, ascending or in every order."""

    nodes: tuple[Triple, ...]
    values: range
    ordered: bool = True

    def inputs_from(self, first: int, last: int) -> int:
        """The number of endpoint triples whose first number is at [first, last) of `values`, without (0, 0, 0)."""
        count = len(self.values)
        if self.ordered:
            triples = sum(comb(count - position + 1, 2) for position in range(first, last))
        else:
            triples = (last - first) * count**2
        return triples - (first == 0 < last and self.values[0] == 0)

    @property
    def inputs(self) -> int:
        return len(self.nodes) * self.inputs_from(0, len(self.values))


@dataclass(frozen=True, slots=True)
class Dataset:
    name: str
    about: str
    parts: tuple[DatasetPart, ...]

    @property
    def inputs(self) -> int:
        return sum(part.inputs for part in self.parts)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Nodes with the endpoint triples whose first number is at [first, last); counted `times` times.

    Nodes in the same proportion have the same demand, so they are computed once.
    """

    nodes: Triple
    times: int
    values: range
    ordered: bool
    first: int
    last: int
    inputs: int


def chunks(dataset: Dataset) -> Iterator[Chunk]:
    for part in dataset.parts:
        for nodes, times in Counter(_in_lowest_terms(nodes) for nodes in part.nodes).items():
            for first, last in _splits(part):
                yield Chunk(nodes, times, part.values, part.ordered, first, last, part.inputs_from(first, last))


def _in_lowest_terms(nodes: Triple) -> Triple:
    a, b, c = nodes
    divisor = gcd(a, b, c)
    return a // divisor, b // divisor, c // divisor


def _splits(part: DatasetPart) -> Iterator[tuple[int, int]]:
    first = 0
    for last in range(1, len(part.values) + 1):
        if last == len(part.values) or part.inputs_from(first, last + 1) > CHUNK_INPUTS:
            yield first, last
            first = last


def _node_triples() -> tuple[Triple, ...]:
    return tuple((a, b, c) for a, b, c in combinations_with_replacement(range(1, 11), 3))


def _dataset(name: str, most: int, large_values: range, about: str) -> Dataset:
    return Dataset(
        name, about, (DatasetPart(_node_triples(), range(most + 1)), DatasetPart(((30, 30, 30),), large_values))
    )


SMALL: Final = _dataset(
    "small", 20, range(100, 199, 7), "1 to 10 nodes and 0 to 20 endpoints a zone; 30 nodes, 100 to 198 endpoints by 7"
)
MEDIUM: Final = _dataset(
    "medium", 50, range(100, 501, 7), "1 to 10 nodes and 0 to 50 endpoints a zone; 30 nodes, 100 to 500 endpoints by 7"
)
LARGE: Final = _dataset(
    "large", 100, range(100, 997, 7), "1 to 10 nodes and 0 to 100 endpoints a zone; 30 nodes, 100 to 996 endpoints by 7"
)
ALL_PAIRINGS: Final = Dataset(
    "all-pairings",
    "1 to 10 nodes a zone and 0 to 100 endpoints in every order",
    (DatasetPart(_node_triples(), range(101), ordered=False),),
)
RANGED: Final = {dataset.name: dataset for dataset in (SMALL, MEDIUM, LARGE, ALL_PAIRINGS)}


def _shape(name: str, nodes: Sequence[int], endpoints: Sequence[int]) -> NamedInput:
    zones = tuple(f"zone-{chr(ord('a') + number)}" for number in range(len(nodes)))
    return NamedInput(name, zones, tuple(nodes), tuple(endpoints))


REPRESENTATIVE: Final = (
    _shape("one zone holds all", [30, 30, 30], [100, 0, 0]),
    _shape("one empty zone", [30, 30, 30], [100, 100, 0]),
    _shape("two poor zones", [30, 30, 30], [100, 10, 10]),
    _shape("minimal, even", [30, 30, 30], [1, 1, 1]),
    _shape("minimal, uneven", [30, 30, 30], [2, 1, 0]),
    _shape("one endpoint", [30, 30, 30], [1, 0, 0]),
    _shape("two endpoints", [30, 30, 30], [2, 0, 0]),
    _shape("near-even small", [30, 30, 30], [3, 2, 2]),
    _shape("near-even medium", [30, 30, 30], [10, 9, 12]),
    _shape("near-even huge", [300, 300, 300], [654, 704, 555]),
    _shape("rich first zone", [40, 30, 20], [70, 25, 15]),
    _shape("medium, uneven nodes", [15, 20, 12], [10, 18, 10]),
    _shape("proportional small", [3, 2, 1], [3, 2, 1]),
    _shape("proportional large", [50, 60, 70], [100, 120, 140]),
    _shape("largest overload of local", [7, 8, 10], [0, 6, 10]),
    _shape("largest overload of local-opt", [1, 10, 10], [0, 0, 19]),
    _shape("common group of urgent zones", [1, 1, 1], [1, 1, 3]),
    _shape("downgrade of local-shared", [4, 2, 6], [5, 4, 0]),
    _shape("just at three times the zones", [1, 1, 1], [0, 3, 6]),
    _shape("two zones", [10, 20], [25, 5]),
    _shape("five zones", [1, 2, 3, 4, 5], [30, 5, 0, 2, 8]),
)
"""Hand-picked shapes, small enough to follow by hand."""
