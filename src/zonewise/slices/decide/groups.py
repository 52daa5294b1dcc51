"""Slice groups: slices by who consumes their endpoints, for Services that prefer or require the same node, zone or region.

A slice for one zone says so in a label, one for several zones is shared, and one for everyone, or for nobody, is for
all. Groups part the endpoints, and hints never contradict them. Pure; `routed` asks it for every endpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from zonewise.api.names import CONSUMER, CONSUMER_ALL, CONSUMER_SHARED, STARTED
from zonewise.objects import Endpoint, EndpointHints, EndpointSlice, Hint, Service
from zonewise.routing import (
    NODE_NAME,
    Decision,
    HintsExpression,
    Memory,
    Policy,
    RoutingNodes,
    Tier,
    read_policy,
    recall,
)
from zonewise.routing.endpoints import is_ready
from zonewise.routing.hints_codec import MOST_HINTS
from zonewise.routing.load import Consumers, LoadShare, names
from zonewise.routing.policy import AutomaticHints, SameDomain, Strength
from zonewise.routing.tiers import own_tier
from zonewise.topology import REGION, ZONE

Zones = tuple[str, ...]


def is_grouped(policy: Policy) -> bool:
    return isinstance(policy, SameDomain) and {policy.node, policy.zone, policy.region} != {Strength.BALANCED}


def group_of(zones: Sequence[str]) -> str:
    match zones:
        case []:
            return CONSUMER_ALL
        case [only]:
            return only
        case _:
            return CONSUMER_SHARED


def remember(slices: Sequence[EndpointSlice], service: Service, cluster: RoutingNodes) -> Memory:
    """What the slices tell of the last decision; those written for a policy of another kind tell nothing."""
    if not any(map(_may_tell, slices)):
        return {}
    policy = read_policy(service).policy
    grouped = is_grouped(policy)
    if not grouped and not isinstance(policy, AutomaticHints):
        return {}
    asked = _preferred(policy)
    told = [found for found in slices if (CONSUMER in found.metadata.labels) is grouped]
    recalled = recall((endpoint for found in told for endpoint in found.endpoints or ()), cluster)
    if not grouped:
        return recalled
    levels = _started(told)
    hinted = {ZONE, REGION} if ZONE in levels[:1] else set(levels[:1])
    return {key: recalled.get(key, {}) if key in hinted else {} for key in levels if key in asked}


def started(decision: Decision, memory: Memory) -> str:
    """The levels whose preference has started, to be said in an annotation: hints alone would not tell who made them.

    The one that the hints tell of comes first. While nothing is ready nothing is preferred, but what had started has
    not ended.
    """
    asked = _preferred(decision.reading.policy)
    first = next(iter(decision.endpoints.values()), None)
    if not first or not is_ready(first):
        return ",".join(memory) if asked else ""
    now = decision.memory
    return ",".join(sorted((key for key in now if key in asked), key=lambda key: not now[key]))


def _may_tell(found: EndpointSlice) -> bool:
    return CONSUMER in found.metadata.labels or any(endpoint.hints for endpoint in found.endpoints or ())


def _started(slices: Iterable[EndpointSlice]) -> list[str]:
    said = max((found.metadata.annotations.get(STARTED, "") for found in slices), default="")
    return [key for key in said.split(",") if key in {ZONE, REGION}]


class Grouping:
    """The consumers of each endpoint, by address: as decided for those in use, and where the others wait.

    Where not all endpoints in use can have zone hints, those that can have them nevertheless: stock proxies ignore such
    hints, as if there were none, but they are our memory.
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
        self._made: dict[Zones, EndpointHints | None] = {}
        self._by_node = _wall_key(decision.reading.policy) == NODE_NAME

    def of(self, endpoint: Endpoint) -> tuple[str, EndpointHints | None]:
        """The group and the hints."""
        address = endpoint.addresses[0]
        hints = self._hints.get(address)
        if hints and hints.for_zones:
            return hints.for_zones[0].name if len(hints.for_zones) == 1 else CONSUMER_SHARED, hints
        zones = self._waiting[address] if address in self._waiting else self._consumed.get(address, ())
        return group_of(zones), hints if hints or self._by_node else self._zone_hints(zones)

    @cached_property
    def _consumed(self) -> dict[str, Zones]:
        """Asked only where hints do not tell."""
        return _consuming_zones(self._decision, self._cluster)

    def _zone_hints(self, zones: Zones) -> EndpointHints | None:
        if zones not in self._made:
            fits = 0 < len(zones) <= MOST_HINTS
            self._made[zones] = EndpointHints(for_zones=tuple(Hint(name=zone) for zone in zones)) if fits else None
        return self._made[zones]


def _waiting_zones(
    decision: Decision, cluster: RoutingNodes, waiting: Mapping[str, Endpoint], memory: Memory
) -> dict[str, Zones]:
    """Endpoints not in use stay where they were, or else wait in their own domain.

    So that one which becomes ready, or ready again, need not move. Where no preference is in force they wait with the
    others, for everyone, unless nothing is in use at all: then they wait where they were.
    """
    tier = _zonal_tier(decision)
    was_in = tier.key if tier else None
    if not decision.endpoints:
        was_in = next((key for key in (ZONE, REGION) if key in memory), None)
    home_in = tier.key if tier else _wall_key(decision.reading.policy)
    known = set(cluster.domains(ZONE).values())
    was = _zones_of(Tier(was_in, memory.get(was_in, {})), cluster) if was_in else {}
    home = _zones_of(own_tier(home_in, cluster.homes(waiting, home_in)), cluster) if home_in else {}
    return {
        address: tuple(zone for zone in was.get(address, ()) if zone in known) or home.get(address, ())
        for address in waiting
    }


def _wall_key(policy: Policy) -> str | None:
    return next((key for key, strength in _levels(policy).items() if strength is Strength.REQUIRE), None)


def _preferred(policy: Policy) -> set[str]:
    """The levels of which there is something to remember."""
    return {key for key, strength in _levels(policy).items() if strength is Strength.PREFER and key != NODE_NAME}


def _levels(policy: Policy) -> dict[str, Strength]:
    return {NODE_NAME: policy.node, ZONE: policy.zone, REGION: policy.region} if isinstance(policy, SameDomain) else {}


def _consuming_zones(decision: Decision, cluster: RoutingNodes) -> dict[str, Zones]:
    """By the first tier of zones or regions, and by the walls for what that lacks."""
    tier = _zonal_tier(decision)
    found = _zones_of(decision.walls, cluster) if decision.walls else {}
    return found | (_zones_of(tier, cluster) if tier else {})


def _zonal_tier(decision: Decision) -> Tier | None:
    return next((tier for tier in decision.tiers if tier.key in {ZONE, REGION} and tier.consumers), None)


def beyond_hints(decision: Decision, cluster: RoutingNodes) -> dict[str, Consumers]:
    """The zones of the endpoints whose hints can't say who consumes them: with weights, or in too many zones."""
    tier = _zonal_tier(decision)
    if tier is None:
        return {}
    zones_by_domain = {} if tier.key == ZONE else _zones_by_domain(tier.key, cluster)
    told: dict[Consumers, Consumers] = {}
    for consumers in set(tier.consumers.values()):
        zones = consumers if tier.key == ZONE else _in_zones(consumers, zones_by_domain)
        if len(zones) > MOST_HINTS or any(share.weight != 1 for share in zones):
            told[consumers] = zones
    return {address: told[who] for address, who in tier.consumers.items() if who in told} if told else {}


def _in_zones(consumers: Consumers, zones_by_domain: Mapping[str, set[str]]) -> Consumers:
    weights = {zone: weight for domain, weight in consumers for zone in zones_by_domain.get(domain, ())}
    return tuple(LoadShare(zone, weights[zone]) for zone in sorted(weights))


def _zones_by_domain(key: str, cluster: RoutingNodes) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    zones = cluster.domains(ZONE)
    for node, domain in cluster.domains(key).items():
        if node in zones:
            found.setdefault(domain, set()).add(zones[node])
    return found


def _zones_of(tier: Tier, cluster: RoutingNodes) -> dict[str, Zones]:
    """A tier's consumers as zones, whatever its key."""
    zones_by_domain = {} if tier.key == ZONE else _zones_by_domain(tier.key, cluster)
    meaning: dict[Consumers, Zones] = {
        consumers: names(consumers)
        if tier.key == ZONE
        else tuple(sorted({zone for domain in names(consumers) for zone in zones_by_domain.get(domain, ())}))
        for consumers in set(tier.consumers.values())
    }
    return {address: meaning[consumers] for address, consumers in tier.consumers.items()}
