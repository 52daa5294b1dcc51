"""Which endpoints a port of a Service leads to from this node, with their shares, and why. Pure; `rules` builds on it.

The rules are those of `routing`: topology keys and same-domain policies are decided here for this node, everything else
is what a stock kube-proxy makes of the slices' hints. Where the controller has split a Service's slices into groups by
consumer, its decision is in them already, and only those for this node's zone are watched.
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
    recall,
)
from zonewise.routing.endpoints import is_ready, usable
from zonewise.routing.kube_proxy import ProxyChoice, TrafficPolicies, categorize, merge, traffic_policies
from zonewise.routing.policy import PolicyReading, SameDomain, Strength, TopologyKeys
from zonewise.routing.weights_annotation import read_weights
from zonewise.topology import REGION, ZONE

_NOTHING_ASKED: Final = RoutingReason(RoutingCode.NO_POLICY, "all ready endpoints: nothing else is asked for or hinted")


class EndpointTarget(NamedTuple):
    address: str
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


class PortTargets(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`cluster` with shares, for traffic that may leave the node; `local` for what must not.

    `on_node` are those of either kind that run on this node. `has_any` tells that there are endpoints somewhere, even
    if none for this traffic: what is refused then is dropped, as it may be served elsewhere.
    """

    cluster: Mapping[EndpointTarget, float]
    local: tuple[EndpointTarget, ...]
    on_node: frozenset[EndpointTarget]
    has_any: bool
    reason: RoutingReason
    decision: Decision | None = None


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where the clients are: this node, and what is known of the others.

    `namespaces` has the annotations of those that have any to heed, by name.
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
    place: NodePlace,
    family: str,
    previous: Decision | None = None,
) -> PortTargets:
    """`slices` are those of the Service; the ones of another family or without the port don't count."""
    offering = [(found, number) for found in slices if found.address_type == family for number in offered(found, port)]
    policies = traffic_policies(service, port, family)
    if (plain := _plain(service, offering, policies, place)) is not None:
        return plain
    reading = read_policy(service)
    if not isinstance(reading.policy, TopologyKeys | SameDomain):
        return _by_hints([found for found, _ in offering], port, policies, place)
    if any(CONSUMER in found.metadata.labels for found, _ in offering):
        return _by_group(reading, offering, policies, place)
    return _by_decision(service, offering, policies, place, previous)


def offered(found: EndpointSlice, port: ServicePort) -> Iterable[int]:
    return (
        offer.port
        for offer in found.ports or ()
        if offer.port and offer.name == port.name and offer.protocol == port.protocol
    )


def parted(slices: Iterable[EndpointSlice]) -> dict[tuple[str | None, str], list[EndpointSlice]]:
    """The slices by the name and protocol of a port, each with that port alone: what thousands of ports are looked up in."""
    found: dict[tuple[str | None, str], list[EndpointSlice]] = {}
    for each in slices:
        for offer in each.ports or ():
            found.setdefault((offer.name, offer.protocol), []).append(msgspec.structs.replace(each, ports=(offer,)))
    return found


_Offering = Sequence[tuple[EndpointSlice, int]]


def _plain(service: Service, offering: _Offering, policies: TrafficPolicies, place: NodePlace) -> PortTargets | None:
    """The common case at a fraction of the cost: nothing is asked, hinted, terminating or bound to the node."""
    if policies.uses_local or service.metadata.annotations or service.spec.topology_keys:
        return None
    shares: dict[EndpointTarget, float] = {}
    on_node = []
    here = place.node
    for found, number in offering:
        if CONSUMER in found.metadata.labels:
            return None
        for endpoint in found.endpoints or ():
            conditions = endpoint.conditions
            if endpoint.hints is not None or conditions.terminating or conditions.ready is False:
                return None
            target = EndpointTarget(endpoint.addresses[0], number)  # the API server knows no endpoint without one
            shares[target] = 1.0
            if endpoint.node_name == here:
                on_node.append(target)
    if not shares:
        return None
    return PortTargets(cluster=shares, local=(), on_node=frozenset(on_node), has_any=True, reason=_NOTHING_ASKED)


def _by_hints(
    slices: Sequence[EndpointSlice], port: ServicePort, policies: TrafficPolicies, place: NodePlace
) -> PortTargets:
    seen = merge(slices, port, place.node)
    choice: ProxyChoice = categorize(seen, policies, place.node, place.zone)
    return PortTargets(
        cluster=dict.fromkeys(map(_parsed, choice.cluster), 1.0),
        local=tuple(map(_parsed, choice.local)),
        on_node=frozenset(_parsed(target.address) for target in seen if target.local),
        has_any=choice.has_any,
        reason=choice.reason,
    )


def _parsed(written: str) -> EndpointTarget:
    address, _, number = written.rpartition(":")
    return EndpointTarget(address.strip("[]"), int(number))


def _by_decision(
    service: Service, offering: _Offering, policies: TrafficPolicies, place: NodePlace, previous: Decision | None
) -> PortTargets:
    """What the slices' hints recall of the last decision counts, so that all nodes start from the same."""
    endpoints = _endpoints(offering)
    remembered = recall(endpoints, place.cluster)
    said = place.namespaces.get(service.metadata.namespace, {})
    drain = drained_zones(service, said, place.cluster.node_drains)
    decision = decide(service, endpoints, place.cluster, remembered or previous or {}, drained=drain)
    choice = choose(decision, place.cluster, place.node)
    return _chosen(choice, offering, policies, place, decision)


def _chosen(
    choice: ClientChoice, offering: _Offering, policies: TrafficPolicies, place: NodePlace, decision: Decision | None
) -> PortTargets:
    """Traffic that is bound to the node asks no policy."""
    by_address: dict[str, list[EndpointTarget]] = {}
    for found, number in offering:
        for endpoint in found.endpoints or ():
            if endpoint.addresses:
                by_address.setdefault(endpoint.addresses[0], []).append(EndpointTarget(endpoint.addresses[0], number))
    shares = choice.shares if policies.uses_cluster else {}
    endpoints = _endpoints(offering)
    ours = [endpoint for endpoint in endpoints if endpoint.node_name == place.node]
    local = tuple(usable(ours).by_address) if policies.uses_local else ()
    anywhere = policies.uses_local and bool(usable(endpoints).by_address)
    return PortTargets(
        cluster={target: share for address, share in shares.items() for target in by_address[address]},
        local=tuple(target for address in local for target in by_address[address]),
        on_node=frozenset(
            target for endpoint in ours if endpoint.addresses for target in by_address[endpoint.addresses[0]]
        ),
        has_any=bool(shares) or anywhere,
        reason=choice.reason,
        decision=decision,
    )


def _endpoints(offering: _Offering) -> list[Endpoint]:
    return [endpoint for found, _ in offering for endpoint in found.endpoints or ()]


def _by_group(reading: PolicyReading, offering: _Offering, policies: TrafficPolicies, place: NodePlace) -> PortTargets:
    """Own group and what is shared with this zone; without either, and if no wall stands, whatever there is."""
    policy = reading.policy
    assert isinstance(policy, SameDomain)
    ours: list[Endpoint] = []
    others: list[Endpoint] = []
    weights: dict[str, float] = {}
    for found, _ in offering:
        for endpoint, weight in _weighed(found, place.zone):
            (ours if weight else others).append(endpoint)
            weights.update(dict.fromkeys(endpoint.addresses[:1], weight))
    found_here = usable(ours)
    own = bool(found_here.by_address) and not found_here.draining
    taken = found_here if own else usable([*ours, *others])
    walled = _within_walls(policy, taken.by_address, place)
    shares = {address: weights[address] if own else 1.0 for address in walled}
    return _chosen(_group_choice(shares, len(ours) + len(others), place), offering, policies, place, None)


def is_stranded(service: Service, slices: Iterable[EndpointSlice], zone: str) -> bool:
    """Whether a soft rule's endpoints are all in groups for other zones, which this node does not watch.

    So it is while a zone is new, and for ever where the controller expects no traffic from it.
    """
    policy = read_policy(service).policy
    if service.spec.selector is None:
        return False  # the controller writes none, and may never have heard of it
    if not isinstance(policy, SameDomain) or Strength.REQUIRE in {policy.node, policy.zone}:
        return False
    return not any(
        found.metadata.labels.get(CONSUMER, CONSUMER_ALL) in {CONSUMER_ALL, CONSUMER_SHARED, zone} for found in slices
    )


def _weighed(found: EndpointSlice, zone: str) -> Iterable[tuple[Endpoint, float]]:
    """The weight of each endpoint for the clients of the zone; none for those it is not meant for."""
    group = found.metadata.labels.get(CONSUMER, CONSUMER_ALL)
    weights = read_weights(found.metadata.annotations.get(WEIGHTS, ""))
    for endpoint in found.endpoints or ():
        said = weights.get(endpoint.addresses[0]) if endpoint.addresses else None
        if said is not None:
            yield endpoint, said.get(zone, 0.0)
        else:
            yield endpoint, float(group == zone or (group == CONSUMER_SHARED and _hinted(endpoint, zone)))


def _hinted(endpoint: Endpoint, zone: str) -> bool:
    return endpoint.hints is not None and any(hint.name == zone for hint in endpoint.hints.for_zones)


def _within_walls(policy: SameDomain, endpoints: Mapping[str, Endpoint], place: NodePlace) -> Mapping[str, Endpoint]:
    """The smallest domain that is required walls off the others; a node that is preferred comes first within."""
    levels = ((NODE_NAME, policy.node), (ZONE, policy.zone), (REGION, policy.region))
    wall = next((key for key, strength in levels if strength is Strength.REQUIRE), None)
    inside = _near(wall, endpoints, place) if wall else endpoints
    on_node = _near(NODE_NAME, inside, place) if policy.node is Strength.PREFER else {}
    return on_node or inside


def _near(key: str, endpoints: Mapping[str, Endpoint], place: NodePlace) -> Mapping[str, Endpoint]:
    home = place.cluster.domains(key).get(place.node)
    homes = place.cluster.homes(endpoints, key)
    return {address: endpoint for address, endpoint in endpoints.items() if home and homes[address] == home}


def _group_choice(taken: Mapping[str, float], seen: int, place: NodePlace) -> ClientChoice:
    facts = {"client": place.node, "chosen": len(taken), "endpoints": seen}
    if taken:
        sentence = f"{len(taken)} of the {seen} endpoints that the controller gave to zone {place.zone or '(none)'}"
        return ClientChoice(taken, None, RoutingReason(RoutingCode.CHOSEN, sentence, facts))
    sentence = (
        f"none of {seen} endpoints is for node {place.node} in zone {place.zone or '(none)'}, and the rule is hard"
    )
    remedy = "run an endpoint there, or make the rule soft"
    return ClientChoice({}, None, RoutingReason(RoutingCode.NONE_REACHABLE, sentence, facts, remedy=remedy))


def ready_on(node: str, slices: Iterable[EndpointSlice]) -> int:
    """How many endpoints on the node a load balancer may count on: not those that are leaving, though they still serve."""
    found: dict[str, set[str]] = {}
    for each in slices:
        here = (endpoint for endpoint in each.endpoints or () if endpoint.node_name == node and is_ready(endpoint))
        found.setdefault(each.address_type, set()).update(
            address for endpoint in here for address in endpoint.addresses[:1]
        )
    return max(map(len, found.values()), default=0)


def serving(port: ServicePort, slices: Iterable[EndpointSlice], family: str) -> frozenset[EndpointTarget]:
    """Those that still answer, wherever they are: a flow that one of them has may go on."""
    return frozenset(
        EndpointTarget(endpoint.addresses[0], number)
        for found in slices
        if found.address_type == family
        for number in offered(found, port)
        for endpoint in found.endpoints or ()
        if endpoint.addresses and endpoint.conditions.serving is not False
    )
