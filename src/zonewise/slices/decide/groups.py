"""Slice groups: slices by the zones that consume their endpoints, for Services with a same node, zone or region policy.

The consumer label of a slice names its zone, or says that several zones share it, or that it is for all. Endpoints are
divided by group, and hints never contradict the group. `route` asks for the group of every endpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from zonewise.api.names import CONSUMER_ALL, CONSUMER_SHARED
from zonewise.objects import Endpoint, EndpointHints, Hint
from zonewise.routing import (
    NODE_NAME,
    Decision,
    HintsExpression,
    Memory,
    Policy,
    RoutingNodes,
    Tier,
)
from zonewise.routing.endpoints import is_ready
from zonewise.routing.hints_codec import MOST_HINTS, domains_by_address
from zonewise.routing.load import Consumers, LoadShare
from zonewise.routing.policy import Strength
from zonewise.routing.slice_memory import levels_of, preferred_keys
from zonewise.routing.tiers import own_tier
from zonewise.topology import REGION, ZONE

Zones = tuple[str, ...]


def group_of(zones: Sequence[str]) -> str:
    match zones:
        case []:
            return CONSUMER_ALL
        case [only]:
            return only
        case _:
            return CONSUMER_SHARED


def started(decision: Decision, memory: Memory) -> str:
    """The levels whose preference has started, for the annotation: hints alone do not tell which level made them.

    The level that the hints express comes first. While no endpoint is ready no level is preferred, but a preference
    that has started does not end.
    """
    preferred = preferred_keys(decision.reading.policy)
    first_endpoint = next(iter(decision.endpoints.values()), None)
    if not first_endpoint or not is_ready(first_endpoint):
        return ",".join(memory) if preferred else ""
    current = decision.memory
    return ",".join(sorted((key for key in current if key in preferred), key=lambda key: not current[key]))


class Grouping:
    """The group and hints of each endpoint: as decided for endpoints in use, and the waiting zones for the others.

    If only some endpoints in use can have zone hints, those still get them: stock proxies ignore partial hints, but the
    next decision reads them back.
    """

    def __init__(
        self,
        decision: Decision,
        expression: HintsExpression,
        cluster: RoutingNodes,
        waiting: Mapping[str, Endpoint],
        memory: Memory,
    ) -> None:
        self._decision = decision
        self._cluster = cluster
        self._hints = expression.hints
        self._waiting = _waiting_zones(decision, cluster, waiting, memory)
        divided = _zonal_tier(decision) or _wall_key(decision.reading.policy)
        self._group_without_zone = min(cluster.demand(ZONE), default=CONSUMER_ALL) if divided else CONSUMER_ALL
        self._hints_by_names: dict[tuple[Zones, tuple[Hint, ...]], EndpointHints | None] = {}
        self._by_node = _wall_key(decision.reading.policy) == NODE_NAME

    def of(self, endpoint: Endpoint) -> tuple[str, EndpointHints | None]:
        """The group and the hints of an endpoint."""
        address = endpoint.addresses[0]
        hints = self._hints.get(address)
        if hints and hints.for_zones:
            return hints.for_zones[0].name if len(hints.for_zones) == 1 else CONSUMER_SHARED, hints
        zones = self._waiting[address] if address in self._waiting else self._zones_in_use.get(address, ())
        group = self._group_without_zone if address in self._waiting and not zones else group_of(zones)
        if self._by_node:
            return group, hints
        return group, self._zone_hints(zones, hints.for_nodes if hints else ())

    @cached_property
    def _zones_in_use(self) -> dict[str, Zones]:
        """Computed only if hints do not give the zones."""
        return _consuming_zones(self._decision, self._cluster)

    def _zone_hints(self, zones: Zones, nodes: tuple[Hint, ...]) -> EndpointHints | None:
        if (zones, nodes) not in self._hints_by_names:
            named = tuple(Hint(name=zone) for zone in zones) if len(zones) <= MOST_HINTS else ()
            self._hints_by_names[zones, nodes] = (
                EndpointHints(for_zones=named, for_nodes=nodes) if named or nodes else None
            )
        return self._hints_by_names[zones, nodes]


def _waiting_zones(
    decision: Decision, cluster: RoutingNodes, waiting: Mapping[str, Endpoint], memory: Memory
) -> dict[str, Zones]:
    """The zones of endpoints not in use: their last zones, or else those of their own domain.

    An endpoint that becomes ready (again) then need not move. Without a preference in force they wait in the group for
    all, unless no endpoint is in use: then they keep their last zones. None waits for a zone without clients, which the
    decision does not serve: the nodes of that zone would watch its group only.
    """
    tier = _zonal_tier(decision)
    last_key = tier.key if tier else None
    if not decision.endpoints:
        last_key = next((key for key in (ZONE, REGION) if key in memory), None)
    home_key = tier.key if tier else _wall_key(decision.reading.policy)
    served = cluster.demand(ZONE)
    last_zones = domains_by_address(Tier(last_key, memory.get(last_key, {})), cluster, ZONE) if last_key else {}
    home_zones = (
        domains_by_address(own_tier(home_key, cluster.homes(waiting, home_key)), cluster, ZONE) if home_key else {}
    )
    return {
        address: tuple(zone for zone in last_zones.get(address, ()) if zone in served)
        or tuple(zone for zone in home_zones.get(address, ()) if zone in served)
        for address in waiting
    }


def _wall_key(policy: Policy) -> str | None:
    return next((key for key, strength in levels_of(policy).items() if strength is Strength.REQUIRE), None)


def _consuming_zones(decision: Decision, cluster: RoutingNodes) -> dict[str, Zones]:
    """From the first tier of zones or regions, and from the walls for endpoints that the tier lacks."""
    tier = _zonal_tier(decision)
    zones = domains_by_address(decision.walls, cluster, ZONE) if decision.walls else {}
    return zones | (domains_by_address(tier, cluster, ZONE) if tier else {})


def _zonal_tier(decision: Decision) -> Tier | None:
    return next((tier for tier in decision.tiers if tier.key in {ZONE, REGION} and tier.consumers), None)


def beyond_hints(decision: Decision, cluster: RoutingNodes) -> dict[str, Consumers]:
    """Consumer zones of the endpoints whose hints cannot express them: weighted, or too many zones."""
    tier = _zonal_tier(decision)
    if tier is None:
        return {}
    zones_by_domain = {} if tier.key == ZONE else cluster.members(tier.key, ZONE)
    inexpressible: dict[Consumers, Consumers] = {}
    for consumers in set(tier.consumers.values()):
        zones = consumers if tier.key == ZONE else _in_zones(consumers, zones_by_domain)
        if len(zones) > MOST_HINTS or any(share.weight != 1 for share in zones):
            inexpressible[consumers] = zones
    if not inexpressible:
        return {}
    return {address: inexpressible[group] for address, group in tier.consumers.items() if group in inexpressible}


def _in_zones(consumers: Consumers, zones_by_domain: Mapping[str, set[str]]) -> Consumers:
    weights = {zone: weight for domain, weight in consumers for zone in zones_by_domain[domain]}
    return tuple(LoadShare(zone, weights[zone]) for zone in sorted(weights))
