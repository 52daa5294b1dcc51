"""Endpoint selection for a Service port on this node: the targets, their shares, and the reason. Pure.

Topology keys and same-domain policies are decided here for this node, by `routing`. Everything else follows the slices'
hints as a stock kube-proxy does. If the controller has split a Service's slices into groups by consumer, the groups and
the node hints carry its decision already, and only those for this node's zone are watched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from zonewise.api.names import CONSUMER, CONSUMER_ALL, CONSUMER_SHARED, WEIGHTS
from zonewise.objects import Endpoint, EndpointSlice, Service, ServicePort
from zonewise.routing import (
    NODE_NAME,
    ClientChoice,
    Decision,
    RoutingCode,
    RoutingNodes,
    RoutingReason,
    choose,
    decide,
    drained_zones,
    read_policy,
)
from zonewise.routing.endpoints import is_ready, usable
from zonewise.routing.kube_proxy import ProxyChoice, TrafficPolicies, categorize, merge, traffic_policies
from zonewise.routing.policy import SameDomain, Strength, TopologyKeys
from zonewise.routing.slice_memory import last_decision
from zonewise.routing.weights_annotation import read_weights
from zonewise.topology import REGION, ZONE

_ALL_READY: Final = RoutingReason(RoutingCode.NO_POLICY, "all ready endpoints: no policy and no hints")


class EndpointTarget(NamedTuple):
    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


class PortTargets(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`cluster`, with shares, serves traffic that may leave the node, `local` traffic that must not.

    `on_node` are the targets of either kind on this node. `has_any`: there are endpoints somewhere, even if none for
    this traffic; it is then dropped instead of rejected, as another node may serve it.
    """

    cluster: Mapping[EndpointTarget, float]
    local: tuple[EndpointTarget, ...]
    on_node: frozenset[EndpointTarget]
    has_any: bool
    reason: RoutingReason
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class NodeLocation:
    """The location of the clients: this node, and the cluster's other nodes.

    `namespaces` has the annotations that affect routing, by namespace.
    """

    node: str
    cluster: RoutingNodes = field(repr=False)
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)

    @property
    def zone(self) -> str:
        return self.cluster.domains(ZONE).get(self.node, "")


def find_targets(
    service: Service,
    port: ServicePort,
    slices: Sequence[EndpointSlice],
    location: NodeLocation,
    family: str,
    previous: Decision | None = None,
) -> PortTargets:
    """`slices` are those of the Service; slices of another family or without the port are ignored."""
    ports = [
        (endpoint_slice, number)
        for endpoint_slice in slices
        if endpoint_slice.address_type == family
        for number in port_numbers(endpoint_slice, port)
    ]
    policies = traffic_policies(service, port, family)
    if (plain := _plain(service, ports, policies, location)) is not None:
        return plain
    reading = read_policy(service)
    if not isinstance(reading.policy, TopologyKeys | SameDomain):
        return _by_hints([endpoint_slice for endpoint_slice, _ in ports], port, policies, location)
    grouped = location.zone and any(CONSUMER in endpoint_slice.metadata.labels for endpoint_slice, _ in ports)
    if isinstance(reading.policy, SameDomain) and grouped and not is_stranded(service, slices, location.zone):
        return _by_group(reading.policy, ports, policies, location)
    return _by_decision(service, ports, policies, location, previous)


def port_numbers(endpoint_slice: EndpointSlice, port: ServicePort) -> Iterable[int]:
    return (
        slice_port.port
        for slice_port in endpoint_slice.ports or ()
        if slice_port.port and slice_port.name == port.name and slice_port.protocol == port.protocol
    )


def slices_by_port(slices: Iterable[EndpointSlice]) -> dict[tuple[str | None, str], list[EndpointSlice]]:
    """Copies of the slices with one port each, by its name and protocol: an index for Services with many ports."""
    index: dict[tuple[str | None, str], list[EndpointSlice]] = {}
    for endpoint_slice in slices:
        for slice_port in endpoint_slice.ports or ():
            index.setdefault((slice_port.name, slice_port.protocol), []).append(
                msgspec.structs.replace(endpoint_slice, ports=(slice_port,))
            )
    return index


_SlicePorts = Sequence[tuple[EndpointSlice, int]]


def _plain(
    service: Service, ports: _SlicePorts, policies: TrafficPolicies, location: NodeLocation
) -> PortTargets | None:
    """Fast path of the common case: no policy, hint, terminating endpoint or node-local traffic. Else None."""
    if policies.uses_local or service.metadata.annotations or service.spec.topology_keys:
        return None
    shares: dict[EndpointTarget, float] = {}
    on_node = []
    node = location.node
    for endpoint_slice, number in ports:
        if CONSUMER in endpoint_slice.metadata.labels:
            return None
        for endpoint in endpoint_slice.endpoints or ():
            conditions = endpoint.conditions
            if endpoint.hints is not None or conditions.terminating or conditions.ready is False:
                return None
            target = EndpointTarget(endpoint.addresses[0], number)  # the API requires at least one
            shares[target] = 1.0
            if endpoint.node_name == node:
                on_node.append(target)
    if not shares:
        return None
    return PortTargets(cluster=shares, local=(), on_node=frozenset(on_node), has_any=True, reason=_ALL_READY)


def _by_hints(
    slices: Sequence[EndpointSlice], port: ServicePort, policies: TrafficPolicies, location: NodeLocation
) -> PortTargets:
    endpoints = merge(slices, port, location.node)
    choice: ProxyChoice = categorize(endpoints, policies, location.node, location.zone)
    return PortTargets(
        cluster=dict.fromkeys(map(_parsed, choice.cluster), 1.0),
        local=tuple(map(_parsed, choice.local)),
        on_node=frozenset(_parsed(endpoint.address) for endpoint in endpoints if endpoint.local),
        has_any=choice.has_any,
        reason=choice.reason,
    )


def _parsed(text: str) -> EndpointTarget:
    address, _, number = text.rpartition(":")
    return EndpointTarget(address.strip("[]"), int(number))


def _by_decision(
    service: Service, ports: _SlicePorts, policies: TrafficPolicies, location: NodeLocation, previous: Decision | None
) -> PortTargets:
    """All slices are watched. The previous decision comes from them first, so that all nodes start from the same one."""
    endpoints = _endpoints(ports)
    recalled = last_decision(service, [endpoint_slice for endpoint_slice, _ in ports], location.cluster)
    annotations = location.namespaces.get(service.metadata.namespace, {})
    drain = drained_zones(service, annotations, location.cluster.node_drains)
    decision = decide(service, endpoints, location.cluster, recalled or previous or {}, drained=drain)
    choice = choose(decision, location.cluster, location.node)
    return _chosen(choice, ports, policies, location, decision)


def _chosen(
    choice: ClientChoice,
    ports: _SlicePorts,
    policies: TrafficPolicies,
    location: NodeLocation,
    decision: Decision | None,
) -> PortTargets:
    """No policy applies to node-local traffic."""
    by_address: dict[str, list[EndpointTarget]] = {}
    for endpoint_slice, number in ports:
        for endpoint in endpoint_slice.endpoints or ():
            if endpoint.addresses:
                by_address.setdefault(endpoint.addresses[0], []).append(EndpointTarget(endpoint.addresses[0], number))
    shares = choice.shares if policies.uses_cluster else {}
    endpoints = _endpoints(ports)
    local_endpoints = [endpoint for endpoint in endpoints if endpoint.node_name == location.node]
    local = tuple(usable(local_endpoints).by_address) if policies.uses_local else ()
    anywhere = policies.uses_local and bool(usable(endpoints).by_address)
    return PortTargets(
        cluster={target: share for address, share in shares.items() for target in by_address[address]},
        local=tuple(target for address in local for target in by_address[address]),
        on_node=frozenset(
            target for endpoint in local_endpoints if endpoint.addresses for target in by_address[endpoint.addresses[0]]
        ),
        has_any=bool(shares) or anywhere,
        reason=choice.reason,
        decision=decision,
    )


def _endpoints(ports: _SlicePorts) -> list[Endpoint]:
    return [endpoint for endpoint_slice, _ in ports for endpoint in endpoint_slice.endpoints or ()]


def _by_group(policy: SameDomain, ports: _SlicePorts, policies: TrafficPolicies, location: NodeLocation) -> PortTargets:
    """The zone's group and endpoints shared with it; if none is usable, all endpoints that no hard rule excludes.

    Whether the node keeps to its own of these depends on all slices, so its name in their hints tells.
    """
    in_group: list[Endpoint] = []
    elsewhere: list[Endpoint] = []
    weights: dict[str, float] = {}
    for endpoint_slice, _ in ports:
        for endpoint, weight in _weighted(endpoint_slice, location.zone):
            (in_group if weight else elsewhere).append(endpoint)
            weights.update(dict.fromkeys(endpoint.addresses[:1], weight))
    own_group = usable(in_group)
    has_own = bool(own_group.by_address) and not own_group.draining
    chosen = own_group if has_own else usable([*in_group, *elsewhere])
    allowed = _within_required(policy, chosen.by_address, location)
    on_node = _hinted_for_node(allowed, location.node) if policy.node is Strength.PREFER else []
    shares = {address: weights[address] if has_own else 1.0 for address in allowed}
    total = len(in_group) + len(elsewhere)
    choice = _group_choice(dict.fromkeys(on_node, 1.0) or shares, total, location, by_node=bool(on_node))
    return _chosen(choice, ports, policies, location, None)


def is_stranded(service: Service, slices: Iterable[EndpointSlice], zone: str) -> bool:
    """Whether a rule needs endpoints in groups for other zones, which this node does not watch.

    True for a soft rule whose endpoints are all there: while a zone is new, and permanently for a zone from which the
    controller expects no traffic. True for topology keys, which have no groups, until the slices of a former policy are gone.
    """
    policy = read_policy(service).policy
    if service.spec.selector is None:
        return False  # its slices are not written by the controller
    if isinstance(policy, TopologyKeys):
        return any(
            endpoint_slice.metadata.labels.get(CONSUMER, CONSUMER_ALL) != CONSUMER_ALL for endpoint_slice in slices
        )
    if not isinstance(policy, SameDomain) or Strength.REQUIRE in {policy.node, policy.zone}:
        return False
    return not any(
        (group := endpoint_slice.metadata.labels.get(CONSUMER, CONSUMER_ALL)) in {CONSUMER_ALL, zone}
        or (group == CONSUMER_SHARED and any(weight for _, weight in _weighted(endpoint_slice, zone)))
        for endpoint_slice in slices
    )


def _weighted(endpoint_slice: EndpointSlice, zone: str) -> Iterable[tuple[Endpoint, float]]:
    """The weight of each endpoint for clients in the zone; zero if it is meant for other zones."""
    group = endpoint_slice.metadata.labels.get(CONSUMER, CONSUMER_ALL)
    weights = read_weights(endpoint_slice.metadata.annotations.get(WEIGHTS, ""))
    for endpoint in endpoint_slice.endpoints or ():
        by_zone = weights.get(endpoint.addresses[0]) if endpoint.addresses else None
        if by_zone and zone in by_zone:
            yield endpoint, by_zone[zone]
        else:
            yield endpoint, float(group == zone or (group == CONSUMER_SHARED and _hinted(endpoint, zone)))


def _hinted(endpoint: Endpoint, zone: str) -> bool:
    return endpoint.hints is not None and any(hint.name == zone for hint in endpoint.hints.for_zones)


def _within_required(
    policy: SameDomain, endpoints: Mapping[str, Endpoint], location: NodeLocation
) -> Mapping[str, Endpoint]:
    """Only endpoints in the smallest required domain."""
    levels = ((NODE_NAME, policy.node), (ZONE, policy.zone), (REGION, policy.region))
    required = next((key for key, strength in levels if strength is Strength.REQUIRE), None)
    return _near(required, endpoints, location) if required else endpoints


def _hinted_for_node(endpoints: Mapping[str, Endpoint], node: str) -> list[str]:
    return [
        address
        for address, endpoint in endpoints.items()
        if endpoint.node_name == node and endpoint.hints and any(hint.name == node for hint in endpoint.hints.for_nodes)
    ]


def _near(key: str, endpoints: Mapping[str, Endpoint], location: NodeLocation) -> Mapping[str, Endpoint]:
    domain = location.cluster.domains(key).get(location.node)
    domains = location.cluster.homes(endpoints, key)
    return {address: endpoint for address, endpoint in endpoints.items() if domain and domains[address] == domain}


def _group_choice(shares: Mapping[str, float], total: int, location: NodeLocation, *, by_node: bool) -> ClientChoice:
    facts = {"client": location.node, "chosen": len(shares), "endpoints": total}
    if shares:
        where = f"node {location.node}" if by_node else f"zone {location.zone}"
        sentence = f"{len(shares)} of {total} endpoints, which the controller gave to {where}"
        return ClientChoice(shares, None, RoutingReason(RoutingCode.CHOSEN, sentence, facts))
    sentence = f"none of {total} endpoints is for node {location.node} in zone {location.zone}, and the rule is hard"
    remedy = "run an endpoint there, or make the rule soft"
    return ClientChoice({}, None, RoutingReason(RoutingCode.NONE_REACHABLE, sentence, facts, remedy=remedy))


def ready_on(node: str, slices: Iterable[EndpointSlice]) -> int:
    """The number of ready endpoints on the node, for load balancers: terminating ones are excluded, though they serve."""
    by_family: dict[str, set[str]] = {}
    for endpoint_slice in slices:
        on_node = (
            endpoint for endpoint in endpoint_slice.endpoints or () if endpoint.node_name == node and is_ready(endpoint)
        )
        by_family.setdefault(endpoint_slice.address_type, set()).update(
            address for endpoint in on_node for address in endpoint.addresses[:1]
        )
    return max(map(len, by_family.values()), default=0)


def serving(port: ServicePort, slices: Iterable[EndpointSlice], family: str) -> frozenset[EndpointTarget]:
    """The serving endpoints on any node: established flows to them are kept."""
    return frozenset(
        EndpointTarget(endpoint.addresses[0], number)
        for endpoint_slice in slices
        if endpoint_slice.address_type == family
        for number in port_numbers(endpoint_slice, port)
        for endpoint in endpoint_slice.endpoints or ()
        if endpoint.addresses and endpoint.conditions.serving is not False
    )
