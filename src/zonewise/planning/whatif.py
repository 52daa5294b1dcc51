"""Changes to a situation: a policy set, a zone lost, nodes added, a Service scaled. Pure; each gives a new situation.

A change that names what is not there is refused with a sentence that says what is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Final

import msgspec

from zonewise.api.names import (
    ALGORITHM,
    DRAIN_ZONE,
    OLD_HINTS,
    OVERLOAD_THRESHOLD,
    PADDING,
    SAME_NODE,
    SAME_REGION,
    SAME_ZONE,
    STARTING_THRESHOLD,
    TOPOLOGY_KEYS,
    TOPOLOGY_MODE,
)
from zonewise.errors import UsageError, ZonewiseError
from zonewise.objects import Endpoint, Key, Node, Service
from zonewise.planning.snapshot import ServiceSnapshot, Snapshot
from zonewise.routing import RoutingNodes
from zonewise.routing.policy import read_policy
from zonewise.routing.reason import RoutingCode, RoutingReason
from zonewise.slices.decide.endpoints import ByPorts
from zonewise.slices.decide.families import ServiceFamily
from zonewise.topology import HOSTNAME, ZONE

Chosen = Callable[[Service], bool]

TRAFFIC_DISTRIBUTION: Final = "trafficDistribution"
SHORT_NAMES: Final[Mapping[str, str]] = {
    "same-node": SAME_NODE,
    "same-zone": SAME_ZONE,
    "same-region": SAME_REGION,
    "topology-keys": TOPOLOGY_KEYS,
    "topology-mode": TOPOLOGY_MODE,
    "algorithm": ALGORITHM,
    "starting-threshold": STARTING_THRESHOLD,
    "padding": PADDING,
    "overload-threshold": OVERLOAD_THRESHOLD,
}
_WHOLE_KEYS: Final = frozenset({*SHORT_NAMES.values(), OLD_HINTS, DRAIN_ZONE})
MOST_ADDED: Final = 10_000


def set_policy(situation: Snapshot, name: str, value: str, chosen: Chosen) -> Snapshot:
    """`name` is a short one, a whole annotation key, or trafficDistribution; an empty value takes it away."""
    if name not in {*SHORT_NAMES, *_WHOLE_KEYS, TRAFFIC_DISTRIBUTION}:
        known = ", ".join((*SHORT_NAMES, TRAFFIC_DISTRIBUTION))
        raise UsageError(f"--set {name}={value}: {name!r} is no policy; write one of {known}, or the annotation's key")
    refused = [said for said in read_policy(_with_policy(Service(), name, value)).complaints if _is_refusal(said)]
    if refused:
        raise UsageError(f"--set {name}={value}: {refused[0].remedy}")
    if not any(chosen(served.service) for served in situation.services):
        raise ZonewiseError(f"--set {name}={value}: no Service is chosen by -n and -l")
    services = tuple(
        replace(served, service=_with_policy(served.service, name, value)) if chosen(served.service) else served
        for served in situation.services
    )
    return _changed(situation, f"{name}={value}", services=services)


def _is_refusal(said: RoutingReason) -> bool:
    """A value that nobody understands; that a Service says two things, or tunes nothing, may well be asked about."""
    return said.code is RoutingCode.INVALID_VALUE


def _with_policy(service: Service, name: str, value: str) -> Service:
    if name == TRAFFIC_DISTRIBUTION:
        return msgspec.structs.replace(
            service, spec=msgspec.structs.replace(service.spec, traffic_distribution=value or None)
        )
    key = SHORT_NAMES.get(name, name)
    annotations = {other: said for other, said in service.metadata.annotations.items() if other != key}
    if value:
        annotations[key] = value
    return msgspec.structs.replace(service, metadata=msgspec.structs.replace(service.metadata, annotations=annotations))


def lose_zone(situation: Snapshot, zone: str) -> Snapshot:
    """Its nodes and every endpoint on them are gone, and nothing has taken their place yet."""
    lost = {name for name, found in situation.cluster.domains(ZONE).items() if found == zone}
    if not lost:
        raise ZonewiseError(f"--lose-zone {zone}: no node is in that zone; there is {_zones(situation.cluster)}")
    homes = situation.cluster.domains(ZONE)

    def stays(endpoint: Endpoint) -> bool:
        return (homes.get(endpoint.node_name or "") or endpoint.zone) != zone

    services = tuple(_keep(served, stays) for served in situation.services)
    nodes = tuple(node for node in situation.nodes if node.metadata.name not in lost)
    return _changed(situation, f"zone {zone} lost ({len(lost)} nodes)", nodes=nodes, services=services)


def add_nodes(situation: Snapshot, zone: str, number: int) -> Snapshot:
    """Nodes like the first ready one of that zone; of any zone, where it is a new one."""
    if not 1 <= number <= MOST_ADDED:
        raise UsageError(f"--add-nodes {zone}={number}: add 1 to {MOST_ADDED:,} nodes")
    pattern = _pattern(situation, zone)
    taken = {node.metadata.name for node in situation.nodes}
    fresh = (name for index in count(1) if (name := f"{zone}-added-{index}") not in taken)
    added = tuple(_like(pattern, next(fresh), zone) for _ in range(number))
    return _changed(situation, f"{number} nodes added in {zone}", nodes=(*situation.nodes, *added))


def _pattern(situation: Snapshot, zone: str) -> Node:
    homes, clients = situation.cluster.domains(ZONE), situation.cluster.clients
    name = next((name for name in clients if homes.get(name) == zone), clients[0] if clients else None)
    if name is None:
        raise ZonewiseError(f"--add-nodes {zone}: there is no node that new ones could be like")
    return situation.cluster.nodes[name]


def _like(pattern: Node, name: str, zone: str) -> Node:
    labels = {**pattern.metadata.labels, ZONE: zone, HOSTNAME: name}
    return msgspec.structs.replace(
        pattern, metadata=msgspec.structs.replace(pattern.metadata, name=name, uid=name, labels=labels)
    )


def scale(situation: Snapshot, name: str, number: int) -> Snapshot:
    """A Service gets as many endpoints: new ones in the zones that have fewest, the fullest zones lose theirs first."""
    if not 0 <= number <= MOST_ADDED:
        raise UsageError(f"--replicas {name}={number}: write a number from 0 to {MOST_ADDED:,}")
    wanted = find(situation, name, "--replicas")
    services = tuple(
        _scaled(served, number, situation.cluster) if served.key == wanted else served for served in situation.services
    )
    return _changed(situation, f"{wanted} scaled to {number}", services=services)


def find(situation: Snapshot, name: str, option: str) -> Key:
    """The Service that a person names, with its namespace or without."""
    namespace, _, bare = name.rpartition("/")
    found = [
        served.key
        for served in situation.services
        if served.key.name == bare and (not namespace or served.key.namespace == namespace)
    ]
    match found:
        case [one]:
            return one
        case []:
            raise ZonewiseError(f"{option} {name}: there is no such Service with a selector")
        case _:
            raise UsageError(f"{option} {name}: {len(found)} Services have that name; write {found[0]} or another")


def _scaled(served: ServiceSnapshot, number: int, cluster: RoutingNodes) -> ServiceSnapshot:
    families = {
        family: _scale_family(by_ports, family, number, cluster) for family, by_ports in served.by_family.items()
    }
    return replace(served, by_family=families)


def _scale_family(by_ports: ByPorts, family: ServiceFamily, number: int, cluster: RoutingNodes) -> ByPorts:
    ports = next(iter(by_ports), ())
    endpoints = [endpoint for found in by_ports.values() for endpoint in found]
    added = list(_more(endpoints, family, number - len(endpoints), cluster))
    kept = {id(endpoint) for endpoint in _fewer(endpoints, len(endpoints) - number, cluster)}
    scaled = {same: [endpoint for endpoint in found if id(endpoint) in kept] for same, found in by_ports.items()}
    scaled[ports] = [*scaled.get(ports, ()), *added]
    return scaled


def _more(
    endpoints: Sequence[Endpoint], family: ServiceFamily, number: int, cluster: RoutingNodes
) -> Iterable[Endpoint]:
    zones, placed = _nodes_by_zone(cluster), Counter(_home(endpoint, cluster) for endpoint in endpoints)
    if number > 0 and not zones:
        raise ZonewiseError("no node takes pods, so there is no place for more endpoints")
    for index in range(max(0, number)):
        zone = min(zones, key=lambda found: (placed[found], found))
        node = zones[zone][placed[zone] % len(zones[zone])]
        placed[zone] += 1
        yield Endpoint(addresses=(_address(family, index),), node_name=node, zone=zone)


def _fewer(endpoints: Sequence[Endpoint], number: int, cluster: RoutingNodes) -> list[Endpoint]:
    by_zone: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        by_zone.setdefault(_home(endpoint, cluster) or "", []).append(endpoint)
    for _ in range(max(0, number)):
        max(by_zone.values(), key=len).pop()
    kept = {id(endpoint) for found in by_zone.values() for endpoint in found}
    return [endpoint for endpoint in endpoints if id(endpoint) in kept]


def _home(endpoint: Endpoint, cluster: RoutingNodes) -> str | None:
    return cluster.domains(ZONE).get(endpoint.node_name or "") or endpoint.zone


def _nodes_by_zone(cluster: RoutingNodes) -> dict[str, list[str]]:
    homes, found = cluster.domains(ZONE), dict[str, list[str]]()
    for name in cluster.clients:
        found.setdefault(homes.get(name, ""), []).append(name)
    return found


def _address(family: ServiceFamily, index: int) -> str:
    """From a range for benchmarks that no cluster uses for its pods (RFC 2544, RFC 5180)."""
    high, low = divmod(index, 256)
    return f"198.18.{high}.{low}" if family is ServiceFamily.IPV4 else f"2001:2::{index:x}"


def _keep(served: ServiceSnapshot, stays: Callable[[Endpoint], bool]) -> ServiceSnapshot:
    families = {
        family: {ports: [endpoint for endpoint in found if stays(endpoint)] for ports, found in by_ports.items()}
        for family, by_ports in served.by_family.items()
    }
    return replace(served, by_family=families)


def _changed(
    situation: Snapshot,
    words: str,
    *,
    nodes: tuple[Node, ...] | None = None,
    services: tuple[ServiceSnapshot, ...] | None = None,
) -> Snapshot:
    """A new value: what the old one had computed of its nodes does not hold for it."""
    return replace(
        situation,
        nodes=situation.nodes if nodes is None else nodes,
        services=situation.services if services is None else services,
        changed=(*situation.changed, words),
        foreseen={},
    )


def _zones(cluster: RoutingNodes) -> str:
    zones = sorted(set(cluster.domains(ZONE).values()))
    return ", ".join(zones) if zones else "no zone at all: no node has a zone label"
