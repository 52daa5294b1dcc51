"""Slice groups: slices by who consumes their endpoints, for Services that prefer or require the same node, zone or region.

A slice for one zone says so in a label, one for several zones is shared, and one for everyone, or for nobody, is for
all. Groups part the endpoints, and hints never contradict them. Pure; `routed` asks it for every endpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from zonewise.objects import Endpoint, EndpointHints, EndpointSlice, Hint, Service
from zonewise.routing import NODE_NAME, Cluster, Decision, Expression, Memory, Policy, Tier, read_policy, recall
from zonewise.routing.load import Consumers, consumed_by, names
from zonewise.routing.policy import AutomaticHints, SameDomain, Strength
from zonewise.routing.slicehints import MOST_HINTS
from zonewise.routing.tiers import own_tier
from zonewise.slices.metadata import CONSUMER, STARTED
from zonewise.topology import REGION, ZONE

ALL: Final = "zonewise-all"
SHARED: Final = "zonewise-shared"

Zones = tuple[str, ...]


def is_grouped(policy: Policy) -> bool:
    return isinstance(policy, SameDomain) and {policy.node, policy.zone, policy.region} != {Strength.BALANCED}


def group_of(zones: Sequence[str]) -> str:
    match zones:
        case []:
            return ALL
        case [only]:
            return only
        case _:
            return SHARED


def remember(slices: Sequence[EndpointSlice], service: Service, cluster: Cluster) -> Memory:
    """What the slices tell of the last decision; those written for a policy of another kind tell nothing."""
    if not any(map(_may_tell, slices)):
        return {}
    policy = read_policy(service).policy
    grouped = is_grouped(policy)
    if not grouped and not isinstance(policy, AutomaticHints):
        return {}
    told = [found for found in slices if (CONSUMER in found.metadata.labels) is grouped]
    memory = dict(recall((endpoint for found in told for endpoint in found.endpoints or ()), cluster))
    if by_label := _by_label(told):
        memory[ZONE] = by_label | dict(memory.get(ZONE, {}))
    for key in _started(told):
        memory.setdefault(key, {})
    return memory


def unremembered(decision: Decision, expression: Expression) -> str:
    """The levels that have started and of which no hint tells: to be said in an annotation."""
    if not is_grouped(decision.reading.policy) or expression.hints:
        return ""
    return ",".join(key for key in decision.memory if key in {ZONE, REGION})


def _may_tell(found: EndpointSlice) -> bool:
    return CONSUMER in found.metadata.labels or any(endpoint.hints for endpoint in found.endpoints or ())


def _by_label(slices: Iterable[EndpointSlice]) -> dict[str, Consumers]:
    """Where hints could not be written, the label of a group for one zone still tells."""
    return {
        endpoint.addresses[0]: consumed_by(zone)
        for found in slices
        if (zone := found.metadata.labels.get(CONSUMER, ALL)) not in {ALL, SHARED}
        for endpoint in found.endpoints or ()
        if endpoint.addresses and not endpoint.hints
    }


def _started(slices: Iterable[EndpointSlice]) -> set[str]:
    said = {found.metadata.annotations.get(STARTED, "") for found in slices}
    return {key for keys in said for key in keys.split(",") if key in {ZONE, REGION}}


class Grouping:
    """The consumers of each endpoint, by address: as decided for those in use, and where the others wait."""

    def __init__(
        self,
        decision: Decision,
        expression: Expression,
        cluster: Cluster,
        waiting: Mapping[str, Endpoint],
        memory: Memory,
    ) -> None:
        self._hints = expression.hints
        self._consumed = _consuming_zones(decision, cluster)
        self._waiting = _waiting_zones(decision, cluster, waiting, memory)
        self._hints_of_waiting: dict[Zones, EndpointHints | None] = {}

    def of(self, address: str) -> tuple[str, EndpointHints | None]:
        """The group and the hints."""
        hints = self._hints.get(address)
        if hints and hints.for_zones:
            return hints.for_zones[0].name if len(hints.for_zones) == 1 else SHARED, hints
        if (zones := self._waiting.get(address)) is not None:
            return group_of(zones), self._waiting_hints(zones)
        return group_of(self._consumed.get(address, ())), hints

    def _waiting_hints(self, zones: Zones) -> EndpointHints | None:
        if zones not in self._hints_of_waiting:
            fits = 0 < len(zones) <= MOST_HINTS
            made = EndpointHints(for_zones=tuple(Hint(name=zone) for zone in zones)) if fits else None
            self._hints_of_waiting[zones] = made
        return self._hints_of_waiting[zones]


def _waiting_zones(
    decision: Decision, cluster: Cluster, waiting: Mapping[str, Endpoint], memory: Memory
) -> dict[str, Zones]:
    """Endpoints not in use stay where they were, or else wait in their own domain.

    So that one which becomes ready, or ready again, need not move. Where the preference is not in force they wait with
    the others, for everyone.
    """
    policy = decision.reading.policy
    assert isinstance(policy, SameDomain)
    within = _wall_key(policy)
    preferred = any(tier.consumers for tier in decision.tiers if tier.key == ZONE)
    asleep = not decision.endpoints
    at_home = _zones_of(own_tier(within or ZONE, cluster.homes(waiting, within or ZONE)), cluster)
    if within and not preferred:
        return {address: at_home.get(address, ()) for address in waiting}
    if not preferred and not asleep:
        return dict.fromkeys(waiting, ())
    known = set(cluster.domains(ZONE).values())
    was = memory.get(ZONE, {})
    kept = {address: tuple(zone for zone in names(was.get(address, ())) if zone in known) for address in waiting}
    return {address: zones or (() if asleep else at_home.get(address, ())) for address, zones in kept.items()}


def _wall_key(policy: SameDomain) -> str | None:
    levels = {NODE_NAME: policy.node, ZONE: policy.zone, REGION: policy.region}
    return next((key for key, strength in levels.items() if strength is Strength.REQUIRE), None)


def _consuming_zones(decision: Decision, cluster: Cluster) -> dict[str, Zones]:
    """By the first tier of zones or regions, and by the walls for what that lacks."""
    tier = next((tier for tier in decision.tiers if tier.key in {ZONE, REGION} and tier.consumers), None)
    found = _zones_of(decision.walls, cluster) if decision.walls else {}
    return found | (_zones_of(tier, cluster) if tier else {})


def _zones_of(tier: Tier, cluster: Cluster) -> dict[str, Zones]:
    """A tier's consumers as zones, whatever its key."""
    zones_by_domain: dict[str, set[str]] = {}
    zones = cluster.domains(ZONE)
    for node, domain in cluster.domains(tier.key).items() if tier.key != ZONE else ():
        if node in zones:
            zones_by_domain.setdefault(domain, set()).add(zones[node])
    meaning: dict[Consumers, Zones] = {
        consumers: names(consumers)
        if tier.key == ZONE
        else tuple(sorted({zone for domain in names(consumers) for zone in zones_by_domain.get(domain, ())}))
        for consumers in set(tier.consumers.values())
    }
    return {address: meaning[consumers] for address, consumers in tier.consumers.items()}
