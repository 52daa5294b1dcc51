"""What moves when a placement is written: counts for metrics, and an order in which endpoints come before they go. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from zonewise.objects import Endpoint
from zonewise.routing.endpoints import is_marked_ready
from zonewise.slices.decide.placement import PlacedSlice, Placement, identity


class EndpointMoves(NamedTuple):
    """`reallocated` endpoints are ready, before and after, and for other zones."""

    added: int
    removed: int
    reallocated: int


def count_moves(placement: Placement) -> EndpointMoves:
    moved = sum(key in placement.come for key in placement.gone)
    return EndpointMoves(len(placement.come) - moved, len(placement.gone) - moved, _reallocated(placement))


def in_safe_order(placement: Placement, updates: Sequence[PlacedSlice]) -> Sequence[PlacedSlice]:
    """Updates in an order that never leaves a Service without a ready endpoint that had one and will have one.

    And in which a ready endpoint is added to its new slice before its old one loses it. Where slices swap endpoints no
    order does that; then the one that waits for the fewest goes first.
    """
    if len(updates) < 2:
        return updates
    idle = [not any(map(is_marked_ready, body.endpoints)) for body in updates]
    waits_for = _waits_for(placement, updates)
    if not any(waits_for):
        return [updates[index] for index in sorted(range(len(updates)), key=idle.__getitem__)]
    waiting = set(range(len(updates)))
    order: list[int] = []
    while waiting:
        order.append(min(waiting, key=lambda index: (idle[index], len(waits_for[index] & waiting), index)))
        waiting.remove(order[-1])
    return [updates[index] for index in order]


def _waits_for(placement: Placement, updates: Sequence[PlacedSlice]) -> list[set[int]]:
    """For each update, which others take ready endpoints from its slice."""
    takers: dict[str, set[int]] = {}
    for index, body in enumerate(updates if placement.gone else ()):
        for endpoint in filter(is_marked_ready, body.endpoints):
            giver = placement.gone.get(identity(endpoint))
            if giver and giver is not body.existing:
                takers.setdefault(giver.metadata.name, set()).add(index)
    return [takers.get(_name(body), set()) for body in updates]


def _name(body: PlacedSlice) -> str:
    return body.existing.metadata.name if body.existing else ""


def _reallocated(placement: Placement) -> int:
    changed = [body for body in placement.bodies if body.changed]
    before = {
        identity(endpoint): endpoint
        for found in (*placement.emptied, *(body.existing for body in changed if body.existing))
        for endpoint in found.endpoints or ()
        if is_marked_ready(endpoint)
    }
    return sum(_serves_others(before.get(identity(endpoint)), endpoint) for endpoint in _endpoints(changed))


def _serves_others(before: Endpoint | None, after: Endpoint) -> bool:
    return before is not None and is_marked_ready(after) and _zones(before) != _zones(after)


def _zones(endpoint: Endpoint) -> frozenset[str]:
    return frozenset(hint.name for hint in endpoint.hints.for_zones) if endpoint.hints else frozenset()


def _endpoints(bodies: Iterable[PlacedSlice]) -> Iterable[Endpoint]:
    return (endpoint for body in bodies for endpoint in body.endpoints)
