"""The endpoints that a stock kube-proxy on a given node chooses from given slices, and why.

`explain` uses it for nodes that Zonewise does not serve itself. Follows `CategorizeEndpoints` of
`k8s.io/kubernetes/pkg/proxy/topology.go` and the slice cache beside it; where upstream merges slices in random order,
they are sorted by name here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv6Address
from typing import Final

from zonewise.api.names import HEADLESS_LABEL, OLD_HINTS, PROXY_NAME_LABEL, TOPOLOGY_MODE
from zonewise.objects import SERVICE_NAME, Endpoint, EndpointSlice, Node, Service, ServicePort
from zonewise.routing.endpoints import is_draining, is_ready
from zonewise.routing.policy import hints_enabled
from zonewise.routing.reason import NO_ENDPOINT_READY, RoutingCode, RoutingReason, RoutingSubject, only_terminating
from zonewise.topology import ZONE

LATEST_MINOR: Final = 36
FIRST_MINOR_WITH_NODE_HINTS: Final = 34
FIRST_MINOR_THAT_ALWAYS_HEEDS: Final = 31


@dataclass(frozen=True, slots=True)
class ProxyTarget:
    """An endpoint as kube-proxy keeps it: one address and port, the hints as sets."""

    address: str
    local: bool
    ready: bool
    draining: bool
    zone_hints: frozenset[str] = frozenset()
    node_hints: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TrafficPolicies:
    """Which endpoint lists a port of a Service needs."""

    uses_cluster: bool = True
    uses_local: bool = False


_ANYWHERE: Final = TrafficPolicies()


@dataclass(frozen=True, slots=True)
class ProxyChoice:
    """Addresses with ports, sorted. `has_any`: some node can reach an endpoint, even if this one cannot."""

    cluster: tuple[str, ...] = ()
    local: tuple[str, ...] = ()
    reachable: tuple[str, ...] = ()
    has_any: bool = False
    reason: RoutingReason = NO_ENDPOINT_READY


def stock_choice(
    service: Service,
    port: ServicePort,
    slices: Iterable[EndpointSlice],
    client: Node,
    *,
    family: str = "IPv4",
    minor: int = LATEST_MINOR,
) -> ProxyChoice:
    """The endpoints of the Service's port that kube-proxy 1.`minor` on the client's node would use."""
    if reason := _ignored_service(service):
        return ProxyChoice(reason=reason)
    watched = [
        endpoint_slice
        for endpoint_slice in slices
        if endpoint_slice.address_type == family and _is_watched(endpoint_slice, service)
    ]
    targets = merge(watched, port, client.metadata.name)
    zone = client.metadata.labels.get(ZONE, "")
    policies = traffic_policies(service, port, family)
    if _zone_hints_honoured(minor, service.metadata.annotations):
        node_hints = minor >= FIRST_MINOR_WITH_NODE_HINTS
        return categorize(targets if node_hints else _without_node_hints(targets), policies, client.metadata.name, zone)
    choice = categorize(_without_hints(targets), policies, client.metadata.name, zone)
    hinted = any(target.zone_hints for target in targets) and choice.reason.code is RoutingCode.BALANCED
    return replace(choice, reason=_too_old(minor)) if hinted else choice


def categorize(targets: Sequence[ProxyTarget], policies: TrafficPolicies, node: str, zone: str) -> ProxyChoice:
    if not targets:
        return ProxyChoice()
    ready = [target for target in targets if target.ready]
    draining = [target for target in targets if target.draining]
    reason, preferred = _by_hints(ready, node, zone)
    cluster = (preferred or draining) if policies.uses_cluster else []
    local = _local(ready) or _local(draining) if policies.uses_local else []
    merged = {target.address: target for target in (*cluster, *local)}
    return ProxyChoice(
        cluster=_addresses(cluster),
        local=_addresses(local),
        reachable=_addresses(merged.values()),
        has_any=bool(cluster or (policies.uses_local and (ready or draining))),
        reason=_explained(reason, policies, cluster, local, ready),
    )


def merge(slices: Iterable[EndpointSlice], port: ServicePort, node: str) -> list[ProxyTarget]:
    """One target per address and port; of two with the same address, the one that is not terminating wins."""
    targets: dict[str, ProxyTarget] = {}
    for endpoint_slice in sorted(slices, key=lambda endpoint_slice: endpoint_slice.metadata.name):
        for slice_port in endpoint_slice.ports or ():
            if (
                slice_port.name is None
                or slice_port.name != port.name
                or slice_port.protocol != port.protocol
                or not slice_port.port
            ):
                continue
            for endpoint in endpoint_slice.endpoints or ():
                if endpoint.addresses:
                    target = _target(endpoint, slice_port.port, node)
                    if target.address not in targets or not endpoint.conditions.terminating:
                        targets[target.address] = target
    return [targets[address] for address in sorted(targets)]


def traffic_policies(service: Service, port: ServicePort, family: str = "IPv4") -> TrafficPolicies:
    spec = service.spec
    if spec.type == "ClusterIP" and not spec.external_ips and spec.internal_traffic_policy != "Local":
        return _ANYWHERE
    vips = [ingress.ip for ingress in service.status.load_balancer.ingress if ingress.ip_mode == "VIP"]
    outside = bool(port.node_port or any(_family(ip) == family for ip in (*vips, *spec.external_ips) if ip))
    takes_outside = spec.type in {"LoadBalancer", "NodePort"} or (spec.type == "ClusterIP" and bool(spec.external_ips))
    internal_local = spec.internal_traffic_policy == "Local"
    external_local = spec.external_traffic_policy == "Local" and takes_outside
    return TrafficPolicies(
        uses_cluster=not internal_local or outside, uses_local=internal_local or (external_local and outside)
    )


def _ignored_service(service: Service) -> RoutingReason | None:
    name = service.metadata.labels.get(PROXY_NAME_LABEL)
    if name is not None:
        why, remedy = f"it is labelled for the proxy {name!r}", f"remove the label {PROXY_NAME_LABEL}"
    elif service.spec.type == "ExternalName":
        why, remedy = "it is an ExternalName", ""
    elif service.spec.cluster_ip in {"", "None"}:
        why, remedy = "it is headless; DNS answers for it", ""
    else:
        return None
    return RoutingReason(RoutingCode.PROXY_LEAVES_ALONE, f"kube-proxy ignores the Service: {why}", remedy=remedy)


def _is_watched(endpoint_slice: EndpointSlice, service: Service) -> bool:
    labels = endpoint_slice.metadata.labels
    hidden = PROXY_NAME_LABEL in labels or HEADLESS_LABEL in labels
    return (
        not hidden
        and labels.get(SERVICE_NAME) == service.metadata.name
        and endpoint_slice.metadata.namespace == service.metadata.namespace
    )


def _zone_hints_honoured(minor: int, annotations: Mapping[str, str]) -> bool:
    """Since 1.31 always; before that only if annotated, and before 1.24 only behind a feature gate."""
    if minor >= FIRST_MINOR_THAT_ALWAYS_HEEDS:
        return True
    if minor >= 27:
        value = annotations.get(OLD_HINTS, annotations.get(TOPOLOGY_MODE, ""))
        return value not in {"", "disabled", "Disabled"}
    return minor >= 24 and hints_enabled({OLD_HINTS: annotations.get(OLD_HINTS, "")})


def _target(endpoint: Endpoint, port: int, node: str) -> ProxyTarget:
    hints = endpoint.hints
    ip = _canonical_ip(endpoint.addresses[0])
    return ProxyTarget(
        address=f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}",
        local=bool(node) and endpoint.node_name == node,
        ready=is_ready(endpoint),
        draining=is_draining(endpoint),
        zone_hints=frozenset(hint.name for hint in hints.for_zones) if hints else frozenset(),
        node_hints=frozenset(hint.name for hint in hints.for_nodes) if hints else frozenset(),
    )


def _without_hints(targets: Iterable[ProxyTarget]) -> list[ProxyTarget]:
    return [replace(target, zone_hints=frozenset(), node_hints=frozenset()) for target in targets]


def _without_node_hints(targets: Iterable[ProxyTarget]) -> list[ProxyTarget]:
    return [replace(target, node_hints=frozenset()) for target in targets]


def _too_old(minor: int) -> RoutingReason:
    sentence = f"kube-proxy 1.{minor} uses hints only for Services that enable them by annotation"
    remedy = f"annotate the Service with {OLD_HINTS}: Auto, or upgrade to 1.{FIRST_MINOR_THAT_ALWAYS_HEEDS}"
    return RoutingReason(RoutingCode.PROXY_IGNORES_HINTS, sentence, {"minor": minor}, remedy=remedy)


def _by_hints(ready: Sequence[ProxyTarget], node: str, zone: str) -> tuple[RoutingReason, list[ProxyTarget]]:
    """The ready targets that hints select for this node, and why; partial hints count as none."""
    for_node = [target for target in ready if node in target.node_hints]
    if for_node and all(target.node_hints for target in ready):
        return _hinted(RoutingCode.PROXY_SAME_NODE, for_node, ready, f"node {node}"), for_node
    for_zone = [target for target in ready if zone in target.zone_hints]
    unhinted = [target for target in ready if not target.zone_hints]
    if for_zone and not unhinted:
        return _hinted(RoutingCode.PROXY_SAME_ZONE, for_zone, ready, f"zone {zone}"), for_zone
    return _ignored(ready, unhinted, node, zone), list(ready)


def _hinted(
    code: RoutingCode, chosen: Sequence[ProxyTarget], ready: Sequence[ProxyTarget], where: str
) -> RoutingReason:
    facts = {"chosen": len(chosen), "ready": len(ready)}
    return RoutingReason(code, f"{len(chosen)} of {len(ready)} ready endpoints are hinted for {where}", facts)


def _ignored(ready: Sequence[ProxyTarget], unhinted: Sequence[ProxyTarget], node: str, zone: str) -> RoutingReason:
    facts = {"ready": len(ready), "without_hint": len(unhinted)}
    every = f"so kube-proxy uses all {len(ready)}"
    if len(unhinted) == len(ready):
        return RoutingReason(RoutingCode.BALANCED, f"no ready endpoint has a zone hint, {every}", facts)
    if unhinted:
        sentence = f"{len(unhinted)} of {len(ready)} ready endpoints have no zone hint, {every}"
        blame = tuple(RoutingSubject("Endpoint", target.address) for target in unhinted)
        return RoutingReason(RoutingCode.MISSING_HINTS, sentence, facts, blame, "hint every ready endpoint")
    if not zone:
        sentence = f"node {node} has no label {ZONE}, {every}"
        return RoutingReason(
            RoutingCode.NODE_WITHOUT_ZONE,
            sentence,
            facts,
            (RoutingSubject("Node", node),),
            f"label node {node} with {ZONE}",
        )
    sentence = f"no endpoint is hinted for zone {zone}, {every}"
    return RoutingReason(
        RoutingCode.ZONE_NOT_HINTED,
        sentence,
        facts,
        (RoutingSubject("Zone", zone),),
        f"hint an endpoint for zone {zone}",
    )


def _explained(
    by_hints: RoutingReason,
    policies: TrafficPolicies,
    cluster: Sequence[ProxyTarget],
    local: Sequence[ProxyTarget],
    ready: Sequence[ProxyTarget],
) -> RoutingReason:
    if not policies.uses_cluster:
        facts = {"chosen": len(local), "ready": len(ready)}
        sentence = f"traffic policy Local leaves the {len(local)} endpoints on this node"
        return RoutingReason(
            RoutingCode.PROXY_LOCAL_ONLY, sentence, facts, remedy="" if local else "run an endpoint on this node"
        )
    if ready:
        return by_hints
    if not cluster:
        return NO_ENDPOINT_READY
    return only_terminating(len(cluster), "used", {"chosen": len(cluster), "ready": 0})


def _local(targets: Iterable[ProxyTarget]) -> list[ProxyTarget]:
    return [target for target in targets if target.local]


def _addresses(targets: Iterable[ProxyTarget]) -> tuple[str, ...]:
    return tuple(sorted(target.address for target in targets))


def _canonical_ip(address: str) -> str:
    """As Go's ParseIPSloppy prints it: octets may have leading zeros, IPv4 in IPv6 is IPv4."""
    try:
        if ":" not in address:
            return ".".join(str(int(octet)) for octet in address.split("."))
        ip = IPv6Address(address)
    except ValueError:
        return address  # from a file: an API server rejects it
    return str(ip.ipv4_mapped or ip)


def _family(address: str) -> str:
    return "IPv6" if ":" in _canonical_ip(address) else "IPv4"
