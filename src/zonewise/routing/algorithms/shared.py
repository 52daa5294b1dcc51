"""`local-shared`: like local, but zones without endpoints share one group, and so do zones that stay overloaded.

Groups stand in the rows of their zones; the shared group of the zones without endpoints stands in the row after them,
the shared group of the urgent zones in the row of the first of those.
"""

from __future__ import annotations

import math

from zonewise.routing.algorithms.heap import build, pop, push
from zonewise.routing.algorithms.local import (
    OVERLOADED,
    TOO_FEW,
    gather_givers,
    keep_own,
    move,
    overloaded,
    take_one,
)
from zonewise.routing.algorithms.workspace import Counts, Numbers, Workspace, spread


def whole_need(amount: float) -> int:
    """Half up, after thousandths are rounded up; anything below one endpoint needs one."""
    thousandths = math.ceil(amount * 1000) / 1000
    if thousandths >= 1:
        return math.floor(thousandths + 0.5)
    return math.ceil(thousandths)


def merge_empty(expected: Numbers, endpoints: Counts, w: Workspace) -> int:
    """All zones without endpoints consume the last row; how many endpoints it needs."""
    zones = len(endpoints)
    demand = 0.0
    for zone in range(zones):
        if endpoints[zone] == 0:
            w.weight[zone * zones + zone] = 0
            w.weight[zones * zones + zone] = 1
            demand += expected[zone]
    return whole_need(demand)


def serve_needs(
    givers: int, expected: Numbers, ratio: Numbers, endpoints: Counts, threshold: float, w: Workspace
) -> int:
    """Whole endpoints for the zones without any and for those that miss a whole one; the givers left, or OVERLOADED."""
    zones = len(endpoints)
    empty_need = merge_empty(expected, endpoints, w)
    for at in range(zones + 1):
        group = zones if at == 0 else at - 1
        if at == 0:
            need = empty_need
        elif endpoints[group] > 0 and endpoints[group] - expected[group] <= -1:
            need = math.floor(expected[group] - endpoints[group])
        else:
            need = 0
        for _ in range(need):
            if givers == 0:
                return OVERLOADED
            givers = take_one(group, givers, expected, ratio, threshold, w)
    return givers


def gather_urgent(expected: Numbers, endpoints: Counts, threshold: float, w: Workspace) -> tuple[int, int]:
    """The zones that are still overloaded go to `urgent`, worst first; the others with endpoints stay in `takers`."""
    takers = 0
    for zone in range(len(endpoints)):
        if endpoints[zone] > 0:
            w.takers[takers] = zone
            takers += 1
    build(w.takers, takers, w.taker_rank)
    urgent = 0
    while takers > 0 and overloaded(expected[w.takers[0]], w.sizes[w.takers[0]], threshold):
        w.urgent[urgent] = pop(w.takers, takers, w.taker_rank)
        takers -= 1
        urgent += 1
    return urgent, takers


def has_surplus(zone: int, expected: Numbers, w: Workspace) -> bool:
    return bool(w.sizes[zone] - expected[zone] >= 1)


def collect_extras(
    wanted: int, givers: int, expected: Numbers, ratio: Numbers, threshold: float, w: Workspace
) -> tuple[int, int]:
    """Up to `wanted` endpoints from givers with a surplus into the spare row; how many, and the givers left."""
    spare = len(expected) + 1
    collected = 0
    while collected < wanted and givers > 0 and has_surplus(w.givers[0], expected, w):
        givers = take_one(spare, givers, expected, ratio, threshold, w)
        collected += 1
    return collected, givers


def hand_out_extras(urgent: int, ratio: Numbers, w: Workspace) -> None:
    """One extra for each urgent zone, in zone order of the donors."""
    zones = len(ratio)
    donor = 0
    for at in range(urgent):
        while w.composition[(zones + 1) * zones + donor] == 0:
            donor += 1
        zone = w.urgent[at]
        w.composition[(zones + 1) * zones + donor] -= 1
        w.composition[zone * zones + donor] += 1
        w.sizes[zone] += 1


def join_urgent(urgent: int, expected: Numbers, w: Workspace) -> float:
    """The urgent zones and the extras become one group, in the row of the first; what it expects."""
    zones = len(expected)
    group = w.urgent[0]
    demand: float = expected[group]
    for at in range(1, urgent + 1):
        row = w.urgent[at] if at < urgent else zones + 1
        for zone in range(zones):
            w.composition[group * zones + zone] += w.composition[row * zones + zone]
            w.composition[row * zones + zone] = 0
        w.sizes[group] += w.sizes[row]
        w.sizes[row] = 0
        if at < urgent:
            w.weight[row * zones + row] = 0
            w.weight[group * zones + row] = 1
            demand += expected[row]
    return demand


def relieve_urgent(urgent: int, givers: int, expected: Numbers, ratio: Numbers, threshold: float, w: Workspace) -> int:
    """One endpoint for each urgent zone, else one group for them all; the givers left, or OVERLOADED."""
    collected, givers = collect_extras(urgent, givers, expected, ratio, threshold, w)
    if collected == urgent:
        hand_out_extras(urgent, ratio, w)
        return givers
    demand = join_urgent(urgent, expected, w)
    group = w.urgent[0]
    while overloaded(demand, w.sizes[group], threshold):
        if givers == 0:
            return OVERLOADED
        givers = take_one(group, givers, expected, ratio, threshold, w)
    return givers


def even_out_shared(takers: int, givers: int, expected: Numbers, ratio: Numbers, w: Workspace) -> None:
    """Whole endpoints above what a zone expects go to the zones with the most load that were not urgent."""
    while givers > 0 and takers > 0 and has_surplus(w.givers[0], expected, w):
        giver = pop(w.givers, givers, w.giver_rank)
        taker = pop(w.takers, takers, w.taker_rank)
        if giver == taker:
            return
        move(giver, taker, len(expected), w, ratio)
        push(w.givers, givers - 1, giver, w.giver_rank)
        push(w.takers, takers - 1, taker, w.taker_rank)


def local_shared(expected: Numbers, ratio: Numbers, endpoints: Counts, threshold: float, w: Workspace) -> int:
    zones = len(endpoints)
    total = 0
    for zone in range(zones):
        total += endpoints[zone]
    if total < zones:
        spread(endpoints, w)
        return TOO_FEW
    keep_own(endpoints, ratio, w)
    givers = gather_givers(expected, threshold, w)
    givers = serve_needs(givers, expected, ratio, endpoints, threshold, w)
    if givers != OVERLOADED:
        urgent, takers = gather_urgent(expected, endpoints, threshold, w)
        if urgent > 0:
            givers = relieve_urgent(urgent, givers, expected, ratio, threshold, w)
        if givers != OVERLOADED:
            even_out_shared(takers, givers, expected, ratio, w)
            return zones + 1
    spread(endpoints, w)
    return OVERLOADED
