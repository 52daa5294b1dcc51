"""Decisions as the hints of EndpointSlices, and back: what a stock kube-proxy can be told, and what slices remember.

A stock proxy knows an endpoint's nodes and zones: it uses those of its own node if all endpoints have such hints, else
those of its zone if all have such, else all. No walls, no other labels, no weights. `express` comes as near as that
allows and tells what is lost; `recall` reads what the last decision was, so that a controller needs no other memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from zonewise.objects import Endpoint, EndpointHints, Hint
from zonewise.routing.cluster import NODE_NAME, Cluster
from zonewise.routing.decision import Decision
from zonewise.routing.load import Consumers, consumed_by, names
from zonewise.routing.reason import Code, Reason
from zonewise.routing.tiers import EVERYONE, Memory, Tier
from zonewise.topology import HOSTNAME, REGION, ZONE

MOST_HINTS: Final = 8
"""The API server takes no more zones, and no more nodes, per endpoint."""

_NODE_KEYS: Final = (NODE_NAME, HOSTNAME)
_ZONE_KEYS: Final = (ZONE, REGION)

Names = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Expression:
    """`hints` by address, empty for none; `losses` are what a stock proxy will not do as decided."""

    hints: Mapping[str, EndpointHints]
    losses: tuple[Reason, ...]


def express(decision: Decision, cluster: Cluster) -> Expression:
    sayable = _sayable(decision)
    losses = list(_inexpressible(decision, sayable))
    nodes = _all_or_none(decision, _names(decision, sayable, cluster, _NODE_KEYS, NODE_NAME), "node", losses)
    zones = _all_or_none(decision, _names(decision, sayable, cluster, _ZONE_KEYS, ZONE), "zone", losses)
    made: dict[tuple[tuple[str, ...], tuple[str, ...]], EndpointHints] = {}
    hints: dict[str, EndpointHints] = {}
    for address in decision.endpoints if nodes or zones else ():
        said = zones.get(address, ()), nodes.get(address, ())
        if said not in made:
            made[said] = EndpointHints(for_zones=_hints(said[0]), for_nodes=_hints(said[1]))
        hints[address] = made[said]
    return Expression(hints, tuple(losses))


def recall(endpoints: Iterable[Endpoint], cluster: Cluster) -> Memory:
    """The memory of the decision that these endpoints' hints were made from; empty where nothing is hinted."""
    meaning: dict[EndpointHints, Consumers] = {}
    zones: dict[str, Consumers] = {}
    for endpoint in endpoints:
        if endpoint.addresses and endpoint.hints and endpoint.hints.for_zones:
            if endpoint.hints not in meaning:
                meaning[endpoint.hints] = zone_consumers(endpoint.hints)
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
    """The tiers that a stock proxy can follow: one of nodes, and after it one of zones."""
    sayable: list[Tier] = []
    for tier in decision.tiers:
        if (tier.key in _NODE_KEYS and not sayable) or (
            tier.key in _ZONE_KEYS and not any(earlier.key in _ZONE_KEYS for earlier in sayable)
        ):
            sayable.append(tier)
    return sayable


def _names(decision: Decision, sayable: Iterable[Tier], cluster: Cluster, keys: tuple[str, ...], hinted: str) -> Names:
    """The nodes or zones each endpoint is for, by the tier that says it, and by the walls for what that lacks."""
    tier = next((tier for tier in sayable if tier.key in keys), EVERYONE)
    walls = decision.walls if decision.walls and decision.walls.key in keys else EVERYONE
    said = _translated(walls, cluster, hinted)
    said.update(_translated(tier, cluster, hinted))
    return said


def _translated(tier: Tier, cluster: Cluster, hinted: str) -> dict[str, tuple[str, ...]]:
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


def _all_or_none(decision: Decision, said: Names, word: str, losses: list[Reason]) -> Names:
    """A stock proxy ignores hints that not all endpoints have, and the API server refuses too many."""
    missing = sum(not said.get(address) for address in decision.endpoints)
    if not said or (not missing and max(map(len, said.values())) <= MOST_HINTS):
        return said
    if missing:
        losses.append(_loss(f"{missing} endpoints are for no {word}, so no endpoint can be hinted for {word}s"))
    else:
        losses.append(_loss(f"an endpoint is for more than {MOST_HINTS} {word}s, more than hints can name"))
    return {}


def _inexpressible(decision: Decision, sayable: Sequence[Tier]) -> Iterator[Reason]:
    if decision.walls or EVERYONE not in decision.tiers:
        yield _loss("the rule is hard, and stock proxies fall back to every endpoint")
    for tier in decision.tiers:
        if tier is not EVERYONE and tier not in sayable:
            yield _loss(f"hints cannot say {tier.key} in this place")
    if any(share.weight != 1 for tier in decision.tiers for who in set(tier.consumers.values()) for share in who):
        yield _loss("hints cannot say weights, so shared endpoints are shared evenly")


def _loss(what: str) -> Reason:
    return Reason(Code.NEEDS_PROXY, what, remedy="label the Service for the Zonewise proxy, which does it as decided")


def _zones_by_region(cluster: Cluster) -> Mapping[str, set[str]]:
    zones, regions = cluster.domains(ZONE), cluster.domains(REGION)
    found: dict[str, set[str]] = defaultdict(set)
    for node, region in regions.items():
        if node in zones:
            found[region].add(zones[node])
    return found


def _nodes_by_domain(cluster: Cluster, key: str) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for node, domain in cluster.domains(key).items():
        found[domain].add(node)
    return found


def _hints(said: tuple[str, ...]) -> tuple[Hint, ...]:
    return tuple(Hint(name=name) for name in said)
