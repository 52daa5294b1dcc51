"""`balanced`, `require` and `local`: groups without weights, one per zone.

`local` starts from each zone's own endpoints and moves as few as needed to keep each endpoint's overload below the
threshold, then evens out the rest. It downgrades to balanced if that is impossible.
"""

from __future__ import annotations

import math
from typing import Final

from zonewise.routing.algorithms.heap import build, pop, push
from zonewise.routing.algorithms.workspace import Counts, Numbers, Workspace, clear, spread

BELOW_START: Final = -1
OVERLOADED: Final = -2
TOO_FEW: Final = -3

NEARLY_LAST: Final = 1e300
ROUNDING: Final = 1e-9


def overloaded(expected: float, size: int, threshold: float) -> bool:
    """At the limit is over it; rounding must not decide, as another sum of the same shares could exceed it."""
    if size == 0:
        return expected > 0
    return expected / size - 1 >= threshold - ROUNDING


def fewest(expected: float, threshold: float) -> int:
    """The smallest group that is not overloaded."""
    size = max(int(expected / (1 + threshold)) - 1, 0)
    while overloaded(expected, size, threshold):
        size += 1
    return size


def giver_rank(ratio: float, size: int) -> float:
    """The zone with the least load after giving gives first."""
    if size > 1:
        return ratio / (size - 1)
    return NEARLY_LAST if size == 1 else math.inf


def taker_rank(ratio: float, size: int) -> float:
    """The zone with the most load takes first."""
    return -ratio / size if size > 0 else -math.inf


def keep_own(expected: Numbers, endpoints: Counts, threshold: float, workspace: Workspace) -> None:
    zones = len(endpoints)
    clear(zones + 2, zones, workspace)
    for zone in range(zones):
        workspace.composition[zone * zones + zone] = endpoints[zone]
        workspace.weight[zone * zones + zone] = 1
        workspace.sizes[zone] = endpoints[zone]
        workspace.fewest[zone] = fewest(expected[zone], threshold)


def may_give(zone: int, workspace: Workspace) -> bool:
    return workspace.sizes[zone] > max(workspace.fewest[zone], 1)


def gather_givers(ratio: Numbers, workspace: Workspace) -> int:
    count = 0
    for zone in range(len(ratio)):
        if may_give(zone, workspace):
            workspace.givers[count] = zone
            workspace.giver_rank[zone] = giver_rank(ratio[zone], workspace.sizes[zone])
            count += 1
    build(workspace.givers, count, workspace.giver_rank)
    return count


def rank_takers(ratio: Numbers, workspace: Workspace) -> None:
    for zone in range(len(ratio)):
        workspace.taker_rank[zone] = taker_rank(ratio[zone], workspace.sizes[zone])


def move(giver: int, group: int, count: int, zones: int, workspace: Workspace) -> None:
    """Moves own endpoints of the giver to another row: a zone's group, or a shared group after them."""
    workspace.composition[giver * zones + giver] -= count
    workspace.composition[group * zones + giver] += count
    workspace.sizes[giver] -= count
    workspace.sizes[group] += count


def take(group: int, needed: int, givers: int, ratio: Numbers, workspace: Workspace) -> int:
    """Takes endpoints from the first giver, one at a time if there are several; returns the givers left or OVERLOADED."""
    zones = len(ratio)
    while needed > 0:
        if givers == 0:
            return OVERLOADED
        giver = workspace.givers[0]
        count = 1
        if givers == 1:
            count = min(needed, workspace.sizes[giver] - max(workspace.fewest[giver], 1))
        else:
            pop(workspace.givers, givers, workspace.giver_rank)
        move(giver, group, count, zones, workspace)
        needed -= count
        workspace.giver_rank[giver] = giver_rank(ratio[giver], workspace.sizes[giver])
        givers -= 1
        if may_give(giver, workspace):
            givers = push(workspace.givers, givers, giver, workspace.giver_rank)
    return givers


def relieve(givers: int, ratio: Numbers, workspace: Workspace) -> int:
    """Takes endpoints for every overloaded zone; returns the givers left or OVERLOADED."""
    takers = 0
    for zone in range(len(ratio)):
        if workspace.sizes[zone] < workspace.fewest[zone]:
            workspace.takers[takers] = zone
            takers += 1
    build(workspace.takers, takers, workspace.taker_rank)
    while takers > 0 and givers >= 0:
        taker = pop(workspace.takers, takers, workspace.taker_rank)
        takers -= 1
        givers = take(taker, workspace.fewest[taker] - workspace.sizes[taker], givers, ratio, workspace)
    return givers


def hand_over(giver: int, taker: int, expected: Numbers, workspace: Workspace) -> None:
    """Moves endpoints while the giver has a whole one too many and the taker lacks a whole one."""
    zones = len(expected)
    possible = min(workspace.sizes[giver] - expected[giver], expected[taker] - workspace.sizes[taker])
    move(giver, taker, max(int(possible) - 1, 0), zones, workspace)  # the comparisons below decide about the last one
    while workspace.sizes[giver] - expected[giver] >= 1 and expected[taker] - workspace.sizes[taker] >= 1:
        move(giver, taker, 1, zones, workspace)


def even_out(givers: int, expected: Numbers, ratio: Numbers, workspace: Workspace) -> None:
    """Moves whole surplus endpoints to the zones that lack a whole one."""
    zones = len(expected)
    rank_takers(ratio, workspace)
    for zone in range(zones):
        workspace.takers[zone] = zone
    build(workspace.takers, zones, workspace.taker_rank)
    while givers > 0:
        giver = pop(workspace.givers, givers, workspace.giver_rank)
        givers -= 1
        if workspace.sizes[giver] - expected[giver] < 1:
            return
        while workspace.sizes[giver] - expected[giver] >= 1:
            taker = pop(workspace.takers, zones, workspace.taker_rank)
            if expected[taker] - workspace.sizes[taker] < 1:
                return
            hand_over(giver, taker, expected, workspace)
            workspace.taker_rank[giver] = taker_rank(ratio[giver], workspace.sizes[giver])
            workspace.taker_rank[taker] = taker_rank(ratio[taker], workspace.sizes[taker])
            push(workspace.takers, zones - 1, taker, workspace.taker_rank)


def local(
    expected: Numbers, ratio: Numbers, endpoints: Counts, threshold: float, start: int, workspace: Workspace
) -> int:
    zones = len(endpoints)
    total = 0
    for zone in range(zones):
        total += endpoints[zone]
    if total < start:
        spread(endpoints, workspace)
        return BELOW_START
    keep_own(expected, endpoints, threshold, workspace)
    rank_takers(ratio, workspace)
    givers = relieve(gather_givers(ratio, workspace), ratio, workspace)
    if givers == OVERLOADED:
        spread(endpoints, workspace)
        return OVERLOADED
    even_out(givers, expected, ratio, workspace)
    return zones


def require(endpoints: Counts, workspace: Workspace) -> int:
    zones = len(endpoints)
    clear(zones, zones, workspace)
    for zone in range(zones):
        workspace.composition[zone * zones + zone] = endpoints[zone]
        workspace.weight[zone * zones + zone] = 1
        workspace.sizes[zone] = endpoints[zone]
    return zones


def balanced(endpoints: Counts, workspace: Workspace) -> int:
    spread(endpoints, workspace)
    return 1
