"""The order of slice updates that adds endpoints before it removes them, and the counts of moves for metrics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from zonewise.objects import Endpoint
from zonewise.routing.endpoints import is_marked_ready
from zonewise.slices.decide.placement import PlacedSlice, Placement, identity


class EndpointMoves(NamedTuple):
    """As the stock controller counts: an endpoint that moves to another set of slices is `added` and `removed`.

    `reallocated` endpoints are ready before and after, and serve other zones.
    """

    added: int
    removed: int
    reallocated: int


def count_moves(placement: Placement) -> EndpointMoves:
    return EndpointMoves(len(placement.added), len(placement.removed), _reallocated(placement))


def in_safe_order(placement: Placement, updates: Sequence[PlacedSlice]) -> Sequence[PlacedSlice]:
    """Updates in an order in which a Service with a ready endpoint before and after always has one in between.

    A ready endpoint is added to its new slice before the old slice loses it. If slices swap endpoints no order can do
    that; then the update that waits for the fewest others comes first.
    """
    if len(updates) < 2:
        return updates
    unready = [not any(map(is_marked_ready, placed.endpoints)) for placed in updates]
    waits_for = _waits_for(placement, updates)
    if not any(waits_for):
        return [updates[index] for index in sorted(range(len(updates)), key=unready.__getitem__)]
    waiting = set(range(len(updates)))
    order: list[int] = []
    while waiting:
        order.append(min(waiting, key=lambda index: (unready[index], len(waits_for[index] & waiting), index)))
        waiting.remove(order[-1])
    return [updates[index] for index in order]


def _waits_for(placement: Placement, updates: Sequence[PlacedSlice]) -> list[set[int]]:
    """For each update, the other updates that take ready endpoints from its slice."""
    takers: dict[str, set[int]] = {}
    for index, placed in enumerate(updates if placement.removed else ()):
        for endpoint in filter(is_marked_ready, placed.endpoints):
            giver = placement.removed.get(identity(endpoint))
            if giver and giver is not placed.existing:
                takers.setdefault(giver.metadata.name, set()).add(index)
    return [takers.get(_name(placed), set()) for placed in updates]


def _name(placed: PlacedSlice) -> str:
    return placed.existing.metadata.name if placed.existing else ""


def _reallocated(placement: Placement) -> int:
    changed = [placed for placed in placement.slices if placed.changed]
    before = {
        identity(endpoint): endpoint
        for endpoint_slice in (*placement.emptied, *(placed.existing for placed in changed if placed.existing))
        for endpoint in endpoint_slice.endpoints or ()
        if is_marked_ready(endpoint)
    }
    return sum(_serves_others(before.get(identity(endpoint)), endpoint) for endpoint in _endpoints(changed))


def _serves_others(before: Endpoint | None, after: Endpoint) -> bool:
    return before is not None and is_marked_ready(after) and _zones(before) != _zones(after)


def _zones(endpoint: Endpoint) -> frozenset[str]:
    return frozenset(hint.name for hint in endpoint.hints.for_zones) if endpoint.hints else frozenset()


def _endpoints(slices: Iterable[PlacedSlice]) -> Iterable[Endpoint]:
    return (endpoint for placed in slices for endpoint in placed.endpoints)
