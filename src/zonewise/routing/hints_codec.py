"""Decisions as the hints of EndpointSlices, and back: what a stock kube-proxy can be told, and what slices remember.

A stock proxy knows an endpoint's nodes and zones: it uses those of its own node if all endpoints have such hints, else
those of its zone if all have such, else all. No walls, no other labels, no weights. `express` comes as near as that
allows and tells what is lost; `recall` reads what the last decision was, so that a controller needs no other memory.

Endpoints of a drained zone are hinted for a zone that nobody is in: so every endpoint has hints, which proxies ask for.
A proxy that finds no hint for its own zone uses all endpoints, so while a zone is drained every zone is hinted for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from zonewise.api.names import DRAINED, DRAINED_EVENLY
from zonewise.objects import Endpoint, EndpointHints, Hint
from zonewise.routing.cluster import NODE_NAME, RoutingNodes
from zonewise.routing.decision import Decision
from zonewise.routing.endpoints import is_ready
from zonewise.routing.load import Consumers, consumed_by, names
from zonewise.routing.reason import RoutingCode, RoutingReason
from zonewise.routing.tiers import EVERYONE, Memory, Tier
from zonewise.topology import HOSTNAME, REGION, ZONE

MOST_HINTS: Final = 8
"""The API server takes no more zones, and no more nodes, per endpoint."""

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
    sayable = _sayable(decision)
    losses = list(_inexpressible(decision, sayable))
    nodes = _all_or_none(decision, _names(decision, sayable, cluster, _NODE_KEYS, NODE_NAME), "node", losses)
    zones = _all_or_none(decision, _names(decision, sayable, cluster, _ZONE_KEYS, ZONE), "zone", losses)
    evenly = not zones
    if decision.drained:
        zones = _for_every_zone(decision, zones, cluster, losses)
    made: dict[tuple[tuple[str, ...], tuple[str, ...]], EndpointHints] = {}
    hints: dict[str, EndpointHints] = {}
    for address in decision.endpoints if nodes or zones else ():
        said = zones.get(address, ()), nodes.get(address, ())
        if said not in made:
            made[said] = EndpointHints(for_zones=_hints(said[0]), for_nodes=_hints(said[1]))
        hints[address] = made[said]
    nobody = (DRAINED_EVENLY if evenly else DRAINED,)
    for_nobody = EndpointHints(for_zones=_hints(nobody), for_nodes=_hints(nobody if nodes else ()))
    hints.update(dict.fromkeys(decision.drained if zones else (), for_nobody))
    return HintsExpression(hints, tuple(losses))


def recall(endpoints: Iterable[Endpoint], cluster: RoutingNodes) -> Memory:
    """The memory of the decision that these endpoints' hints were made from; empty where nothing is hinted."""
    meaning: dict[EndpointHints, Consumers] = {}
    zones: dict[str, Consumers] = {}
    for endpoint in endpoints:
        if endpoint.addresses and endpoint.hints and endpoint.hints.for_zones:
            if endpoint.hints not in meaning:
                meaning[endpoint.hints] = zone_consumers(endpoint.hints)
                if DRAINED_EVENLY in names(meaning[endpoint.hints]):
                    return {}
            zones[endpoint.addresses[0]] = meaning[endpoint.hints]
    if not zones:
        return {}
    region_of_zone = {zone: region for region, found in _zones_by_region(cluster).items() for zone in found}
    by_region = {
        consumers: consumed_by(*{region_of_zone[zone] for zone in names(consumers) if zone in region_of_zone})
        for consumers in set(zones.values())
    }
    regions = {address: by_region[consumers] for address, consumers in zones.items() if by_region[consumers]}
    return {ZONE: zones, REGION: regions} if regions else {ZONE: zones}


def zone_consumers(hints: EndpointHints | None) -> Consumers:
    return consumed_by(*{hint.name for hint in hints.for_zones}) if hints else ()


def _sayable(decision: Decision) -> list[Tier]:
    """The tiers that a stock proxy can follow: one of nodes, and after it one of zones. An empty one says nothing."""
    sayable: list[Tier] = []
    for tier in decision.tiers:
        if not tier.consumers:
            continue
        if (tier.key in _NODE_KEYS and not sayable) or (
            tier.key in _ZONE_KEYS and not any(earlier.key in _ZONE_KEYS for earlier in sayable)
        ):
            sayable.append(tier)
    return sayable


def _names(
    decision: Decision, sayable: Iterable[Tier], cluster: RoutingNodes, keys: tuple[str, ...], hinted: str
) -> Names:
    """The nodes or zones each endpoint is for, by the tier that says it, and by the walls for what that lacks."""
    tier = next((tier for tier in sayable if tier.key in keys), EVERYONE)
    walls = decision.walls if decision.walls and decision.walls.key in keys else EVERYONE
    said = _translated(walls, cluster, hinted)
    said.update(_translated(tier, cluster, hinted))
    return said


def _translated(tier: Tier, cluster: RoutingNodes, hinted: str) -> dict[str, tuple[str, ...]]:
    """A tier's domains as the nodes or zones that hints know."""
    if tier.key in {hinted, EVERYONE.key}:
        meaning = {consumers: names(consumers) for consumers in set(tier.consumers.values())}
    else:
        parts = _zones_by_region(cluster) if hinted == ZONE else _nodes_by_domain(cluster, tier.key)
        meaning = {
            consumers: tuple(sorted({part for domain in names(consumers) for part in parts[domain]}))
            for consumers in set(tier.consumers.values())
        }
    return {address: meaning[consumers] for address, consumers in tier.consumers.items()}


def _all_or_none(decision: Decision, said: Names, word: str, losses: list[RoutingReason]) -> Names:
    """A stock proxy ignores hints that not all endpoints have, and the API server refuses too many."""
    missing = sum(not said.get(address) for address in decision.endpoints)
    if not said or (not missing and max(map(len, said.values())) <= MOST_HINTS):
        return said
    if missing:
        losses.append(_loss(f"{missing} endpoints are for no {word}, so no endpoint can be hinted for {word}s"))
    else:
        losses.append(_loss(f"an endpoint is for more than {MOST_HINTS} {word}s, more than hints can name"))
    return {}


def _for_every_zone(decision: Decision, said: Names, cluster: RoutingNodes, losses: list[RoutingReason]) -> Names:
    """`said` with all endpoints added for the zones that none is for, as far as there is room for names."""
    missing = sorted(set(cluster.domains(ZONE).values()) - {zone for zones in said.values() for zone in zones})
    if nowhere := sorted(name for name in cluster.nodes if name not in cluster.domains(ZONE)):
        losses.append(
            _loss(f"{len(nowhere)} nodes say no zone, among them {nowhere[0]}, and use drained endpoints too")
        )
    if not any(map(is_ready, decision.endpoints.values())):
        losses.append(_loss("stock proxies ignore hints while no endpoint is ready"))
    whole = {own: tuple(sorted({*own, *missing})) for own in {(), *said.values()}}
    found: Names
    if max(map(len, whole.values())) <= MOST_HINTS:
        found = {address: whole[said.get(address, ())] for address in decision.endpoints}
    else:
        found = _in_turn(decision, said, missing, losses)
    return found if all(found.values()) else {}


def _in_turn(decision: Decision, said: Names, missing: Sequence[str], losses: list[RoutingReason]) -> Names:
    """As many of the missing zones per endpoint as there is room for, so that each gets some."""
    found: dict[str, tuple[str, ...]] = {}
    first = 0
    for address in decision.endpoints:
        own = said.get(address, ())
        room = min(MOST_HINTS - len(own), len(missing))
        found[address] = tuple(sorted({*own, *(*missing[first:], *missing[:first])[:room]}))
        first = (first + room) % len(missing)
    if unsaid := set(missing) - {zone for zones in found.values() for zone in zones}:
        losses.append(_loss(f"hints have no room for {', '.join(sorted(unsaid))}, which use drained endpoints too"))
    else:
        losses.append(_loss(f"an endpoint can be for {MOST_HINTS} zones at most, so some zones use a part of them"))
    return found


def _inexpressible(decision: Decision, sayable: Sequence[Tier]) -> Iterator[RoutingReason]:
    if decision.walls or EVERYONE not in decision.tiers:
        yield _loss("the rule is hard, and stock proxies fall back to every endpoint")
    for tier in decision.tiers:
        if tier.consumers and tier not in sayable:
            yield _loss(f"hints cannot say {tier.key} in this place")
    if any(share.weight != 1 for tier in decision.tiers for who in set(tier.consumers.values()) for share in who):
        yield _loss("hints cannot say weights, so shared endpoints are shared evenly")


def _loss(what: str) -> RoutingReason:
    return RoutingReason(
        RoutingCode.NEEDS_PROXY, what, remedy="label the Service for the Zonewise proxy, which does it as decided"
    )


def _zones_by_region(cluster: RoutingNodes) -> Mapping[str, set[str]]:
    zones, regions = cluster.domains(ZONE), cluster.domains(REGION)
    found: dict[str, set[str]] = defaultdict(set)
    for node, region in regions.items():
        if node in zones:
            found[region].add(zones[node])
    return found


def _nodes_by_domain(cluster: RoutingNodes, key: str) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for node, domain in cluster.domains(key).items():
        found[domain].add(node)
    return found


def _hints(said: tuple[str, ...]) -> tuple[Hint, ...]:
    return tuple(Hint(name=name) for name in said)
