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


def order_zones(expected: Numbers, ratio: Numbers, endpoints: Counts, search: Search) -> int:
    """Sorts zones by demand, then by endpoints; returns the number with demand. The others follow and only supply."""
    count = 0
    for zone in range(len(endpoints)):
        at = zone
        while at > 0 and (
            ratio[zone] > ratio[search.zone[at - 1]]
            or (ratio[zone] == ratio[search.zone[at - 1]] and endpoints[zone] > endpoints[search.zone[at - 1]])
        ):
            search.zone[at] = search.zone[at - 1]
            at -= 1
        search.zone[at] = zone
        count += 1 if expected[zone] > 0 else 0
    total = 0.0
    for zone in range(len(endpoints)):
        total += ratio[zone]
    for at in range(len(endpoints)):
        search.share[at] = ratio[search.zone[at]] / total
        search.expected[at] = expected[search.zone[at]]
        search.supply[at] = endpoints[search.zone[at]]
    return count


def add_up(blocks: int, search: Search, goal: Goal) -> int:
    """Sums zones, demand, own endpoints and fewest endpoints per block; returns the sum of the fewest."""
    for block in range(blocks):
        search.head[block] = -1
        search.demand[block] = 0.0
        search.own[block] = 0
    for at in range(goal.zones - 1, -1, -1):
        block = search.block[at]
        search.following[at] = search.head[block]
        search.head[block] = at
        search.demand[block] += search.expected[at]
        search.own[block] += search.supply[at]
    needed = 0
    for block in range(blocks):
        search.fewest[block] = fewest(search.demand[block], goal.threshold)
        needed += search.fewest[block]
    return needed


def kept_at_home(block: int, size: float, search: Search) -> float:
    """The share of all traffic that reaches an endpoint of its own zone within this block."""
    left = size
    in_zone: float = 0.0
    at = search.head[block]
    while at >= 0:
        kept = min(search.supply[at], left)
        left -= kept
        in_zone += search.share[at] * kept
        at = search.following[at]
    return in_zone / size


def worth(block: int, size: int, search: Search, goal: Goal) -> float:
    """The part of the score that depends on this block alone."""
    deviation: float = abs(search.demand[block] - size) / goal.endpoints
    return goal.weights.in_zone * kept_at_home(block, size, search) - goal.weights.mean * deviation


def price(highest_load: float, slices: int, goal: Goal) -> float:
    """The part of the score that depends on all blocks."""
    weights = goal.weights
    return weights.mean + weights.highest * (2 - highest_load) + weights.slices * slices_of(goal.endpoints) / slices


def score(blocks: int, sizes: Counts, weighed: Counts, search: Search, goal: Goal) -> float:
    """The score of these sizes; blocks whose size was `weighed` have their worth stored."""
    own = 0.0
    highest_load = 1.0
    slices = 0
    for block in range(blocks):
        size = sizes[block]
        own += search.worth[block] if size == weighed[block] else worth(block, size, search, goal)
        highest_load = max(highest_load, search.demand[block] / size)
        slices += slices_of(size)
    return own + price(highest_load, slices, goal)


def bound(blocks: int, search: Search, goal: Goal) -> float:
    """An upper bound for all sizes of these blocks: in-zone traffic at even load, no overload, the fewest slices.

    More in-zone traffic is possible only with overload, which costs more than it gains unless in-zone weighs heavily.
    """
    weights = goal.weights
    if weights.in_zone > 2 * weights.mean + weights.highest:
        return weights.in_zone + weights.highest + weights.mean + weights.slices
    home = 0.0
    for block in range(blocks):
        home += kept_at_home(block, search.demand[block], search)
    return weights.in_zone * home + price(1.0, max(slices_of(goal.endpoints), blocks), goal)
