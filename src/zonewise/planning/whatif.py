"""What-if changes to a snapshot: set a policy, lose a zone, add nodes, scale a Service. Pure; each returns a new snapshot.

A change that names a missing object raises an error that lists the present ones.
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
from zonewise.routing.reason import RoutingCode
from zonewise.slices.decide.endpoints import ByPorts
from zonewise.slices.decide.families import ServiceFamily
from zonewise.topology import HOSTNAME, ZONE

ServiceFilter = Callable[[Service], bool]

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
_ANNOTATION_KEYS: Final = frozenset({*SHORT_NAMES.values(), OLD_HINTS, DRAIN_ZONE})
MAX_ADDED: Final = 10_000


def set_policy(snapshot: Snapshot, name: str, value: str, chosen: ServiceFilter) -> Snapshot:
    """`name` is a short name, an annotation key, or trafficDistribution. An empty value removes the policy."""
    if name not in {*SHORT_NAMES, *_ANNOTATION_KEYS, TRAFFIC_DISTRIBUTION}:
        names = ", ".join((*SHORT_NAMES, TRAFFIC_DISTRIBUTION))
        raise UsageError(f"--set {name}={value}: {name!r} is no policy; write one of {names}, or the annotation's key")
    complaints = read_policy(_with_policy(Service(), name, value)).complaints
    # Only invalid values are errors: contradictory or ineffective settings are worth a forecast.
    for complaint in complaints:
        if complaint.code is RoutingCode.INVALID_VALUE:
            raise UsageError(f"--set {name}={value}: {complaint.remedy}")
    if not any(chosen(service.service) for service in snapshot.services):
        raise ZonewiseError(f"--set {name}={value}: no Service is chosen by -n and -l")
    services = tuple(
        replace(service, service=_with_policy(service.service, name, value)) if chosen(service.service) else service
        for service in snapshot.services
    )
    return _changed(snapshot, f"{name}={value}", services=services)


def _with_policy(service: Service, name: str, value: str) -> Service:
    if name == TRAFFIC_DISTRIBUTION:
        return msgspec.structs.replace(
            service, spec=msgspec.structs.replace(service.spec, traffic_distribution=value or None)
        )
    key = SHORT_NAMES.get(name, name)
    annotations = {other: text for other, text in service.metadata.annotations.items() if other != key}
    if value:
        annotations[key] = value
    return msgspec.structs.replace(service, metadata=msgspec.structs.replace(service.metadata, annotations=annotations))


def lose_zone(snapshot: Snapshot, zone: str) -> Snapshot:
    """Removes its nodes and their endpoints. No replacements have started yet."""
    homes = snapshot.cluster.domains(ZONE)
    lost = {name for name, home in homes.items() if home == zone}
    if not lost:
        raise ZonewiseError(f"--lose-zone {zone}: no node is in that zone; there is {_zones(snapshot.cluster)}")

    def stays(endpoint: Endpoint) -> bool:
        return (homes.get(endpoint.node_name or "") or endpoint.zone) != zone

    services = tuple(_keep(service, stays) for service in snapshot.services)
    nodes = tuple(node for node in snapshot.nodes if node.metadata.name not in lost)
    return _changed(snapshot, f"zone {zone} lost ({len(lost)} nodes)", nodes=nodes, services=services)


def add_nodes(snapshot: Snapshot, zone: str, number: int) -> Snapshot:
    """Copies the first ready node of that zone; for a new zone, that of any zone."""
    if not 1 <= number <= MAX_ADDED:
        raise UsageError(f"--add-nodes {zone}={number}: add 1 to {MAX_ADDED:,} nodes")
    template = _template(snapshot, zone)
    taken = {node.metadata.name for node in snapshot.nodes}
    fresh = (name for index in count(1) if (name := f"{zone}-added-{index}") not in taken)
    added = tuple(_copy_node(template, next(fresh), zone) for _ in range(number))
    return _changed(snapshot, f"{number} nodes added in {zone}", nodes=(*snapshot.nodes, *added))


def _template(snapshot: Snapshot, zone: str) -> Node:
    homes, clients = snapshot.cluster.domains(ZONE), snapshot.cluster.clients
    name = next((name for name in clients if homes.get(name) == zone), clients[0] if clients else None)
    if name is None:
        raise ZonewiseError(f"--add-nodes {zone}: there is no ready node to copy")
    return snapshot.cluster.nodes[name]


def _copy_node(template: Node, name: str, zone: str) -> Node:
    labels = {**template.metadata.labels, ZONE: zone, HOSTNAME: name}
    return msgspec.structs.replace(
        template, metadata=msgspec.structs.replace(template.metadata, name=name, uid=name, labels=labels)
    )


def scale_service(snapshot: Snapshot, name: str, number: int) -> Snapshot:
    """Adds endpoints in the zones that have fewest, or removes them from the zones that have most."""
    if not 0 <= number <= MAX_ADDED:
        raise UsageError(f"--replicas {name}={number}: write a number from 0 to {MAX_ADDED:,}")
    key = find_service(snapshot, name, "--replicas")
    services = tuple(
        _scaled(service, number, snapshot.cluster) if service.key == key else service for service in snapshot.services
    )
    return _changed(snapshot, f"{key} scaled to {number}", services=services)


def find_service(snapshot: Snapshot, name: str, option: str) -> Key:
    """`name` may leave out the namespace; `option` names the flag in errors."""
    namespace, _, bare = name.rpartition("/")
    keys = [
        service.key
        for service in snapshot.services
        if service.key.name == bare and (not namespace or service.key.namespace == namespace)
    ]
    match keys:
        case [key]:
            return key
        case []:
            raise ZonewiseError(f"{option} {name}: there is no such Service with a selector")
        case _:
            raise UsageError(f"{option} {name}: {len(keys)} Services have that name; write {keys[0]} or another")


def _scaled(service: ServiceSnapshot, number: int, cluster: RoutingNodes) -> ServiceSnapshot:
    families = {
        family: _scale_family(by_ports, family, number, cluster) for family, by_ports in service.by_family.items()
    }
    return replace(service, by_family=families)


def _scale_family(by_ports: ByPorts, family: ServiceFamily, number: int, cluster: RoutingNodes) -> ByPorts:
    ports = next(iter(by_ports), ())
    endpoints = [endpoint for group in by_ports.values() for endpoint in group]
    added = list(_added(endpoints, family, number - len(endpoints), cluster))
    kept = {id(endpoint) for endpoint in _remaining(endpoints, len(endpoints) - number, cluster)}
    scaled = {key: [endpoint for endpoint in group if id(endpoint) in kept] for key, group in by_ports.items()}
    scaled[ports] = [*scaled.get(ports, ()), *added]
    return scaled


def _added(
    endpoints: Sequence[Endpoint], family: ServiceFamily, number: int, cluster: RoutingNodes
) -> Iterable[Endpoint]:
    zones, placed = _nodes_by_zone(cluster), Counter(_home(endpoint, cluster) for endpoint in endpoints)
    if number > 0 and not zones:
        raise ZonewiseError("no node accepts pods, so endpoints can't be added")
    for index in range(max(0, number)):
        zone = min(zones, key=lambda name: (placed[name], name))
        node = zones[zone][placed[zone] % len(zones[zone])]
        placed[zone] += 1
        yield Endpoint(addresses=(_address(family, index),), node_name=node, zone=zone)


def _remaining(endpoints: Sequence[Endpoint], number: int, cluster: RoutingNodes) -> list[Endpoint]:
    by_zone: dict[str, list[Endpoint]] = {}
    for endpoint in endpoints:
        by_zone.setdefault(_home(endpoint, cluster) or "", []).append(endpoint)
    for _ in range(max(0, number)):
        max(by_zone.values(), key=len).pop()
    kept = {id(endpoint) for group in by_zone.values() for endpoint in group}
    return [endpoint for endpoint in endpoints if id(endpoint) in kept]


def _home(endpoint: Endpoint, cluster: RoutingNodes) -> str | None:
    return cluster.domains(ZONE).get(endpoint.node_name or "") or endpoint.zone


def _nodes_by_zone(cluster: RoutingNodes) -> dict[str, list[str]]:
    homes, by_zone = cluster.domains(ZONE), dict[str, list[str]]()
    for name in cluster.clients:
        by_zone.setdefault(homes.get(name, ""), []).append(name)
    return by_zone


def _address(family: ServiceFamily, index: int) -> str:
    """From the benchmarking ranges, which no cluster uses for pods (RFC 2544, RFC 5180)."""
    high, low = divmod(index, 256)
    return f"198.18.{high}.{low}" if family is ServiceFamily.IPV4 else f"2001:2::{index:x}"


def _keep(service: ServiceSnapshot, stays: Callable[[Endpoint], bool]) -> ServiceSnapshot:
    families = {
        family: {ports: [endpoint for endpoint in group if stays(endpoint)] for ports, group in by_ports.items()}
        for family, by_ports in service.by_family.items()
    }
    return replace(service, by_family=families)


def _changed(
    snapshot: Snapshot,
    change: str,
    *,
    nodes: tuple[Node, ...] | None = None,
    services: tuple[ServiceSnapshot, ...] | None = None,
) -> Snapshot:
    """Starts with an empty cache: the old forecasts do not hold."""
    return replace(
        snapshot,
        nodes=snapshot.nodes if nodes is None else nodes,
        services=snapshot.services if services is None else services,
        changed=(*snapshot.changed, change),
        forecasts={},
    )


def _zones(cluster: RoutingNodes) -> str:
    zones = sorted(set(cluster.domains(ZONE).values()))
    return ", ".join(zones) if zones else "no zone at all: no node has a zone label"
