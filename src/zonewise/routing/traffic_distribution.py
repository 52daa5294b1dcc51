"""`spec.trafficDistribution` as the stock controller and proxy honour it together: nearest first, then everyone.

No shares and no thresholds: predictable, and the overload is the owner's. As in stock clusters one ready endpoint
without a zone (or a node) switches the zone (or node) preference off for the whole Service; here it is named.
"""

from __future__ import annotations

from collections.abc import Mapping

from zonewise.objects import Endpoint
from zonewise.routing.cluster import NODE_NAME
from zonewise.routing.policy import TrafficDistribution
from zonewise.routing.reason import RoutingCode, RoutingReason, RoutingSubject
from zonewise.routing.tiers import EVERYONE, Tier, own_tier
from zonewise.topology import ZONE


def distribution_tiers(
    value: TrafficDistribution, endpoints: Mapping[str, Endpoint]
) -> tuple[tuple[Tier, ...], RoutingReason]:
    nodes = {address: endpoint.node_name for address, endpoint in endpoints.items()}
    zones = {address: endpoint.zone for address, endpoint in endpoints.items()}
    wanted = [(NODE_NAME, nodes)] if value is TrafficDistribution.PREFER_SAME_NODE else []
    wanted.append((ZONE, zones))
    tiers = [own_tier(key, homes) for key, homes in wanted if all(homes.values())]
    return (*tiers, EVERYONE), _reason(value, nodes if len(wanted) > 1 else {}, zones)


def _reason(
    value: TrafficDistribution, nodes: Mapping[str, str | None], zones: Mapping[str, str | None]
) -> RoutingReason:
    facts = {"trafficDistribution": value.value, "endpoints": len(zones)}
    if homeless := [address for address, zone in zones.items() if not zone]:
        return _spoiled(RoutingCode.ENDPOINT_WITHOUT_ZONE, "zone", homeless, facts)
    if homeless := [address for address, node in nodes.items() if not node]:
        return _spoiled(RoutingCode.ENDPOINT_WITHOUT_NODE, "node", homeless, facts)
    nearest = "node, then zone" if nodes else "zone"
    return RoutingReason(
        RoutingCode.DISTRIBUTED, f"{value}: clients get the endpoints of their own {nearest}, then all", facts
    )


def _spoiled(code: RoutingCode, level: str, homeless: list[str], facts: Mapping[str, object]) -> RoutingReason:
    return RoutingReason(
        code,
        f"{len(homeless)} ready endpoints are in no {level}, among them {homeless[0]}, so no {level} is preferred",
        {**facts, "without": len(homeless)},
        tuple(RoutingSubject("Endpoint", address) for address in homeless),
        f"run them on nodes that say their {level}",
    )
