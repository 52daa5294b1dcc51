"""Strict automatic hints: the arithmetic of the stock EndpointSlice controller, bit for bit.

Endpoints are divided over zones in proportion to the allocatable CPU of their nodes, and every endpoint is hinted for
one zone. Where upstream iterates a map in random order, zones are sorted by name here, so that the same input always
gives the same result. Follows `k8s.io/endpointslice/topologycache`; `hints_stable` has the improved form.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from zonewise.objects import Endpoint, EndpointHints, Hint, Node
from zonewise.routing.endpoints import is_marked_ready
from zonewise.routing.reason import RoutingCode, RoutingReason, RoutingSubject
from zonewise.topology import ZONE, capacity_of

OVERLOAD_THRESHOLD: Final = 0.2
_ROOM: Final = 1 / (1 + OVERLOAD_THRESHOLD)

Slice = Sequence[Endpoint]
Hints = tuple[EndpointHints | None, ...]


class Allocation(NamedTuple):
    """The fewest and most endpoints that may be hinted for a zone, and the number it should have."""

    minimum: int
    maximum: int
    desired: float


@dataclass(frozen=True, slots=True)
class Hinted:
    """The hints of every endpoint, by slice in the order given; None for a slice that keeps its hints.

    If hints are off, `by_zone` is empty and the hints of the slices are to be removed.
    """

    slices: tuple[Hints | None, ...]
    by_zone: Mapping[str, int]
    reason: RoutingReason


def cpu_shares(nodes: Iterable[Node]) -> Mapping[str, float] | RoutingReason:
    """Each zone's share of the CPU of ready workers. One node without zone or CPU disables it for the cluster."""
    cpu_millis: Counter[str] = Counter()
    lacking: dict[str, str] = {}
    for node in nodes:
        capacity = capacity_of(node)
        if capacity.control_plane or not capacity.ready:
            continue
        zone = node.metadata.labels.get(ZONE)  # upstream no longer reads the old label
        if not zone or not capacity.cpu_millis:
            lacking[node.metadata.name] = "allocatable CPU" if zone else f"label {ZONE}"
        else:
            cpu_millis[zone] += capacity.cpu_millis
    if lacking:
        return _nodes_lacking(dict(sorted(lacking.items())))
    if len(cpu_millis) < 2:
        return _too_few_zones(sorted(cpu_millis))
    total = sum(cpu_millis.values())
    return {zone: cpu_millis[zone] / total for zone in sorted(cpu_millis)}


def allocate(shares: Mapping[str, float], endpoints: int) -> Mapping[str, Allocation] | RoutingReason:
    facts = {"endpoints": endpoints, "zones": len(shares)}
    if len(shares) > endpoints:
        sentence = f"{endpoints} ready endpoints are fewer than the {len(shares)} zones"
        return RoutingReason(
            RoutingCode.TOO_FEW_ENDPOINTS, sentence, facts, remedy=f"run at least {len(shares)} endpoints"
        )
    minimum = _minimums(shares, endpoints)
    spare = endpoints - sum(minimum.values())
    if spare < 0:
        sentence = (
            f"{endpoints} endpoints over {len(shares)} zones would overload some by {OVERLOAD_THRESHOLD:.0%} or more: "
            f"the zones need at least {endpoints - spare}"
        )
        return RoutingReason(
            RoutingCode.WOULD_OVERLOAD, sentence, facts, remedy=f"run {_next_accepted(shares, endpoints)} endpoints"
        )
    return {
        zone: Allocation(minimum[zone], minimum[zone] + spare, max(share * endpoints, float(minimum[zone])))
        for zone, share in shares.items()
    }


def _minimums(shares: Mapping[str, float], endpoints: int) -> Mapping[str, int]:
    return {zone: math.ceil(share * endpoints * _ROOM) for zone, share in shares.items()}


def _next_accepted(shares: Mapping[str, float], endpoints: int) -> int:
    """The next accepted number. It exists: for large numbers the minimums are well below the shares."""
    return next(more for more in itertools.count(endpoints + 1) if sum(_minimums(shares, more).values()) <= more)


def hint_strictly(
    shares: Mapping[str, float] | RoutingReason, changing: Sequence[Slice], unchanged: Sequence[Slice] = ()
) -> Hinted:
    """`changing` slices are written anyway; `unchanged` ones keep their hints if these are valid."""
    slices = (*changing, *unchanged)
    ready = sum(is_marked_ready(endpoint) for endpoints in slices for endpoint in endpoints)
    allocations = shares if isinstance(shares, RoutingReason) else allocate(shares, ready)
    if isinstance(allocations, RoutingReason):
        return _off(slices, [True] * len(changing) + [False] * len(unchanged), allocations)
    kept, by_zone = _keep_valid(unchanged, allocations)
    is_written = [True] * len(changing) + [not keep for keep in kept]
    to_hint = [endpoints for endpoints, write in zip(slices, is_written, strict=True) if write]
    if without_zone := [endpoint for endpoints in to_hint for endpoint in endpoints if _lacks_zone(endpoint)]:
        return _off(slices, is_written, _endpoints_without_zone(without_zone))
    hinted = iter(_hint_all(to_hint, allocations, by_zone))
    hints = tuple(next(hinted) if write else None for write in is_written)
    facts = {"zones": dict(by_zone), "endpoints": ready}
    return Hinted(
        hints,
        by_zone,
        RoutingReason(RoutingCode.HINTED, f"{ready} endpoints are hinted by the CPU of their zones", facts),
    )


def _keep_valid(unchanged: Sequence[Slice], allocations: Mapping[str, Allocation]) -> tuple[list[bool], dict[str, int]]:
    """Which slices keep their hints, and the number of these hints per zone."""
    by_zone: dict[str, int] = {}
    kept = []
    for endpoints in unchanged:
        hints_by_zone = _count_hints(endpoints)
        valid = hints_by_zone is not None and all(
            zone in allocations and by_zone.get(zone, 0) + count <= allocations[zone].maximum
            for zone, count in hints_by_zone.items()
        )
        kept.append(valid)
        if valid and hints_by_zone:
            for zone, count in hints_by_zone.items():
                by_zone[zone] = by_zone.get(zone, 0) + count
    return kept, by_zone


def _count_hints(endpoints: Slice) -> Counter[str] | None:
    """Hints per zone; None if a ready endpoint has no hint."""
    hints_by_zone: Counter[str] = Counter()
    for endpoint in endpoints:
        if is_marked_ready(endpoint):
            if endpoint.hints is None or not endpoint.hints.for_zones:
                return None
            hints_by_zone.update(hint.name for hint in endpoint.hints.for_zones)
    return hints_by_zone


def _hint_all(slices: Sequence[Slice], allocations: Mapping[str, Allocation], by_zone: dict[str, int]) -> list[Hints]:
    """Own zones first, then the surplus of one zone goes to the lack of another; counts into `by_zone`.

    An endpoint that is not ready keeps its hints: upstream means to remove them but changes a copy.
    """
    ready = Counter(endpoint.zone or "" for endpoints in slices for endpoint in endpoints if is_marked_ready(endpoint))
    for zone, count in ready.items():
        by_zone[zone] = by_zone.get(zone, 0) + count
    giving, receiving = _transfers(allocations, by_zone)
    hints = {zone: EndpointHints(for_zones=(Hint(name=zone),)) for zone in {*by_zone, *receiving}}
    return [
        tuple(
            hints[_zone_for(endpoint, giving, receiving, by_zone)] if is_marked_ready(endpoint) else endpoint.hints
            for endpoint in endpoints
        )
        for endpoints in slices
    ]


def _transfers(allocations: Mapping[str, Allocation], by_zone: Mapping[str, int]) -> tuple[Counter[str], Counter[str]]:
    surplus = {zone: by_zone.get(zone, 0) - allocation.desired for zone, allocation in sorted(allocations.items())}
    lack = {zone: allocation.desired - by_zone.get(zone, 0) for zone, allocation in sorted(allocations.items())}
    giving: Counter[str] = Counter()
    receiving: Counter[str] = Counter()
    while True:
        giver, taker = max(surplus, key=surplus.__getitem__), max(lack, key=lack.__getitem__)
        if max(surplus[giver], lack[taker]) < 1.0 or min(surplus[giver], lack[taker]) < 0.5:
            return giving, receiving
        giving[giver] += 1
        surplus[giver] -= 1
        receiving[taker] += 1
        lack[taker] -= 1


def _zone_for(endpoint: Endpoint, giving: Counter[str], receiving: Counter[str], by_zone: dict[str, int]) -> str:
    """The endpoint's own zone, or the first zone that lacks endpoints if its own has a surplus."""
    zone = endpoint.zone or ""
    if not giving[zone]:
        return zone
    taker = min(name for name, count in receiving.items() if count)
    giving[zone] -= 1
    receiving[taker] -= 1
    by_zone[zone] -= 1
    by_zone[taker] = by_zone.get(taker, 0) + 1
    return taker


def _off(slices: Sequence[Slice], is_written: Sequence[bool], reason: RoutingReason) -> Hinted:
    """Removes all hints; a slice without hints is written only if it is written anyway."""
    hints = tuple(
        (None,) * len(endpoints) if write or any(endpoint.hints for endpoint in endpoints) else None
        for endpoints, write in zip(slices, is_written, strict=True)
    )
    return Hinted(hints, {}, reason)


def _lacks_zone(endpoint: Endpoint) -> bool:
    return is_marked_ready(endpoint) and not endpoint.zone


def _nodes_lacking(lacking: Mapping[str, str]) -> RoutingReason:
    name, what = next(iter(lacking.items()))
    more = f" (and {len(lacking) - 1} nodes more)" if len(lacking) > 1 else ""
    return RoutingReason(
        RoutingCode.INSUFFICIENT_NODE_INFO,
        f"node {name} has no {what}{more}, so no zone's share of the CPU is known",
        {"nodes": tuple(lacking)},
        tuple(RoutingSubject("Node", name) for name in lacking),
        f"label every node with {ZONE}, and see that its kubelet reports CPU",
    )


def _too_few_zones(zones: Sequence[str]) -> RoutingReason:
    location = f"only in zone {zones[0]}" if zones else "in no zone"
    return RoutingReason(
        RoutingCode.INSUFFICIENT_NODE_INFO,
        f"ready workers are {location}; hints need two zones",
        {"zones": len(zones)},
        tuple(RoutingSubject("Zone", zone) for zone in zones),
        f"make a node ready in another zone, and label it with {ZONE}",
    )


def _endpoints_without_zone(endpoints: Sequence[Endpoint]) -> RoutingReason:
    addresses = tuple(endpoint.addresses[0] if endpoint.addresses else "" for endpoint in endpoints)
    return RoutingReason(
        RoutingCode.ENDPOINT_WITHOUT_ZONE,
        f"{len(addresses)} ready endpoints are in no zone, among them {addresses[0]}",
        {"endpoints": len(addresses)},
        tuple(RoutingSubject("Endpoint", address) for address in addresses),
        f"label the nodes they run on with {ZONE}",
    )
