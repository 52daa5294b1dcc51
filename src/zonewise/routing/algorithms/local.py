"""`balanced`, `require` and `local`: groups without weights, each zone consuming one.

`local` starts from every zone's own endpoints and moves as few as keep each endpoint's overload below the threshold,
then evens out what is left. It downgrades to balanced where that cannot be done.
"""

from __future__ import annotations

import math
from typing import Final

from zonewise.routing.algorithms.heap import build, pop, push
from zonewise.routing.algorithms.workspace import Counts, Ints, Numbers, Reals, Workspace, clear, spread

BELOW_START: Final = -1
OVERLOADED: Final = -2
TOO_FEW: Final = -3

NEARLY_LAST: Final = 1e300


def overloaded(expected: float, size: int, threshold: float) -> bool:
    if size == 0:
        return expected > 0
    return expected / size - 1 >= threshold


def may_give(expected: float, size: int, threshold: float) -> bool:
    return size > 1 and not overloaded(expected, size - 1, threshold)


def rank(zone: int, ratio: Numbers, sizes: Ints, giver_rank: Reals, taker_rank: Reals) -> None:
    """Who gives first has the least load once it gave; who takes first has the most load."""
    size = sizes[zone]
    if size > 1:
        giver_rank[zone] = ratio[zone] / (size - 1)
        taker_rank[zone] = -ratio[zone] / size
    elif size == 1:
        giver_rank[zone] = NEARLY_LAST
        taker_rank[zone] = -ratio[zone]
    else:
        giver_rank[zone] = math.inf
        taker_rank[zone] = -math.inf


def move(giver: int, group: int, zones: int, w: Workspace, ratio: Numbers) -> None:
    """One of the giver's own endpoints goes to a group: a zone's own, or a shared one behind them."""
    w.composition[giver * zones + giver] -= 1
    w.composition[group * zones + giver] += 1
    w.sizes[giver] -= 1
    w.sizes[group] += 1
    rank(giver, ratio, w.sizes, w.giver_rank, w.taker_rank)
    if group < zones:
        rank(group, ratio, w.sizes, w.giver_rank, w.taker_rank)


def keep_own(endpoints: Counts, ratio: Numbers, w: Workspace) -> None:
    zones = len(endpoints)
    clear(w, zones + 1, zones)
    for zone in range(zones):
        w.composition[zone * zones + zone] = endpoints[zone]
        w.weight[zone * zones + zone] = 1
        w.sizes[zone] = endpoints[zone]
        rank(zone, ratio, w.sizes, w.giver_rank, w.taker_rank)


def gather_givers(expected: Numbers, threshold: float, w: Workspace) -> int:
    count = 0
    for zone in range(len(expected)):
        if may_give(expected[zone], w.sizes[zone], threshold):
            w.givers[count] = zone
            count += 1
    build(w.givers, count, w.giver_rank)
    return count


def take_one(group: int, givers: int, expected: Numbers, ratio: Numbers, threshold: float, w: Workspace) -> int:
    """One endpoint from the first giver, who stays in the pool while it may give; the pool's new count."""
    giver = pop(w.givers, givers, w.giver_rank)
    givers -= 1
    move(giver, group, len(expected), w, ratio)
    if may_give(expected[giver], w.sizes[giver], threshold):
        givers = push(w.givers, givers, giver, w.giver_rank)
    return givers


def relieve(givers: int, expected: Numbers, ratio: Numbers, threshold: float, w: Workspace) -> int:
    """Endpoints for every overloaded zone; the givers left, or OVERLOADED."""
    takers = 0
    for zone in range(len(expected)):
        if overloaded(expected[zone], w.sizes[zone], threshold):
            w.takers[takers] = zone
            takers += 1
    build(w.takers, takers, w.taker_rank)
    while takers > 0:
        taker = pop(w.takers, takers, w.taker_rank)
        takers -= 1
        while overloaded(expected[taker], w.sizes[taker], threshold):
            if givers == 0:
                return OVERLOADED
            givers = take_one(taker, givers, expected, ratio, threshold, w)
    return givers


def even_out(givers: int, expected: Numbers, ratio: Numbers, w: Workspace) -> None:
    """Whole endpoints above what a zone expects go to the zones that miss a whole one."""
    zones = len(expected)
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
            while w.sizes[giver] - expected[giver] >= 1 and expected[taker] - w.sizes[taker] >= 1:
                move(giver, taker, zones, w, ratio)
            push(w.takers, zones - 1, taker, w.taker_rank)


def local(expected: Numbers, ratio: Numbers, endpoints: Counts, threshold: float, start: int, w: Workspace) -> int:
    zones = len(endpoints)
    total = 0
    for zone in range(zones):
        total += endpoints[zone]
    if total < start:
        spread(endpoints, w)
        return BELOW_START
    keep_own(endpoints, ratio, w)
    givers = relieve(gather_givers(expected, threshold, w), expected, ratio, threshold, w)
    if givers == OVERLOADED:
        spread(endpoints, w)
        return OVERLOADED
    even_out(givers, expected, ratio, w)
    return zones


def require(endpoints: Counts, w: Workspace) -> int:
    zones = len(endpoints)
    clear(w, zones, zones)
    for zone in range(zones):
        w.composition[zone * zones + zone] = endpoints[zone]
        w.weight[zone * zones + zone] = 1
        w.sizes[zone] = endpoints[zone]
    return zones


def balanced(endpoints: Counts, w: Workspace) -> int:
    spread(endpoints, w)
    return 1
