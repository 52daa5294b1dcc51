"""Work vectors of the algorithms: lists in the controller, arrays in the simulator, which compiles the algorithms.

A matrix is one flat vector, row by row, which reads the same and is cheapest in both. Row g of `composition` holds how
many endpoints group g takes from each zone, row g of `weight` the weight with which each zone consumes it. Every
algorithm writes its groups to the first rows and returns their number; a negative result is a `Downgrade` and leaves one
group of everything.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Any, Final, NamedTuple

Ints = MutableSequence[int]
Reals = MutableSequence[Any]  # floats; fractions where the controller needs exact weights
Counts = Sequence[int]
Numbers = Sequence[Any]

GROUPS_PER_ZONE: Final = 3  # local-weighted: its own, the fractional and the whole endpoints left over


class Workspace(NamedTuple):
    composition: Ints
    weight: Reals
    sizes: Ints
    givers: Ints
    takers: Ints
    urgent: Ints
    fewest: Ints
    giver_rank: Reals
    taker_rank: Reals
    needs: Ints
    offers: Ints
    need_zone: Ints
    need_amount: Reals
    offer_zone: Ints
    offer_count: Ints
    offer_own: Reals


def new_workspace(zones: int) -> Workspace:
    rows = GROUPS_PER_ZONE * zones
    return Workspace(
        composition=[0] * (rows * zones),
        weight=[0.0] * (rows * zones),
        sizes=[0] * rows,
        givers=[0] * zones,
        takers=[0] * zones,
        urgent=[0] * zones,
        fewest=[0] * zones,
        giver_rank=[0.0] * zones,
        taker_rank=[0.0] * zones,
        needs=[0] * zones,
        offers=[0] * zones,
        need_zone=[0] * (2 * zones),
        need_amount=[0.0] * (2 * zones),
        offer_zone=[0] * (2 * zones),
        offer_count=[0] * (2 * zones),
        offer_own=[0.0] * (2 * zones),
    )


def clear(rows: int, zones: int, workspace: Workspace) -> None:
    for at in range(rows * zones):
        workspace.composition[at] = 0
        workspace.weight[at] = 0
    for row in range(rows):
        workspace.sizes[row] = 0


def spread(endpoints: Counts, workspace: Workspace) -> None:
    """One group of all endpoints for all zones: balanced."""
    zones = len(endpoints)
    total = 0
    for zone in range(zones):
        workspace.composition[zone] = endpoints[zone]
        workspace.weight[zone] = 1
        total += endpoints[zone]
    workspace.sizes[0] = total
