"""Automatic hints in their strict form, which depend on slices: as upstream, one that is not written keeps its hints.

Comes after `placement`, where every other policy comes before it. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from zonewise.objects import EndpointHints, EndpointSlice
from zonewise.routing import EVERYONE, Decision, RoutingNodes, Tier
from zonewise.routing.endpoints import is_marked_ready
from zonewise.routing.hints_codec import zone_consumers
from zonewise.routing.hints_strict import hint_strictly
from zonewise.slices.decide.placement import PlacedSlice, Wanted, identity
from zonewise.slices.decide.route import hinted
from zonewise.topology import ZONE


def carry_hints(slices: Iterable[EndpointSlice], wanted: Wanted) -> None:
    """Ready endpoints keep their hints for now, so that placement sees no change in them."""
    was = {identity(endpoint): endpoint.hints for found in slices for endpoint in found.endpoints or ()}
    for endpoints in wanted.values():
        for key, endpoint in endpoints.items():
            endpoints[key] = hinted(endpoint, was.get(key) if is_marked_ready(endpoint) else None)


def hint_bodies(bodies: list[PlacedSlice], cluster: RoutingNodes, decision: Decision) -> Decision:
    """Hints the bodies in place; the decision becomes what these hints say."""
    changing = [body for body in bodies if body.changed]
    unchanged = [body for body in bodies if not body.changed]
    said = hint_strictly(
        cluster.cpu_shares, [body.endpoints for body in changing], [body.endpoints for body in unchanged]
    )
    for body, hints in zip((*changing, *unchanged), said.slices, strict=True):
        if hints is not None:
            _apply(body, hints)
    if not said.by_zone:
        return replace(decision, tiers=(EVERYONE,), reasons=(said.reason, *decision.reasons[1:]))
    consumers = {
        endpoint.addresses[0]: zone_consumers(endpoint.hints)
        for body in bodies
        for endpoint in body.endpoints
        if is_marked_ready(endpoint)
    }
    return replace(decision, tiers=(Tier(ZONE, consumers), EVERYONE), reasons=(said.reason, *decision.reasons[1:]))


def _apply(body: PlacedSlice, hints: tuple[EndpointHints | None, ...]) -> None:
    for index, (endpoint, given) in enumerate(zip(body.endpoints, hints, strict=True)):
        if endpoint.hints != given:
            body.endpoints[index] = hinted(endpoint, given)
            body.changed = True
