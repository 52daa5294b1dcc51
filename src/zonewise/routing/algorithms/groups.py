"""An assignment as a value: groups of endpoints with their consumers, and the score of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import add

from zonewise.routing.algorithms.local import BELOW_START, OVERLOADED, TOO_FEW
from zonewise.routing.algorithms.score import Score, measure
from zonewise.routing.algorithms.workspace import Workspace, new_workspace


class Downgrade(IntEnum):
    """Why an algorithm returned balanced."""

    BELOW_START = BELOW_START
    OVERLOADED = OVERLOADED
    TOO_FEW = TOO_FEW


@dataclass(frozen=True, slots=True)
class EndpointGroup:
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
class EndpointGroups:
    """A partition of the endpoints: each belongs to one group, and no group is empty."""

    groups: tuple[EndpointGroup, ...]
    downgrade: Downgrade | None = None

    def __iter__(self) -> Iterator[EndpointGroup]:
        return iter(self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def is_balanced(self) -> bool:
        return len(self.groups) == 1 and all(weight == 1 for weight in self.groups[0].weights)


def read(answer: int, zones: int, workspace: Workspace) -> EndpointGroups:
    """Reads the groups from the workspace; rows with the same consumers and weights form one group."""
    compositions: dict[tuple[float, ...], tuple[int, ...]] = {}
    for row in range(0, max(answer, 1) * zones, zones):
        composition = tuple(workspace.composition[row : row + zones])
        weights = tuple(map(float, workspace.weight[row : row + zones]))
        if any(composition):
            compositions[weights] = tuple(map(add, compositions.get(weights, (0,) * zones), composition))
    groups = tuple(EndpointGroup(compositions[weights], weights) for weights in sorted(compositions, reverse=True))
    return EndpointGroups(groups, Downgrade(answer) if answer < 0 else None)


def evaluate(nodes: Sequence[int], groups: EndpointGroups) -> Score:
    """The score of these groups for zones with so many nodes."""
    zones = len(nodes)
    workspace = new_workspace(max(zones, len(groups)))
    for row, group in enumerate(groups):
        workspace.composition[row * zones : (row + 1) * zones] = group.composition
        workspace.weight[row * zones : (row + 1) * zones] = group.weights
        workspace.sizes[row] = group.size
    total = sum(group.size for group in groups)
    ratio = [count / sum(nodes) for count in nodes]
    return measure(len(groups), total, ratio, [0.0] * len(groups), workspace)
