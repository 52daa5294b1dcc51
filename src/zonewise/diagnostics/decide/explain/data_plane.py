"""The endpoints that clients on a node get from a Service's present slices, by data plane. Pure.

The data planes are the Zonewise proxy (Services labelled for it), a stock kube-proxy (other Services), and DNS, ours or a
stock one (headless Services, whose clients choose an address). Each is modelled by its own functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from zonewise.api.names import CONSUMER, CONSUMER_ALL, CONSUMER_SHARED, PROXY_NAME_LABEL
from zonewise.dns.decide.client_groups import decisions, ready_endpoints
from zonewise.objects import EndpointSlice, Node, Service, ServicePort
from zonewise.planning.data_plane import DataPlane
from zonewise.proxy.decide.targets import NodeLocation, find_targets, is_stranded
from zonewise.routing import ClientChoice, Decision, RoutingCode, RoutingNodes, RoutingReason, choose, drained_zones
from zonewise.routing.kube_proxy import LATEST_MINOR, stock_choice, traffic_policies

T = TypeVar("T", Service, EndpointSlice)

_MINOR: Final = re.compile(r"v?1\.(\d+)")


@dataclass(frozen=True, slots=True)
class EndpointsForClient:
    """Addresses with weights, the reason, and the decision if the data plane made one itself."""

    shares: Mapping[str, float]
    reason: RoutingReason
    decision: Decision | None = None
    choice: ClientChoice | None = None


@dataclass(frozen=True, slots=True)
class ServiceFrontend:
    """One port of a Service in one address family."""

    port: ServicePort
    family: str

    def __str__(self) -> str:
        return f"{self.port.name or self.port.port}/{self.port.protocol}"


@dataclass(frozen=True, slots=True)
class DataPlaneView:
    """A Service, its slices, and the cluster around it."""

    service: Service
    slices: Sequence[EndpointSlice]
    cluster: RoutingNodes = field(repr=False)
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)


def endpoints_for(view: DataPlaneView, front: ServiceFrontend, node: Node, data_plane: DataPlane) -> EndpointsForClient:
    match data_plane:
        case DataPlane.ZONEWISE_PROXY | DataPlane.OTHER:
            return _by_our_proxy(view, front, node)
        case DataPlane.DNS:
            return _by_dns(view, front, node)
        case DataPlane.STOCK_DNS:
            return stock_dns_endpoints(view, front)
        case _:
            return kube_proxy_endpoints(view, front, node)


def _by_our_proxy(view: DataPlaneView, front: ServiceFrontend, node: Node) -> EndpointsForClient:
    location = NodeLocation(node.metadata.name, view.cluster, view.namespaces)
    slices = _watched(view, location.zone)
    targets = find_targets(view.service, front.port, slices, location, front.family)
    local = view.service.spec.internal_traffic_policy == "Local"
    shares = dict.fromkeys(targets.local, 1.0) if local else targets.cluster
    choice = choose(targets.decision, view.cluster, node.metadata.name) if targets.decision else None
    by_address = {target.address: share for target, share in shares.items()}
    return EndpointsForClient(
        by_address, _local_reason(by_address) if local else targets.reason, targets.decision, choice
    )


def _watched(view: DataPlaneView, zone: str) -> Sequence[EndpointSlice]:
    """A node's proxy watches groups of other zones only if it would have no endpoint otherwise."""
    if not zone or is_stranded(view.service, view.slices, zone):
        return view.slices
    ours = {CONSUMER_ALL, CONSUMER_SHARED, zone}
    return [slice_ for slice_ in view.slices if slice_.metadata.labels.get(CONSUMER, CONSUMER_ALL) in ours]


def kube_proxy_endpoints(view: DataPlaneView, front: ServiceFrontend, node: Node) -> EndpointsForClient:
    """Ignores labels for another proxy: the comparison is about the slices."""
    service = _unlabelled(view.service)
    choice = stock_choice(
        service,
        front.port,
        [_unlabelled(slice_) for slice_ in view.slices],
        node,
        family=front.family,
        minor=kubelet_minor(node),
    )
    local = service.spec.internal_traffic_policy == "Local"
    shares = {_address(target): 1.0 for target in (choice.local if local else choice.cluster)}
    reason = choice.reason
    if local and traffic_policies(service, front.port, front.family).uses_cluster:
        reason = _local_reason(shares)
    return EndpointsForClient(shares, reason)


def _local_reason(shares: Mapping[str, float]) -> RoutingReason:
    sentence = f"internalTrafficPolicy Local leaves the {len(shares)} endpoints on the client's node"
    remedy = "" if shares else "run an endpoint on the node, or set internalTrafficPolicy to Cluster"
    return RoutingReason(RoutingCode.PROXY_LOCAL_ONLY, sentence, {"chosen": len(shares)}, remedy=remedy)


def _by_dns(view: DataPlaneView, front: ServiceFrontend, node: Node) -> EndpointsForClient:
    """As the Zonewise DNS server answers."""
    annotations = view.namespaces.get(view.service.metadata.namespace, {})
    drain = drained_zones(view.service, annotations, view.cluster.node_drains)
    slices = [slice_ for slice_ in view.slices if slice_.address_type == front.family]
    family_decisions = decisions(view.service, slices, view.cluster, drain)
    if not family_decisions:
        return EndpointsForClient(
            {},
            RoutingReason(RoutingCode.NO_ENDPOINTS, "no endpoint is ready", remedy="make a pod of the Service ready"),
        )
    choice = choose(family_decisions[0], view.cluster, node.metadata.name)
    return EndpointsForClient(choice.shares, choice.reason, family_decisions[0], choice)


def stock_dns_endpoints(view: DataPlaneView, front: ServiceFrontend) -> EndpointsForClient:
    slices = [slice_ for slice_ in view.slices if slice_.address_type == front.family]
    ready = [endpoint.addresses[0] for endpoint in ready_endpoints(slices) if endpoint.addresses]
    sentence = f"stock DNS answers with all {len(ready)} ready endpoints to every client"
    return EndpointsForClient(
        dict.fromkeys(ready, 1.0), RoutingReason(RoutingCode.BALANCED, sentence, {"ready": len(ready)})
    )


def has_version(node: Node) -> bool:
    return _MINOR.match(node.status.node_info.kubelet_version) is not None


def kubelet_minor(node: Node) -> int:
    """Minor version of Kubernetes on the node; the latest if it reports none."""
    match = _MINOR.match(node.status.node_info.kubelet_version)
    return min(int(match[1]), LATEST_MINOR) if match else LATEST_MINOR


def _unlabelled(item: T) -> T:
    labels = item.metadata.labels
    if PROXY_NAME_LABEL not in labels:
        return item
    kept = {key: value for key, value in labels.items() if key != PROXY_NAME_LABEL}
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, labels=kept))


def _address(target: str) -> str:
    return target.rpartition(":")[0].strip("[]")
