"""`local-shared`: like local, but zones without endpoints share one group, and so do zones that stay overloaded.

The first rows are the groups of the zones. After them come the shared group of the zones without endpoints, and a spare
row that collects endpoints for urgent zones; urgent zones that must share use the row of the first of them.
"""

from __future__ import annotations

import math

from zonewise.routing.algorithms.heap import build, pop, push
from zonewise.routing.algorithms.local import (
    OVERLOADED,
    TOO_FEW,
    fewest,
    gather_givers,
    giver_rank,
    keep_own,
    move,
    rank_takers,
    take,
    taker_rank,
)
from zonewise.routing.algorithms.workspace import Counts, Numbers, Workspace, spread


def whole_need(amount: float) -> int:
    """Half up, after thousandths are rounded up; anything below one endpoint needs one."""
    thousandths = math.ceil(amount * 1000) / 1000
    if thousandths >= 1:
        return math.floor(thousandths + 0.5)
    return math.ceil(thousandths)


def merge_empty(expected: Numbers, endpoints: Counts, workspace: Workspace) -> int:
    """Makes zones without endpoints consume the row after the zones; returns how many endpoints it needs."""
    zones = len(endpoints)
    demand = 0.0
    for zone in range(zones):
        if endpoints[zone] == 0:
            workspace.weight[zone * zones + zone] = 0
            workspace.weight[zones * zones + zone] = 1
            demand += expected[zone]
    return whole_need(demand)


def serve_needs(givers: int, expected: Numbers, ratio: Numbers, endpoints: Counts, workspace: Workspace) -> int:
    """Takes endpoints for zones without any, and for those that lack one; returns the givers left or OVERLOADED."""
    zones = len(endpoints)
    givers = take(zones, merge_empty(expected, endpoints, workspace), givers, ratio, workspace)
    for zone in range(zones):
        if givers >= 0 and endpoints[zone] > 0 and endpoints[zone] - expected[zone] <= -1:
            givers = take(zone, math.floor(expected[zone] - endpoints[zone]), givers, ratio, workspace)
    return givers


def gather_urgent(ratio: Numbers, endpoints: Counts, workspace: Workspace) -> tuple[int, int]:
    """Moves zones that are still overloaded to `urgent`, worst first; others with endpoints stay in `takers`."""
    rank_takers(ratio, workspace)
    takers = 0
    for zone in range(len(endpoints)):
        if endpoints[zone] > 0:
            workspace.takers[takers] = zone
            takers += 1
    build(workspace.takers, takers, workspace.taker_rank)
    urgent = 0
    while takers > 0 and workspace.sizes[workspace.takers[0]] < workspace.fewest[workspace.takers[0]]:
        workspace.urgent[urgent] = pop(workspace.takers, takers, workspace.taker_rank)
        takers -= 1
        urgent += 1
    return urgent, takers


def has_surplus(zone: int, expected: Numbers, workspace: Workspace) -> bool:
    return bool(workspace.sizes[zone] - expected[zone] >= 1)


def hand_out_extras(urgent: int, zones: int, workspace: Workspace) -> None:
    """Gives each urgent zone one endpoint of the spare row, in zone order of the donors."""
    spare = (zones + 1) * zones
    donor = 0
    for at in range(urgent):
        while workspace.composition[spare + donor] == 0:
            donor += 1
        workspace.composition[spare + donor] -= 1
        workspace.composition[workspace.urgent[at] * zones + donor] += 1
        workspace.sizes[workspace.urgent[at]] += 1
    workspace.sizes[zones + 1] = 0


def join(row: int, group: int, zones: int, workspace: Workspace) -> None:
    for zone in range(zones):
        workspace.composition[group * zones + zone] += workspace.composition[row * zones + zone]
        workspace.composition[row * zones + zone] = 0
    workspace.sizes[group] += workspace.sizes[row]
    workspace.sizes[row] = 0


def join_urgent(urgent: int, expected: Numbers, workspace: Workspace) -> float:
    """Joins the urgent zones and the spare row in the row of the first; returns the expected endpoints."""
    zones = len(expected)
    group = workspace.urgent[0]
    demand: float = expected[group]
    for at in range(1, urgent):
        zone = workspace.urgent[at]
        join(zone, group, zones, workspace)
        workspace.weight[zone * zones + zone] = 0
        workspace.weight[group * zones + zone] = 1
        demand += expected[zone]
    join(zones + 1, group, zones, workspace)
    return demand


def relieve_urgent(
    urgent: int, givers: int, expected: Numbers, ratio: Numbers, threshold: float, workspace: Workspace
) -> int:
    """One endpoint for each urgent zone, else one group for all of them; returns the givers left or OVERLOADED."""
    zones = len(expected)
    collected = 0
    while collected < urgent and givers > 0 and has_surplus(workspace.givers[0], expected, workspace):
        givers = take(zones + 1, 1, givers, ratio, workspace)
        collected += 1
    if collected == urgent:
        hand_out_extras(urgent, zones, workspace)
        return givers
    demand = join_urgent(urgent, expected, workspace)
    group = workspace.urgent[0]
    return take(group, fewest(demand, threshold) - workspace.sizes[group], givers, ratio, workspace)


def even_out_shared(takers: int, givers: int, expected: Numbers, ratio: Numbers, workspace: Workspace) -> None:
    """Moves whole surplus endpoints to the zones with the most load that were not urgent."""
    while givers > 0 and takers > 0 and has_surplus(workspace.givers[0], expected, workspace):
        giver = pop(workspace.givers, givers, workspace.giver_rank)
        taker = pop(workspace.takers, takers, workspace.taker_rank)
        if giver == taker:
            return
        move(giver, taker, 1, len(expected), workspace)
        workspace.giver_rank[giver] = giver_rank(ratio[giver], workspace.sizes[giver])
        workspace.giver_rank[taker] = giver_rank(ratio[taker], workspace.sizes[taker])
        workspace.taker_rank[giver] = taker_rank(ratio[giver], workspace.sizes[giver])
        workspace.taker_rank[taker] = taker_rank(ratio[taker], workspace.sizes[taker])
        push(workspace.givers, givers - 1, giver, workspace.giver_rank)
        push(workspace.takers, takers - 1, taker, workspace.taker_rank)


def local_shared(expected: Numbers, ratio: Numbers, endpoints: Counts, threshold: float, workspace: Workspace) -> int:
    zones = len(endpoints)
    total = 0
    for zone in range(zones):
        total += endpoints[zone]
    if total < zones:
        spread(endpoints, workspace)
        return TOO_FEW
    keep_own(expected, endpoints, threshold, workspace)
    givers = serve_needs(gather_givers(ratio, workspace), expected, ratio, endpoints, workspace)
    urgent, takers = gather_urgent(ratio, endpoints, workspace)
    if givers >= 0 and urgent > 0:
        givers = relieve_urgent(urgent, givers, expected, ratio, threshold, workspace)
    if givers < 0:
        spread(endpoints, workspace)
        return OVERLOADED
    even_out_shared(takers, givers, expected, ratio, workspace)
    return zones + 1
