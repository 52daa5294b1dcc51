"""The face of the algorithms: counts per zone in, groups of endpoints out, with exact arithmetic in plain Python.

`assign` decides how many endpoints of each zone serve the clients of which zones; which endpoints those are is decided
elsewhere. Zones come in the caller's order, and ties follow it, so callers sort zones by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from fractions import Fraction
from operator import add

from zonewise.routing.algorithms.local import BELOW_START, OVERLOADED, TOO_FEW, balanced, local, require
from zonewise.routing.algorithms.score import Score, measure
from zonewise.routing.algorithms.shared import local_shared
from zonewise.routing.algorithms.weighted import local_opt, local_weighted
from zonewise.routing.algorithms.workspace import Workspace, workspace


class Algorithm(StrEnum):
    BALANCED = "balanced"
    REQUIRE = "require"
    LOCAL = "local"
    LOCAL_SHARED = "local-shared"
    LOCAL_WEIGHTED = "local-weighted"
    LOCAL_OPT = "local-opt"
    OPTIMAL = "optimal"


class Downgrade(IntEnum):
    """Why an algorithm answered with balanced."""

    BELOW_START = BELOW_START
    OVERLOADED = OVERLOADED
    TOO_FEW = TOO_FEW


@dataclass(frozen=True, slots=True)
class Group:
    """Endpoints per zone of origin, and the weight with which each zone consumes them; 0 means it does not."""

    composition: tuple[int, ...]
    weights: tuple[float, ...]

    @property
    def size(self) -> int:
        return sum(self.composition)

    @property
    def consumers(self) -> tuple[int, ...]:
        return tuple(zone for zone, weight in enumerate(self.weights) if weight)


@dataclass(frozen=True, slots=True)
class Groups:
    """A partition of the endpoints: each belongs to one group, and no group is empty."""

    groups: tuple[Group, ...]
    downgrade: Downgrade | None = None

    def __iter__(self) -> Iterator[Group]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def is_balanced(self) -> bool:
        return len(self.groups) == 1 and all(weight == 1 for weight in self.groups[0].weights)


def assign(
    algorithm: Algorithm,
    nodes: Sequence[int],
    endpoints: Sequence[int],
    *,
    threshold: float = 0.5,
    starting_factor: int = 3,
) -> Groups:
    """Groups for these nodes and endpoints per zone; a zone without nodes has no demand."""
    check(nodes, endpoints)
    if sum(endpoints) == 0:
        return Groups(())
    w = workspace(len(nodes))
    answer = solve(algorithm, nodes, endpoints, threshold, starting_factor * len(nodes), w)
    return read(answer, len(nodes), w)


def solve(
    algorithm: Algorithm, nodes: Sequence[int], endpoints: Sequence[int], threshold: float, start: int, w: Workspace
) -> int:
    """Integer ratios and correctly rounded expectations compare as the exact ones would."""
    total = sum(endpoints)
    expected = [total * count / sum(nodes) for count in nodes]
    match algorithm:
        case Algorithm.BALANCED:
            return balanced(endpoints, w)
        case Algorithm.REQUIRE:
            return require(endpoints, w)
        case Algorithm.LOCAL:
            return local(expected, nodes, endpoints, threshold, start, w)
        case Algorithm.LOCAL_SHARED | Algorithm.OPTIMAL:
            return local_shared(expected, nodes, endpoints, threshold, w)
        case Algorithm.LOCAL_WEIGHTED:
            shares = [Fraction(total * count, sum(nodes)) for count in nodes]
            return local_weighted(shares, endpoints, w)
        case Algorithm.LOCAL_OPT:
            return local_opt(expected, endpoints, w)


def check(nodes: Sequence[int], endpoints: Sequence[int]) -> None:
    if len(nodes) != len(endpoints):
        raise ValueError(f"nodes are given for {len(nodes)} zones, endpoints for {len(endpoints)}: give both per zone")
    if min(nodes, default=0) < 0 or min(endpoints, default=0) < 0:
        raise ValueError(f"counts cannot be negative: nodes {list(nodes)}, endpoints {list(endpoints)}")
    if sum(nodes) == 0:
        raise ValueError("no zone has a node: at least one is needed to know where demand comes from")


def read(answer: int, zones: int, w: Workspace) -> Groups:
    """Rows that the same zones consume with the same weights are one group."""
    found: dict[tuple[float, ...], tuple[int, ...]] = {}
    for row in range(0, max(answer, 1) * zones, zones):
        composition = tuple(w.composition[row : row + zones])
        weights = tuple(map(float, w.weight[row : row + zones]))
        if any(composition):
            found[weights] = tuple(map(add, found.get(weights, (0,) * zones), composition))
    groups = tuple(Group(composition, weights) for weights, composition in found.items())
    return Groups(groups, Downgrade(answer) if answer < 0 else None)


def evaluate(nodes: Sequence[int], groups: Groups) -> Score:
    """What these groups are worth to zones with so many nodes."""
    zones = len(nodes)
    w = workspace(max(zones, len(groups.groups)))
    for row, group in enumerate(groups.groups):
        w.composition[row * zones : (row + 1) * zones] = group.composition
        w.weight[row * zones : (row + 1) * zones] = group.weights
        w.sizes[row] = group.size
    total = sum(group.size for group in groups.groups)
    ratio = [count / sum(nodes) for count in nodes]
    return measure(len(groups.groups), total, ratio, [0.0] * len(groups.groups), w)
