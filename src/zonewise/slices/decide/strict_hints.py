"""Strict automatic hints, which depend on the slices: as upstream, a slice that is not written keeps its hints.

Runs after `placement`; every other policy is applied before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from zonewise.objects import EndpointHints, EndpointSlice
from zonewise.routing import EVERYONE, Decision, RoutingNodes, Tier
from zonewise.routing.endpoints import is_marked_ready
from zonewise.routing.hints_codec import zone_consumers
from zonewise.routing.hints_strict import hint_strictly
from zonewise.slices.decide.placement import Desired, PlacedSlice, identity
from zonewise.slices.decide.route import with_hints
from zonewise.topology import ZONE


def carry_hints(slices: Iterable[EndpointSlice], desired: Desired) -> None:
    """Ready endpoints keep their hints for now, so that placement sees them unchanged."""
    last_hints = {
        identity(endpoint): endpoint.hints for endpoint_slice in slices for endpoint in endpoint_slice.endpoints or ()
    }
    for endpoints in desired.values():
        for key, endpoint in endpoints.items():
            endpoints[key] = with_hints(endpoint, last_hints.get(key) if is_marked_ready(endpoint) else None)


def hint_slices(slices: list[PlacedSlice], cluster: RoutingNodes, decision: Decision) -> Decision:
    """Sets the hints in place; returns the decision that these hints express."""
    changing = [placed for placed in slices if placed.changed]
    unchanged = [placed for placed in slices if not placed.changed]
    hinted_slices = hint_strictly(
        cluster.cpu_shares, [placed.endpoints for placed in changing], [placed.endpoints for placed in unchanged]
    )
    for placed, hints in zip((*changing, *unchanged), hinted_slices.slices, strict=True):
        if hints is not None:
            _apply(placed, hints)
    if not hinted_slices.by_zone:
        return replace(decision, tiers=(EVERYONE,), reasons=(hinted_slices.reason, *decision.reasons[1:]))
    consumers = {
        endpoint.addresses[0]: zone_consumers(endpoint.hints)
        for placed in slices
        for endpoint in placed.endpoints
        if is_marked_ready(endpoint)
    }
    return replace(
        decision, tiers=(Tier(ZONE, consumers), EVERYONE), reasons=(hinted_slices.reason, *decision.reasons[1:])
    )


def _apply(placed: PlacedSlice, hints: tuple[EndpointHints | None, ...]) -> None:
    for index, (endpoint, endpoint_hints) in enumerate(zip(placed.endpoints, hints, strict=True)):
        if endpoint.hints != endpoint_hints:
            placed.endpoints[index] = with_hints(endpoint, endpoint_hints)
            placed.changed = True
