"""`spec.trafficDistribution` as the stock controller and proxy implement it together: nearest first, then everyone.

No shares and no thresholds: predictable, and overload is the owner's concern. As in stock clusters, one ready endpoint
without a zone (or a node) disables the zone (or node) preference for the whole Service; here the endpoint is named.
"""

from __future__ import annotations

from collections.abc import Mapping

from zonewise.objects import Endpoint
from zonewise.routing.policy import TrafficDistribution
from zonewise.routing.reason import RoutingCode, RoutingReason, RoutingSubject
from zonewise.routing.routing_nodes import NODE_NAME
from zonewise.routing.tiers import EVERYONE, Tier, own_tier
from zonewise.topology import ZONE


def distribution_tiers(
    value: TrafficDistribution, endpoints: Mapping[str, Endpoint]
) -> tuple[tuple[Tier, ...], RoutingReason]:
    nodes = {address: endpoint.node_name for address, endpoint in endpoints.items()}
    zones = {address: endpoint.zone for address, endpoint in endpoints.items()}
    levels = [(NODE_NAME, nodes)] if value is TrafficDistribution.PREFER_SAME_NODE else []
    levels.append((ZONE, zones))
    tiers = [own_tier(key, homes) for key, homes in levels if all(homes.values())]
    return (*tiers, EVERYONE), _reason(value, nodes if len(levels) > 1 else {}, zones)


def _reason(
    value: TrafficDistribution, nodes: Mapping[str, str | None], zones: Mapping[str, str | None]
) -> RoutingReason:
    facts = {"trafficDistribution": value.value, "endpoints": len(zones)}
    if without := [address for address, zone in zones.items() if not zone]:
        return _disabled(RoutingCode.ENDPOINT_WITHOUT_ZONE, "zone", without, facts)
    if without := [address for address, node in nodes.items() if not node]:
        return _disabled(RoutingCode.ENDPOINT_WITHOUT_NODE, "node", without, facts)
    nearest = "node, then zone" if nodes else "zone"
    return RoutingReason(
        RoutingCode.DISTRIBUTED, f"{value}: clients get the endpoints of their own {nearest}, then all", facts
    )


def _disabled(code: RoutingCode, level: str, without: list[str], facts: Mapping[str, object]) -> RoutingReason:
    return RoutingReason(
        code,
        f"{len(without)} ready endpoints are in no {level}, among them {without[0]}, so no {level} is preferred",
        {**facts, "without": len(without)},
        tuple(RoutingSubject("Endpoint", address) for address in without),
        f"run them on nodes with a known {level}",
    )
