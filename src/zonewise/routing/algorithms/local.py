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


def keep_own(expected: Numbers, endpoints: Counts, threshold: float, w: Workspace) -> None:
    zones = len(endpoints)
    clear(zones + 2, zones, w)
    for zone in range(zones):
        w.composition[zone * zones + zone] = endpoints[zone]
        w.weight[zone * zones + zone] = 1
        w.sizes[zone] = endpoints[zone]
        w.fewest[zone] = fewest(expected[zone], threshold)


def may_give(zone: int, w: Workspace) -> bool:
    return w.sizes[zone] > max(w.fewest[zone], 1)


def gather_givers(ratio: Numbers, w: Workspace) -> int:
    count = 0
    for zone in range(len(ratio)):
        if may_give(zone, w):
            w.givers[count] = zone
            w.giver_rank[zone] = giver_rank(ratio[zone], w.sizes[zone])
            count += 1
    build(w.givers, count, w.giver_rank)
    return count


def rank_takers(ratio: Numbers, w: Workspace) -> None:
    for zone in range(len(ratio)):
        w.taker_rank[zone] = taker_rank(ratio[zone], w.sizes[zone])


def move(giver: int, group: int, count: int, zones: int, w: Workspace) -> None:
    """Moves own endpoints of the giver to another row: a zone's group, or a shared group after them."""
    w.composition[giver * zones + giver] -= count
    w.composition[group * zones + giver] += count
    w.sizes[giver] -= count
    w.sizes[group] += count


def take(group: int, needed: int, givers: int, ratio: Numbers, w: Workspace) -> int:
    """Takes endpoints from the first giver, one at a time if there are several; returns the givers left or OVERLOADED."""
    zones = len(ratio)
    while needed > 0:
        if givers == 0:
            return OVERLOADED
        giver = w.givers[0]
        count = 1
        if givers == 1:
            count = min(needed, w.sizes[giver] - max(w.fewest[giver], 1))
        else:
            pop(w.givers, givers, w.giver_rank)
        move(giver, group, count, zones, w)
        needed -= count
        w.giver_rank[giver] = giver_rank(ratio[giver], w.sizes[giver])
        givers -= 1
        if may_give(giver, w):
            givers = push(w.givers, givers, giver, w.giver_rank)
    return givers


def relieve(givers: int, ratio: Numbers, w: Workspace) -> int:
    """Takes endpoints for every overloaded zone; returns the givers left or OVERLOADED."""
    takers = 0
    for zone in range(len(ratio)):
        if w.sizes[zone] < w.fewest[zone]:
            w.takers[takers] = zone
            takers += 1
    build(w.takers, takers, w.taker_rank)
    while takers > 0 and givers >= 0:
        taker = pop(w.takers, takers, w.taker_rank)
        takers -= 1
        givers = take(taker, w.fewest[taker] - w.sizes[taker], givers, ratio, w)
    return givers


def hand_over(giver: int, taker: int, expected: Numbers, w: Workspace) -> None:
    """Moves endpoints while the giver has a whole one too many and the taker lacks a whole one."""
    zones = len(expected)
    possible = min(w.sizes[giver] - expected[giver], expected[taker] - w.sizes[taker])
    move(giver, taker, max(int(possible) - 1, 0), zones, w)  # the comparisons below decide about the last one
    while w.sizes[giver] - expected[giver] >= 1 and expected[taker] - w.sizes[taker] >= 1:
        move(giver, taker, 1, zones, w)


def even_out(givers: int, expected: Numbers, ratio: Numbers, w: Workspace) -> None:
    """Moves whole surplus endpoints to the zones that lack a whole one."""
    zones = len(expected)
    rank_takers(ratio, w)
    for zone in range(zones):
        w.takers[zone] = zone
    build(w.takers, zones, w.taker_rank)
    while givers > 0:
        giver = pop(w.givers, givers, w.giver_rank)
        givers -= 1
        if w.sizes[giver] - expected[giver] < 1:
            return
        while w.sizes[giver] - expected[giver] >= 1:
            taker = pop(w.takers, zones, w.taker_rank)
            if expected[taker] - w.sizes[taker] < 1:
                return
            hand_over(giver, taker, expected, w)
            w.taker_rank[giver] = taker_rank(ratio[giver], w.sizes[giver])
            w.taker_rank[taker] = taker_rank(ratio[taker], w.sizes[taker])
            push(w.takers, zones - 1, taker, w.taker_rank)


def local(expected: Numbers, ratio: Numbers, endpoints: Counts, threshold: float, start: int, w: Workspace) -> int:
    zones = len(endpoints)
    total = 0
    for zone in range(zones):
        total += endpoints[zone]
    if total < start:
        spread(endpoints, w)
        return BELOW_START
    keep_own(expected, endpoints, threshold, w)
    rank_takers(ratio, w)
    givers = relieve(gather_givers(ratio, w), ratio, w)
    if givers == OVERLOADED:
        spread(endpoints, w)
        return OVERLOADED
    even_out(givers, expected, ratio, w)
    return zones


def require(endpoints: Counts, w: Workspace) -> int:
    zones = len(endpoints)
    clear(zones, zones, w)
    for zone in range(zones):
        w.composition[zone * zones + zone] = endpoints[zone]
        w.weight[zone * zones + zone] = 1
        w.sizes[zone] = endpoints[zone]
    return zones


def balanced(endpoints: Counts, w: Workspace) -> int:
    spread(endpoints, w)
    return 1
