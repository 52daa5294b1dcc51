"""Blocks of zones, each with one group of endpoints for all its zones, and the score of given group sizes.

The best composition of a block follows from its size: own endpoints first, those of zones with more demand before
others. So an assignment is only a partition of the zones and a size for each block. `optimal` searches for both. Zones
here are positions in order of demand, largest first, which also makes results independent of zone names.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from zonewise.routing.algorithms.local import fewest
from zonewise.routing.algorithms.score import Weights, slices_of
from zonewise.routing.algorithms.workspace import Counts, Ints, Numbers, Reals

TIE: Final = 1e-9
"""A smaller gain is rounding noise and is ignored."""


class Search(NamedTuple):
    """Per zone: number, share of demand, endpoints, block, and the next zone in the block, whose first is its `head`.
    Per block: demand in endpoints, own endpoints, the fewest it needs, and sizes under consideration.
    """

    zone: Ints
    share: Reals
    expected: Reals
    supply: Ints
    block: Ints
    path: Ints
    best_block: Ints
    head: Ints
    following: Ints
    demand: Reals
    own: Ints
    fewest: Ints
    sizes: Ints
    trial: Ints
    scratch: Ints
    chain: Ints
    best_sizes: Ints
    worth: Reals
    gain: Reals
    loss: Reals


def search_space(zones: int) -> Search:
    return Search(
        zone=[0] * zones,
        share=[0.0] * zones,
        expected=[0.0] * zones,
        supply=[0] * zones,
        block=[0] * zones,
        path=[0] * zones,
        best_block=[0] * zones,
        head=[0] * zones,
        following=[0] * zones,
        demand=[0.0] * zones,
        own=[0] * zones,
        fewest=[0] * zones,
        sizes=[0] * zones,
        trial=[0] * zones,
        scratch=[0] * zones,
        chain=[0] * zones,
        best_sizes=[0] * zones,
        worth=[0.0] * zones,
        gain=[0.0] * zones,
        loss=[0.0] * zones,
    )


class Goal(NamedTuple):
    """The score weights, and the overload limit that an assignment must keep."""

    weights: Weights
    threshold: float
    endpoints: int
    zones: int


def order_zones(expected: Numbers, ratio: Numbers, endpoints: Counts, q: Search) -> int:
    """Sorts zones by demand, then by endpoints; returns the number with demand. The others follow and only supply."""
    count = 0
    for zone in range(len(endpoints)):
        at = zone
        while at > 0 and (
            ratio[zone] > ratio[q.zone[at - 1]]
            or (ratio[zone] == ratio[q.zone[at - 1]] and endpoints[zone] > endpoints[q.zone[at - 1]])
        ):
            q.zone[at] = q.zone[at - 1]
            at -= 1
        q.zone[at] = zone
        count += 1 if expected[zone] > 0 else 0
    total = 0.0
    for zone in range(len(endpoints)):
        total += ratio[zone]
    for at in range(len(endpoints)):
        q.share[at] = ratio[q.zone[at]] / total
        q.expected[at] = expected[q.zone[at]]
        q.supply[at] = endpoints[q.zone[at]]
    return count


def add_up(blocks: int, q: Search, goal: Goal) -> int:
    """Sums zones, demand, own endpoints and fewest endpoints per block; returns the sum of the fewest."""
    for block in range(blocks):
        q.head[block] = -1
        q.demand[block] = 0.0
        q.own[block] = 0
    for at in range(goal.zones - 1, -1, -1):
        block = q.block[at]
        q.following[at] = q.head[block]
        q.head[block] = at
        q.demand[block] += q.expected[at]
        q.own[block] += q.supply[at]
    needed = 0
    for block in range(blocks):
        q.fewest[block] = fewest(q.demand[block], goal.threshold)
        needed += q.fewest[block]
    return needed


def kept_at_home(block: int, size: float, q: Search) -> float:
    """The share of all traffic that reaches an endpoint of its own zone within this block."""
    left = size
    in_zone: float = 0.0
    at = q.head[block]
    while at >= 0:
        kept = min(q.supply[at], left)
        left -= kept
        in_zone += q.share[at] * kept
        at = q.following[at]
    return in_zone / size


def worth(block: int, size: int, q: Search, goal: Goal) -> float:
    """The part of the score that depends on this block alone."""
    deviation: float = abs(q.demand[block] - size) / goal.endpoints
    return goal.weights.in_zone * kept_at_home(block, size, q) - goal.weights.mean * deviation


def price(highest_load: float, slices: int, goal: Goal) -> float:
    """The part of the score that depends on all blocks."""
    w = goal.weights
    return w.mean + w.highest * (2 - highest_load) + w.slices * slices_of(goal.endpoints) / slices


def score(blocks: int, sizes: Counts, weighed: Counts, q: Search, goal: Goal) -> float:
    """The score of these sizes; blocks whose size was `weighed` have their worth stored."""
    own = 0.0
    highest_load = 1.0
    slices = 0
    for block in range(blocks):
        size = sizes[block]
        own += q.worth[block] if size == weighed[block] else worth(block, size, q, goal)
        highest_load = max(highest_load, q.demand[block] / size)
        slices += slices_of(size)
    return own + price(highest_load, slices, goal)


def bound(blocks: int, q: Search, goal: Goal) -> float:
    """An upper bound for all sizes of these blocks: in-zone traffic at even load, no overload, the fewest slices.

    More in-zone traffic is possible only with overload, which costs more than it gains unless in-zone weighs heavily.
    """
    w = goal.weights
    if w.in_zone > 2 * w.mean + w.highest:
        return w.in_zone + w.highest + w.mean + w.slices
    home = 0.0
    for block in range(blocks):
        home += kept_at_home(block, q.demand[block], q)
    return w.in_zone * home + price(1.0, max(slices_of(goal.endpoints), blocks), goal)
