"""`optimal`: the best score under the overload limit with unweighted groups for one or several zones.

Every partition of the zones into blocks has an upper bound; if that beats the best score so far, its sizes are searched.
Up to five zones all partitions are tried. With more, blocks are joined step by step on the most promising path from
single zones towards balanced, and again from a start where zones without endpoints share a block.
"""

from __future__ import annotations

import math
from typing import Final

from zonewise.routing.algorithms.blocks import (
    TIE,
    Goal,
    Search,
    add_up,
    bound,
    kept_at_home,
    order_zones,
    price,
)
from zonewise.routing.algorithms.local import OVERLOADED
from zonewise.routing.algorithms.score import Weights, slices_of
from zonewise.routing.algorithms.sizing import copy, settle
from zonewise.routing.algorithms.workspace import Counts, Numbers, Workspace, clear, spread

MOST_HINTS: Final = 8
"""The most zones an endpoint can be hinted for; a larger group must be for all, without hints."""
ALL_PARTITIONS_TO: Final = 5
"""Zones; there are 52 partitions of five, and 203 of six."""
ALL_PAIRS_TO: Final = 4
"""Up to so many blocks every pair is tried, beyond that only the most promising pair."""
MOST_TO_JOIN: Final = 8
"""With more blocks, pairs are joined by demand alone."""
INFEASIBLE: Final = 1e6


def next_partition(search: Search, goal: Goal) -> int:
    """Advances `block` to the next partition in restricted growth order; returns its blocks, 0 at the end."""
    for at in range(goal.zones - 1, 0, -1):
        highest = 0
        for before in range(at):
            highest = max(highest, search.block[before])
        if search.block[at] <= highest:
            search.block[at] += 1
            for after in range(at + 1, goal.zones):
                search.block[after] = 0
            return max(highest, search.block[at]) + 1
    return 0


def join_pair(first: int, second: int, blocks: int, search: Search, goal: Goal) -> bool:
    """Joins two blocks of the path and renumbers the last one; returns whether hints can express the result."""
    joined = 0
    for at in range(goal.zones):
        block = search.path[at]
        if block == second:
            block = first
        elif block == blocks - 1:
            block = second
        search.block[at] = block
        joined += 1 if block == first else 0
    return joined <= MOST_HINTS


def upper_bound(blocks: int, search: Search, goal: Goal) -> float:
    """The upper bound of the current partition; far below all others if it cannot keep the limit."""
    missing = add_up(blocks, search, goal) - goal.endpoints
    return bound(blocks, search, goal) if missing <= 0 else -INFEASIBLE * missing


def consider(blocks: int, ceiling: float, best: float, search: Search, goal: Goal) -> float:
    """Searches sizes for the current partition if it could beat the best, and stores them if it does."""
    if ceiling <= best + TIE:
        return best
    reached = settle(blocks, best, ceiling, search, goal)
    if reached <= best + TIE:
        return best
    copy(search.block, search.best_block, goal.zones)
    copy(search.sizes, search.best_sizes, blocks)
    return reached


def join_best(blocks: int, best: float, search: Search, goal: Goal) -> tuple[bool, float]:
    """Makes the best join on the path; returns whether there was one, and the best score so far."""
    highest = -math.inf
    first = -1
    second = -1
    for left in range(blocks - 1):
        for right in range(left + 1, blocks):
            if not join_pair(left, right, blocks, search, goal):
                continue
            ceiling = upper_bound(blocks - 1, search, goal)
            if blocks <= ALL_PAIRS_TO:
                best = consider(blocks - 1, ceiling, best, search, goal)
            if ceiling > highest + TIE:
                highest = ceiling
                first = left
                second = right
    if first < 0:
        return False, best
    join_pair(first, second, blocks, search, goal)
    if blocks > ALL_PAIRS_TO:
        best = consider(blocks - 1, upper_bound(blocks - 1, search, goal), best, search, goal)
    copy(search.block, search.path, goal.zones)
    return True, best


def try_all(best: float, search: Search, goal: Goal) -> float:
    """Tries all partitions except balanced and single zones, which were tried before."""
    for at in range(goal.zones):
        search.block[at] = 0
    blocks = next_partition(search, goal)
    while 0 < blocks < goal.zones:
        best = consider(blocks, upper_bound(blocks, search, goal), best, search, goal)
        blocks = next_partition(search, goal)
    return best


def share_empty(search: Search, goal: Goal) -> int:
    """Puts zones without endpoints into shared blocks, as far as hints can express; returns the number of blocks."""
    blocks = 0
    shared = -1
    sharing = 0
    for at in range(goal.zones):
        if search.supply[at] == 0:
            if sharing % MOST_HINTS == 0:
                shared = blocks
                blocks += 1
            search.block[at] = shared
            sharing += 1
        else:
            search.block[at] = blocks
            blocks += 1
    return blocks


def join_lightest(blocks: int, search: Search, goal: Goal) -> bool:
    """Joins the two blocks of the path with the least demand; returns whether hints can express that."""
    copy(search.path, search.block, goal.zones)
    add_up(blocks, search, goal)
    first = 0
    second = 1
    if search.demand[second] < search.demand[first]:
        first = 1
        second = 0
    for block in range(2, blocks):
        if search.demand[block] < search.demand[first]:
            second = first
            first = block
        elif search.demand[block] < search.demand[second]:
            second = block
    possible = join_pair(min(first, second), max(first, second), blocks, search, goal)
    if possible:
        copy(search.block, search.path, goal.zones)
    return possible


def join_on(blocks: int, best: float, search: Search, goal: Goal) -> float:
    """Joins two blocks at a time from the current partition on, and tries the promising ones on the way."""
    copy(search.block, search.path, goal.zones)
    joined = True
    while joined and blocks > MOST_TO_JOIN:
        joined = join_lightest(blocks, search, goal)
        blocks -= 1
    while joined and blocks > 2:
        joined, best = join_best(blocks, best, search, goal)
        blocks -= 1
    return best


def join_some(best: float, search: Search, goal: Goal) -> float:
    """Tries the path from single zones, and the path from shared blocks of zones without endpoints."""
    best = join_on(goal.zones, best, search, goal)
    blocks = share_empty(search, goal)
    if blocks == goal.zones:
        return best
    best = consider(blocks, upper_bound(blocks, search, goal), best, search, goal)
    return join_on(blocks, best, search, goal)


def write_groups(zones: int, search: Search, goal: Goal, workspace: Workspace) -> int:
    """Writes own endpoints first, in order of demand, then the surplus where it lacks; returns the number of groups."""
    blocks = 0
    for at in range(goal.zones):
        blocks = max(blocks, search.best_block[at] + 1)
    clear(blocks, zones, workspace)
    for at in range(goal.zones):
        zone = search.zone[at]
        block = search.best_block[at]
        kept = min(search.supply[at], search.best_sizes[block] - workspace.sizes[block])
        workspace.composition[block * zones + zone] = kept
        workspace.weight[block * zones + zone] = 1
        workspace.sizes[block] += kept
        search.supply[at] -= kept
    for at in range(zones):
        for block in range(blocks):
            count = min(search.supply[at], search.best_sizes[block] - workspace.sizes[block])
            workspace.composition[block * zones + search.zone[at]] += count
            workspace.sizes[block] += count
            search.supply[at] -= count
    return blocks


def state_goal(
    expected: Numbers, ratio: Numbers, endpoints: Counts, threshold: float, weights: Weights, search: Search
) -> Goal:
    total = 0
    for zone in range(len(endpoints)):
        total += endpoints[zone]
    demanding = order_zones(expected, ratio, endpoints, search)
    return Goal(weights, threshold, total, demanding)


def optimal(
    expected: Numbers,
    ratio: Numbers,
    endpoints: Counts,
    threshold: float,
    weights: Weights,
    search: Search,
    workspace: Workspace,
) -> int:
    goal = state_goal(expected, ratio, endpoints, threshold, weights, search)
    for at in range(goal.zones):
        search.block[at] = 0
        search.best_block[at] = -1
    add_up(1, search, goal)
    best = weights.in_zone * kept_at_home(0, goal.endpoints, search) + price(1.0, slices_of(goal.endpoints), goal)
    for at in range(goal.zones):
        search.block[at] = at
    best = consider(goal.zones, upper_bound(goal.zones, search, goal), best, search, goal)
    if goal.zones <= ALL_PARTITIONS_TO:
        try_all(best, search, goal)
    else:
        join_some(best, search, goal)
    if search.best_block[0] < 0:
        spread(endpoints, workspace)
        return 1
    return write_groups(len(endpoints), search, goal, workspace)


def optimal_within(
    partition: Counts,
    expected: Numbers,
    ratio: Numbers,
    endpoints: Counts,
    threshold: float,
    weights: Weights,
    search: Search,
    workspace: Workspace,
) -> int:
    """The best sizes for the given blocks; OVERLOADED if they cannot keep the limit."""
    goal = state_goal(expected, ratio, endpoints, threshold, weights, search)
    blocks = 0
    for at in range(goal.zones):
        search.block[at] = partition[search.zone[at]]
        blocks = max(blocks, search.block[at] + 1)
    if add_up(blocks, search, goal) > goal.endpoints:
        spread(endpoints, workspace)
        return OVERLOADED
    consider(blocks, math.inf, -math.inf, search, goal)
    return write_groups(len(endpoints), search, goal, workspace)
