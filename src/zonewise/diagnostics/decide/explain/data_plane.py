"""What the clients of one node really get from a Service's slices, by whoever carries its traffic there. Pure.

Three carry it: the Zonewise proxy (Services that are labelled for it), a stock kube-proxy (the others), and DNS, ours or
a stock one (headless Services, whose clients choose by themselves). Each is asked by its own functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec

from zonewise.api.names import CONSUMER, CONSUMER_ALL, CONSUMER_SHARED, PROXY_NAME_LABEL
from zonewise.dns.decide.client_groups import decisions
from zonewise.dns.decide.zone import ready_by_family
from zonewise.objects import EndpointSlice, Node, Service, ServicePort
from zonewise.planning.data_plane import DataPlane
from zonewise.proxy.decide.targets import NodePlace, find_targets, is_stranded
from zonewise.routing import ClientChoice, Decision, RoutingCode, RoutingNodes, RoutingReason, choose, drained_zones
from zonewise.routing.kube_proxy import LATEST_MINOR, stock_choice, traffic_policies

T = TypeVar("T", Service, EndpointSlice)

_MINOR: Final = re.compile(r"v?1\.(\d+)")


@dataclass(frozen=True, slots=True)
class EndpointsForClient:
    """Addresses and their weights, why, and the decision behind it where the carrier made one itself."""

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


def given(scene: DataPlaneView, front: ServiceFrontend, node: Node, carrier: DataPlane) -> EndpointsForClient:
    match carrier:
        case DataPlane.ZONEWISE_PROXY | DataPlane.OTHER:
            return _by_our_proxy(scene, front, node)
        case DataPlane.DNS:
            return _by_dns(scene, front, node)
        case DataPlane.STOCK_DNS:
            return by_stock_dns(scene, front)
        case _:
            return by_kube_proxy(scene, front, node)


def _by_our_proxy(scene: DataPlaneView, front: ServiceFrontend, node: Node) -> EndpointsForClient:
    place = NodePlace(node.metadata.name, scene.cluster, scene.namespaces)
    slices = _watched(scene, place.zone)
    found = find_targets(scene.service, front.port, slices, place, front.family)
    local = scene.service.spec.internal_traffic_policy == "Local"
    shares = dict.fromkeys(found.local, 1.0) if local else found.cluster
    choice = choose(found.decision, scene.cluster, node.metadata.name) if found.decision else None
    by_address = {target.address: share for target, share in shares.items()}
    return EndpointsForClient(by_address, _local(by_address) if local else found.reason, found.decision, choice)


def _watched(scene: DataPlaneView, zone: str) -> Sequence[EndpointSlice]:
    """A node's proxy hears of groups for other zones only where it would have no endpoint at all."""
    if not zone or is_stranded(scene.service, scene.slices, zone):
        return scene.slices
    ours = {CONSUMER_ALL, CONSUMER_SHARED, zone}
    return [found for found in scene.slices if found.metadata.labels.get(CONSUMER, CONSUMER_ALL) in ours]


def by_kube_proxy(scene: DataPlaneView, front: ServiceFrontend, node: Node) -> EndpointsForClient:
    """As if no other proxy were named: what is compared is what comes of the slices."""
    service = _unlabelled(scene.service)
    choice = stock_choice(
        service,
        front.port,
        [_unlabelled(found) for found in scene.slices],
        node,
        family=front.family,
        minor=minor_of(node),
    )
    local = service.spec.internal_traffic_policy == "Local"
    shares = {_address(written): 1.0 for written in (choice.local if local else choice.cluster)}
    reason = choice.reason
    if local and traffic_policies(service, front.port, front.family).uses_cluster:
        reason = _local(shares)
    return EndpointsForClient(shares, reason)


def _local(shares: Mapping[str, float]) -> RoutingReason:
    sentence = f"internalTrafficPolicy Local leaves the {len(shares)} endpoints on the client's node"
    remedy = "" if shares else "run an endpoint on the node, or set internalTrafficPolicy to Cluster"
    return RoutingReason(RoutingCode.PROXY_LOCAL_ONLY, sentence, {"chosen": len(shares)}, remedy=remedy)


def _by_dns(scene: DataPlaneView, front: ServiceFrontend, node: Node) -> EndpointsForClient:
    """As the Zonewise DNS server answers; a stock one gives every ready endpoint to everybody."""
    said = scene.namespaces.get(scene.service.metadata.namespace, {})
    drain = drained_zones(scene.service, said, scene.cluster.node_drains)
    slices = [found for found in scene.slices if found.address_type == front.family]
    made = decisions(scene.service, ready_by_family(slices), scene.cluster, drain)
    if not made:
        return EndpointsForClient(
            {},
            RoutingReason(RoutingCode.NO_ENDPOINTS, "no endpoint is ready", remedy="make a pod of the Service ready"),
        )
    choice = choose(made[0], scene.cluster, node.metadata.name)
    return EndpointsForClient(choice.shares, choice.reason, made[0], choice)


def by_stock_dns(scene: DataPlaneView, front: ServiceFrontend) -> EndpointsForClient:
    slices = [found for found in scene.slices if found.address_type == front.family]
    ready = [endpoint.addresses[0] for found in ready_by_family(slices) for endpoint in found if endpoint.addresses]
    sentence = f"stock DNS answers with all {len(ready)} ready endpoints, whoever asks"
    return EndpointsForClient(
        dict.fromkeys(ready, 1.0), RoutingReason(RoutingCode.BALANCED, sentence, {"ready": len(ready)})
    )


def tells_version(node: Node) -> bool:
    return _MINOR.match(node.status.node_info.kubelet_version) is not None


def minor_of(node: Node) -> int:
    """Of the node's Kubernetes; the latest where it does not say."""
    found = _MINOR.match(node.status.node_info.kubelet_version)
    return min(int(found[1]), LATEST_MINOR) if found else LATEST_MINOR


def _unlabelled(viewed: T) -> T:
    labels = viewed.metadata.labels
    if PROXY_NAME_LABEL not in labels:
        return viewed
    kept = {key: value for key, value in labels.items() if key != PROXY_NAME_LABEL}
    return msgspec.structs.replace(viewed, metadata=msgspec.structs.replace(viewed.metadata, labels=kept))


def _address(written: str) -> str:
    return written.rpartition(":")[0].strip("[]")
