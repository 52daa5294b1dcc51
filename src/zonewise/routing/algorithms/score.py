"""The score of an assignment: in-zone traffic, overload and number of slices, as shares between 0 and 1.

The traffic of a zone is its share of the nodes. It is divided over the groups the zone consumes in proportion to size
times weight, and evenly over the endpoints of a group. Deviation compares an endpoint's load with the even share of all
traffic; `highest` is the worst overload, `mean` the average deviation in either direction.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from zonewise.routing.algorithms.workspace import Numbers, Workspace

SLICE_CAPACITY: Final = 100


class Score(NamedTuple):
    """Shares, not percents; `unreached` counts zones whose traffic reaches no endpoint."""

    in_zone: float
    highest: float
    mean: float
    slices: int
    unreached: int


class Weights(NamedTuple):
    """The weight of each part in the total score, in percent."""

    in_zone: float = 45.0
    highest: float = 20.0
    mean: float = 20.0
    slices: float = 15.0


STANDARD: Final = Weights()


def total_score(score: Score, endpoints: int, weights: Weights) -> float:
    even = 1 - score.highest, 1 - score.mean
    fewest = slices_of(endpoints) / score.slices
    return (
        weights.in_zone * score.in_zone + weights.highest * even[0] + weights.mean * even[1] + weights.slices * fewest
    )


def slices_of(size: int) -> int:
    return (size + SLICE_CAPACITY - 1) // SLICE_CAPACITY


def measure(groups: int, total: int, ratio: Numbers, traffic: list[float], workspace: Workspace) -> Score:
    zones = len(ratio)
    for group in range(groups):
        traffic[group] = 0
    in_zone = 0.0
    unreached = 0
    for zone in range(zones):
        capacity = 0.0
        own = 0.0
        for group in range(groups):
            capacity += workspace.sizes[group] * workspace.weight[group * zones + zone]
            own += workspace.composition[group * zones + zone] * workspace.weight[group * zones + zone]
        if capacity == 0:
            unreached += 1 if ratio[zone] > 0 else 0
            continue
        part = ratio[zone] / capacity
        in_zone += part * own
        for group in range(groups):
            traffic[group] += part * workspace.sizes[group] * workspace.weight[group * zones + zone]
    highest = 0.0
    mean = 0.0
    slices = 0
    for group in range(groups):
        size = workspace.sizes[group]
        if size > 0:
            deviation = traffic[group] / size * total - 1
            highest = max(highest, deviation)
            mean += abs(deviation) * size
            slices += slices_of(size)
    return Score(in_zone, highest, mean / total, slices, unreached)
