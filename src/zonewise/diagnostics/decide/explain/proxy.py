"""Text of `zonewise proxy --explain`: what a node does with a Service's traffic, why, and its nftables elements. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from zonewise.api.names import PROXY_NAME, PROXY_NAME_LABEL
from zonewise.objects import EndpointSlice, Service, key_of
from zonewise.proxy.decide.rules import AddressLimits, PortRefusal, PortRules, Scope, is_served
from zonewise.proxy.decide.service_rules import explain
from zonewise.proxy.decide.targets import EndpointTarget, NodeLocation, PortTargets
from zonewise.proxy.wire.elements import ElementWriter, PortElements
from zonewise.proxy.wire.family import Family
from zonewise.proxy.wire.layout import LayoutOptions, frontend_key
from zonewise.routing import read_policy


def explain_on_node(
    service: Service,
    slices: Sequence[EndpointSlice],
    node: NodeLocation,
    families: Iterable[Family],
    *,
    limits: AddressLimits,
    all_services: bool = False,
) -> Iterator[str]:
    """Lines: the answer first, then the facts."""
    yield f"Service {key_of(service)} on node {node.node} (zone {node.zone or 'none'})"
    if not is_served(service, all_services=all_services):
        yield f"  not served by this proxy: label it {PROXY_NAME_LABEL}={PROXY_NAME}, and give it a cluster IP"
        return
    reading = read_policy(service)
    yield f"  asks: {reading.source or 'nothing'}"
    yield from (f"  note: {complaint.sentence}" for complaint in reading.complaints)
    for family, targets, rules in explain(service, slices, node, families, limits):
        yield from _port_lines(family, targets, rules)


def _port_lines(family: Family, targets: PortTargets, rules: PortRules) -> Iterator[str]:
    yield f"{rules.name} {family.name}: {targets.reason.sentence}"
    if targets.decision:
        yield from (f"  decided: {reason.sentence}" for reason in targets.decision.reasons)
    if targets.reason.remedy:
        yield f"  to change it: {targets.reason.remedy}"
    yield f"  {rules.cluster_ip}:{rules.port} {_action(rules.internal)}"
    for address in (*rules.external_ips, *rules.balancer_ips):
        yield f"  {address}:{rules.port} {_action(rules.external)}"
    if rules.node_port:
        yield f"  node port {rules.node_port} {_action(rules.external)}"
    if rules.source_ranges:
        yield f"  load balancer addresses only from {', '.join(rules.source_ranges)}"
    if rules.affinity_seconds:
        yield f"  clients keep their endpoint for {rules.affinity_seconds} s"
    yield from _share_lines("cluster", rules.cluster)
    yield from _share_lines("this node", rules.local)
    yield from (f"  left out: {line}" for line in rules.left_out)
    yield from _table_lines(family, rules)


def _action(scope: Scope | PortRefusal) -> str:
    match scope:
        case Scope.CLUSTER:
            return "goes to the endpoints below"
        case Scope.LOCAL:
            return "goes to endpoints on this node"
        case PortRefusal.REJECT:
            return "is refused at once: no endpoint"
        case PortRefusal.DROP:
            return "is dropped: no endpoint on this node, but on others"


def _share_lines(scope: str, slots: tuple[EndpointTarget, ...]) -> Iterator[str]:
    for target, count in Counter(slots).items():
        yield f"  {scope}: {target} gets {count}/{len(slots)}"


def _table_lines(family: Family, rules: PortRules) -> Iterator[str]:
    fragment = PortElements()
    ElementWriter(family, LayoutOptions()).write(rules, fragment)
    key = frontend_key(family.pack(rules.cluster_ip), rules.protocol, rules.port)
    for name, elements in fragment.elements.items():
        if elements:
            element = elements.get(key)
            chain = f", {rules.cluster_ip} leads to {getattr(element, 'chain', '') or 'drop'}" if element else ""
            yield f"  nftables: {len(elements)} in {name}{chain}"
    chains = sorted({*fragment.shared_chains, *fragment.chains})
    if chains:
        yield f"  nftables: chains {', '.join(chains)}"
