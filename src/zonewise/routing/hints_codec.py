"""Decisions encoded as EndpointSlice hints, and decoded again: what stock kube-proxies can follow, and what slices store.

A stock proxy knows the nodes and zones of an endpoint. It uses the endpoints hinted for its node if all endpoints have
node hints, else those for its zone if all have zone hints, else all. It has no hard rules, no other labels and no weights.
`express` comes as close as that allows and lists the losses; `recall` reads the last decision back, so that a controller
needs no other memory.

Endpoints of a drained zone are hinted for a zone that does not exist, because proxies need a hint on every endpoint;
likewise endpoints that no node keeps to, beside others that one does. A proxy without a hint for its own zone uses all
endpoints, so during a drain every zone is hinted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from zonewise.api.names import DRAINED, DRAINED_EVENLY, NO_NODE
from zonewise.objects import Endpoint, EndpointHints, Hint
from zonewise.routing.decision import Decision
from zonewise.routing.endpoints import is_ready
from zonewise.routing.load import Consumers, consumed_by, names
from zonewise.routing.reason import RoutingCode, RoutingReason
from zonewise.routing.routing_nodes import NODE_NAME, RoutingNodes
from zonewise.routing.tiers import EVERYONE, Memory, Tier
from zonewise.topology import HOSTNAME, REGION, ZONE

MOST_HINTS: Final = 8
"""The API server accepts at most so many zones, and so many nodes, per endpoint."""

_NODE_KEYS: Final = (NODE_NAME, HOSTNAME)
_ZONE_KEYS: Final = (ZONE, REGION)

Names = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class HintsExpression:
    """`hints` by address, empty for none; `losses` are what a stock proxy will not do as decided."""

    hints: Mapping[str, EndpointHints]
    losses: tuple[RoutingReason, ...]


def express(decision: Decision, cluster: RoutingNodes) -> HintsExpression:
    if decision.tiers[0] is EVERYONE and not decision.walls and not decision.drained:
        return HintsExpression({}, ())
    expressible = _expressible(decision)
    losses = list(_inexpressible(decision, expressible))
    nodes = _names(decision, expressible, cluster, _NODE_KEYS, NODE_NAME)
    nodes = {address: nodes.get(address) or (NO_NODE,) for address in decision.endpoints if any(nodes.values())}
    nodes = _all_or_none(decision, nodes, "node", losses)
    zones = _all_or_none(decision, _names(decision, expressible, cluster, _ZONE_KEYS, ZONE), "zone", losses)
    evenly = not zones
    if decision.drained:
        zones = _for_every_zone(decision, zones, cluster, losses)
    hints_by_names: dict[tuple[tuple[str, ...], tuple[str, ...]], EndpointHints] = {}
    hints: dict[str, EndpointHints] = {}
    for address in decision.endpoints if nodes or zones else ():
        zones_and_nodes = zones.get(address, ()), nodes.get(address, ())
        if zones_and_nodes not in hints_by_names:
            hints_by_names[zones_and_nodes] = EndpointHints(
                for_zones=_hints(zones_and_nodes[0]), for_nodes=_hints(zones_and_nodes[1])
            )
        hints[address] = hints_by_names[zones_and_nodes]
    no_zone = (DRAINED_EVENLY if evenly else DRAINED,)
    drained_hints = EndpointHints(for_zones=_hints(no_zone), for_nodes=_hints(no_zone if nodes else ()))
    hints.update(dict.fromkeys(decision.drained if zones else (), drained_hints))
    return HintsExpression(hints, tuple(losses))


def recall(endpoints: Iterable[Endpoint], cluster: RoutingNodes) -> Memory:
    """The memory of the decision that these hints express; empty if there are no hints."""
    consumers_of: dict[EndpointHints, Consumers] = {}
    zones: dict[str, Consumers] = {}
    for endpoint in endpoints:
        if endpoint.addresses and endpoint.hints and endpoint.hints.for_zones:
            if endpoint.hints not in consumers_of:
                consumers_of[endpoint.hints] = zone_consumers(endpoint.hints)
                if DRAINED_EVENLY in names(consumers_of[endpoint.hints]):
                    return {}
            zones[endpoint.addresses[0]] = consumers_of[endpoint.hints]
    if not zones:
        return {}
    region_of_zone = {zone: region for region, members in cluster.members(REGION, ZONE).items() for zone in members}
    by_region = {
        consumers: consumed_by(*{region_of_zone[zone] for zone in names(consumers) if zone in region_of_zone})
        for consumers in set(zones.values())
    }
    regions = {address: by_region[consumers] for address, consumers in zones.items() if by_region[consumers]}
    return {ZONE: zones, REGION: regions} if regions else {ZONE: zones}


def zone_consumers(hints: EndpointHints | None) -> Consumers:
    return consumed_by(*{hint.name for hint in hints.for_zones}) if hints else ()


def _expressible(decision: Decision) -> list[Tier]:
    """The tiers that a stock proxy can follow: one of nodes, then one of zones. Empty tiers are skipped."""
    expressible: list[Tier] = []
    for tier in decision.tiers:
        if not tier.consumers:
            continue
        if (tier.key in _NODE_KEYS and not expressible) or (
            tier.key in _ZONE_KEYS and not any(earlier.key in _ZONE_KEYS for earlier in expressible)
        ):
            expressible.append(tier)
    return expressible


def _names(
    decision: Decision, expressible: Iterable[Tier], cluster: RoutingNodes, keys: tuple[str, ...], hint_key: str
) -> Names:
    """The nodes or zones of each endpoint, from the tier, and from the walls for endpoints that the tier lacks."""
    tier = next((tier for tier in expressible if tier.key in keys), EVERYONE)
    walls = decision.walls if decision.walls and decision.walls.key in keys else EVERYONE
    names_by_address = domains_by_address(walls, cluster, hint_key)
    names_by_address.update(domains_by_address(tier, cluster, hint_key))
    return names_by_address


def domains_by_address(tier: Tier, cluster: RoutingNodes, key: str) -> dict[str, tuple[str, ...]]:
    """The domains of `key`, such as zones, that each endpoint of the tier serves, whatever the tier's own key is."""
    if tier.key in {key, EVERYONE.key}:
        names_of = {consumers: names(consumers) for consumers in set(tier.consumers.values())}
    else:
        members = cluster.members(tier.key, key)
        names_of = {
            consumers: tuple(sorted({member for domain in names(consumers) for member in members[domain]}))
            for consumers in set(tier.consumers.values())
        }
    return {address: names_of[consumers] for address, consumers in tier.consumers.items()}


def _all_or_none(decision: Decision, names_by_address: Names, word: str, losses: list[RoutingReason]) -> Names:
    """A stock proxy ignores hints unless all endpoints have them, and the API server rejects too many."""
    missing = sum(not names_by_address.get(address) for address in decision.endpoints)
    if not names_by_address or (not missing and max(map(len, names_by_address.values())) <= MOST_HINTS):
        return names_by_address
    if missing:
        losses.append(_loss(f"{missing} endpoints are for no {word}, so no endpoint can be hinted for {word}s"))
    else:
        losses.append(_loss(f"an endpoint serves more than {MOST_HINTS} {word}s, the most that hints can name"))
    return {}


def _for_every_zone(
    decision: Decision, zones_by_address: Names, cluster: RoutingNodes, losses: list[RoutingReason]
) -> Names:
    """Adds zones that no endpoint is hinted for to all endpoints, as far as there is room."""
    missing = sorted(
        set(cluster.domains(ZONE).values()) - {zone for zones in zones_by_address.values() for zone in zones}
    )
    if without_zone := sorted(name for name in cluster.nodes if name not in cluster.domains(ZONE)):
        losses.append(
            _loss(
                f"{len(without_zone)} nodes have no zone label, among them {without_zone[0]}, and use drained endpoints too"
            )
        )
    if not any(map(is_ready, decision.endpoints.values())):
        losses.append(_loss("stock proxies ignore hints while no endpoint is ready"))
    extended = {own: tuple(sorted({*own, *missing})) for own in {(), *zones_by_address.values()}}
    hinted: Names
    if max(map(len, extended.values())) <= MOST_HINTS:
        hinted = {address: extended[zones_by_address.get(address, ())] for address in decision.endpoints}
    else:
        hinted = _round_robin(decision, zones_by_address, missing, losses)
    return hinted if all(hinted.values()) else {}


def _round_robin(
    decision: Decision, zones_by_address: Names, missing: Sequence[str], losses: list[RoutingReason]
) -> Names:
    """Spreads the missing zones over the endpoints, as many per endpoint as there is room for."""
    hinted: dict[str, tuple[str, ...]] = {}
    first = 0
    for address in decision.endpoints:
        own = zones_by_address.get(address, ())
        room = min(MOST_HINTS - len(own), len(missing))
        hinted[address] = tuple(sorted({*own, *(*missing[first:], *missing[:first])[:room]}))
        first = (first + room) % len(missing)
    if not_hinted := set(missing) - {zone for zones in hinted.values() for zone in zones}:
        losses.append(_loss(f"hints have no room for {', '.join(sorted(not_hinted))}, which use drained endpoints too"))
    else:
        losses.append(_loss(f"an endpoint can serve {MOST_HINTS} zones at most, so some zones use only part of them"))
    return hinted


def _inexpressible(decision: Decision, expressible: Sequence[Tier]) -> Iterator[RoutingReason]:
    if decision.walls or EVERYONE not in decision.tiers:
        yield _loss("the rule is hard, and stock proxies fall back to every endpoint")
    for tier in decision.tiers:
        if tier.consumers and tier not in expressible:
            yield _loss(f"hints cannot express {tier.key} at this position")
    if any(
        share.weight != 1
        for tier in decision.tiers
        for consumers in set(tier.consumers.values())
        for share in consumers
    ):
        yield _loss("hints cannot express weights, so shared endpoints are shared evenly")


def _loss(sentence: str) -> RoutingReason:
    return RoutingReason(
        RoutingCode.NEEDS_PROXY, sentence, remedy="label the Service for the Zonewise proxy, which does it as decided"
    )


def _hints(names: tuple[str, ...]) -> tuple[Hint, ...]:
    return tuple(Hint(name=name) for name in names)
