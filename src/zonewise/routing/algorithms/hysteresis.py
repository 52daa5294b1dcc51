"""Hysteresis for `optimal`: endpoints change groups only if that is worth the change.

The best assignment may jump with one new endpoint: three groups become two, and half the endpoints serve other zones.
Given the last assignment, three candidates compete: keep everything, keep the partition and adapt the sizes, or take
the best new one. Each pays for the endpoints it moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from zonewise.routing.algorithms.blocks import search_space
from zonewise.routing.algorithms.groups import EndpointGroup, EndpointGroups, evaluate, read
from zonewise.routing.algorithms.optimal import optimal_within
from zonewise.routing.algorithms.score import Weights, total_score
from zonewise.routing.algorithms.workspace import new_workspace

COST_OF_MOVING_ALL: Final = 5.0
"""In score points; moving one endpoint of a hundred must gain a hundredth of it."""


def steady(
    nodes: Sequence[int],
    endpoints: Sequence[int],
    threshold: float,
    previous: EndpointGroups,
    fresh: EndpointGroups,
    weights: Weights,
) -> EndpointGroups:
    """The best of keeping, adapting and the new assignment, after the cost of moves."""
    partition = partition_of(nodes, previous)
    if partition is None:
        return fresh
    kept = keep(partition, endpoints, previous)
    candidates = [kept, follow(partition, nodes, endpoints, threshold, weights), fresh]
    return max(candidates, key=lambda groups: net_worth(nodes, endpoints, threshold, kept, groups, weights))


def net_worth(
    nodes: Sequence[int],
    endpoints: Sequence[int],
    threshold: float,
    kept: EndpointGroups,
    groups: EndpointGroups,
    weights: Weights,
) -> float:
    score = evaluate(nodes, groups)
    if score.unreached or score.highest >= threshold:
        return float("-inf")
    total = sum(endpoints)
    return total_score(score, total, weights) - COST_OF_MOVING_ALL * moved(kept, groups) / total


def partition_of(nodes: Sequence[int], previous: EndpointGroups) -> list[int] | None:
    """The number of the group that each zone consumes; None unless every zone with nodes consumes exactly one."""
    partition = [-1] * len(nodes)
    for number, group in enumerate(previous):
        for zone in group.consumers:
            if partition[zone] >= 0 or group.weights[zone] != 1:
                return None
            partition[zone] = number
    return None if any(number < 0 < count for number, count in zip(partition, nodes, strict=True)) else partition


def keep(partition: Sequence[int], endpoints: Sequence[int], previous: EndpointGroups) -> EndpointGroups:
    """All endpoints stay; new ones serve their own zone, and removed ones are missing there first."""
    compositions = [list(group.composition) for group in previous]
    for zone, count in enumerate(endpoints):
        home = max(partition[zone], 0)
        compositions[home][zone] += count - sum(composition[zone] for composition in compositions)
        for composition in compositions:
            missing = min(compositions[home][zone], 0)
            if composition is not compositions[home] and missing:
                taken = min(composition[zone], -missing)
                composition[zone] -= taken
                compositions[home][zone] += taken
    groups = zip(compositions, previous, strict=True)
    return EndpointGroups(
        tuple(EndpointGroup(tuple(composition), group.weights) for composition, group in groups if any(composition))
    )


def follow(
    partition: Sequence[int], nodes: Sequence[int], endpoints: Sequence[int], threshold: float, weights: Weights
) -> EndpointGroups:
    """The same partition with the best sizes for the current endpoints."""
    zones = len(nodes)
    workspace = new_workspace(zones)
    expected = [sum(endpoints) * count / sum(nodes) for count in nodes]
    answer = optimal_within(partition, expected, nodes, endpoints, threshold, weights, search_space(zones), workspace)
    return read(answer, zones, workspace)


def moved(before: EndpointGroups, after: EndpointGroups) -> int:
    """The number of endpoints with other consumers than before."""
    now = {group.weights: group.composition for group in after}
    return sum(
        max(count - remaining, 0)
        for group in before
        for count, remaining in zip(
            group.composition, now.get(group.weights, (0,) * len(group.composition)), strict=True
        )
    )
