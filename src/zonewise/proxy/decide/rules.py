"""Routing rules of one Service port in one address family, as plain values, before they become nftables. Pure.

As in kube-proxy's nftables mode, traffic to an address is served, rejected or dropped. `desired_rules` turns a Service,
its targets and the previous rules into new ones; `ruleset` turns these into elements and chains.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address, ip_network
from typing import Any, Final, NamedTuple

import msgspec

from zonewise.api.names import HEADLESS_LABEL, PROXY_NAME, PROXY_NAME_LABEL
from zonewise.objects import Service, ServicePort
from zonewise.proxy.decide.shares import assign_slots, count_slots
from zonewise.proxy.decide.targets import EndpointTarget, PortTargets
from zonewise.proxy.wire.family import Family, Protocol

_MAX_TARGETS: Final = 1 << 16


class PortName(NamedTuple):
    namespace: str
    service: str
    port: str
    protocol: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.service}:{self.port or '(unnamed)'}/{self.protocol}"


class Scope(StrEnum):
    """The targets that serve a kind of traffic."""

    CLUSTER = "cluster"
    LOCAL = "local"


class PortRefusal(StrEnum):
    REJECT = "reject"
    DROP = "drop"


class AddressLimits(NamedTuple):
    """Which addresses outside the cluster a Service may claim.

    `service_ranges`: the cluster's own. An external IP among them would take the traffic of another Service's cluster IP
    (CVE-2020-8554), also where another proxy serves that one.
    `pod_ranges`: those of all nodes, sorted and without overlaps. An external IP among them would take the traffic to
    another's pod. Addresses of load balancers may be among them: controllers choose those.
    `no_external_ips`: why no externalIPs are served; empty if they are.
    """

    no_external_ips: str = ""
    service_ranges: tuple[IPv4Network | IPv6Network, ...] = ()
    pod_ranges: tuple[IPv4Network | IPv6Network, ...] = ()

    def reserved(self, address: str) -> bool:
        return any(ip_address(address) in network for network in self.service_ranges)

    def of_pods(self, address: str) -> bool:
        """By bisection: a large cluster with gaps between its nodes has thousands of ranges."""
        parsed = ip_address(address)
        position: tuple[int, int] = parsed.version, int(parsed)
        following = bisect_right(self.pod_ranges, position, key=_start)
        return following > 0 and parsed in self.pod_ranges[following - 1]


def _start(network: IPv4Network | IPv6Network) -> tuple[int, int]:
    return network.version, int(network.network_address)


NO_LIMITS: Final = AddressLimits()


def address_limits(
    service_ranges: Iterable[str],
    pod_ranges: tuple[str, ...] = (),
    *,
    all_services: bool = False,
    ignore_external_ips: bool = False,
) -> AddressLimits:
    """A proxy of some Services does not see the cluster IPs of the others: without the ranges it serves no externalIPs,
    which authors of Services choose. Load balancer addresses are chosen by controllers, and stay.
    """
    networks = tuple(ip_network(text, strict=False) for text in service_ranges)
    if ignore_external_ips:
        return AddressLimits("this proxy ignores externalIPs", networks)
    if not networks and not all_services:
        return AddressLimits("the cluster's service ranges are unknown; set --service-cidr")
    return AddressLimits(service_ranges=networks, pod_ranges=_merged(pod_ranges))


@lru_cache(maxsize=1)
def _merged(ranges: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    """A large cluster has thousands, of neighbouring addresses. A range that is none belongs to no pod."""
    networks: dict[int, list[Any]] = {4: [], 6: []}
    for text in ranges:
        with suppress(ValueError):
            network = ip_network(text, strict=False)
            networks[network.version].append(network)
    return tuple(network for of_version in networks.values() for network in collapse_addresses(of_version))


class PortRules(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`cluster` and `local` are slots: a target appears in proportion to its share, and slots are chosen evenly.

    `internal` applies to traffic to the cluster IP, `external` to traffic from outside to any other address; pods and
    processes of this node reach those addresses as the rest of the cluster does. `flows` are, for UDP, the targets
    that established flows may keep. `created`: since when the Service exists.
    """

    name: PortName
    protocol: Protocol
    port: int
    cluster_ip: str
    internal: Scope | PortRefusal
    external: Scope | PortRefusal
    external_policy_local: bool = False
    cluster: tuple[EndpointTarget, ...] = ()
    local: tuple[EndpointTarget, ...] = ()
    hairpin: tuple[EndpointTarget, ...] = ()
    external_ips: tuple[str, ...] = ()
    balancer_ips: tuple[str, ...] = ()
    source_ranges: tuple[str, ...] = ()
    node_port: int = 0
    affinity_seconds: int = 0
    flows: frozenset[EndpointTarget] | None = None
    left_out: tuple[str, ...] = ()
    created: str = ""


def is_served(service: Service, *, all_services: bool) -> bool:
    """Whether this proxy handles the Service."""
    spec = service.spec
    if spec.type == "ExternalName" or spec.cluster_ip in {"", "None"} or HEADLESS_LABEL in service.metadata.labels:
        return False
    proxy = service.metadata.labels.get(PROXY_NAME_LABEL)
    return proxy == PROXY_NAME or (all_services and proxy is None)


def desired_rules(
    service: Service,
    port: ServicePort,
    targets: PortTargets,
    family: Family,
    previous: PortRules | None = None,
    *,
    flows: frozenset[EndpointTarget] | None = None,
    limits: AddressLimits = NO_LIMITS,
) -> PortRules | None:
    """None if the Service has no cluster IP of the family, or the port's protocol is not supported."""
    cluster_ip = cluster_ip_of(service, family)
    if not cluster_ip or port.protocol not in Protocol.__members__:
        return None
    external_local = service.spec.external_traffic_policy == "Local" and _has_external_traffic(service)
    internal_local = service.spec.internal_traffic_policy == "Local"
    external_ips, balancer_ips, barred = _external_addresses(service, family, limits)
    has_colon = family.address_bytes == 16
    foreign = {target for target in (*targets.cluster, *targets.local) if (":" in target[0]) is not has_colon}
    cluster, local = targets.cluster, targets.local
    if foreign:
        cluster = {target: share for target, share in cluster.items() if target not in foreign}
        local = tuple(target for target in local if target not in foreign)
    ranges, invalid_ranges = _source_ranges(service, family)
    return PortRules(
        name=PortName(service.metadata.namespace, service.metadata.name, port.name, port.protocol),
        protocol=Protocol[port.protocol],
        port=port.port,
        cluster_ip=family.canonical(cluster_ip),
        internal=_verdict(targets.has_any, local_only=internal_local, cluster=bool(cluster), local=bool(local)),
        external=_verdict(targets.has_any, local_only=external_local, cluster=bool(cluster), local=bool(local)),
        external_policy_local=external_local,
        cluster=assign_slots(count_slots(cluster), previous.cluster if previous else ())[:_MAX_TARGETS],
        local=assign_slots(dict.fromkeys(local, 1), previous.local if previous else ())[:_MAX_TARGETS],
        hairpin=tuple(sorted(targets.on_node & {*cluster, *local})) if targets.on_node else (),
        external_ips=external_ips,
        balancer_ips=balancer_ips,
        source_ranges=ranges,
        node_port=port.node_port,
        affinity_seconds=_affinity_seconds(service),
        flows=None if flows is None else frozenset(_canonical(flows, family)),
        left_out=(*barred, *invalid_ranges, *_of_other_family(foreign, family), *_too_many(cluster)),
        created=service.metadata.creation_timestamp or "",
    )


def cluster_ip_of(service: Service, family: Family) -> str:
    """Empty if the Service has none of the family."""
    for address in service.spec.cluster_ips or (service.spec.cluster_ip,):
        if address and family.owns(address):
            return address
    return ""


def _verdict(has_any: bool, *, local_only: bool, cluster: bool, local: bool) -> Scope | PortRefusal:
    """Reject without any endpoint, so that clients fail at once. Drop if other nodes have one: they may serve."""
    if local_only:
        return Scope.LOCAL if local else (PortRefusal.DROP if has_any else PortRefusal.REJECT)
    return Scope.CLUSTER if cluster else PortRefusal.REJECT


def _has_external_traffic(service: Service) -> bool:
    spec = service.spec
    return spec.type in {"LoadBalancer", "NodePort"} or bool(spec.external_ips)


def _external_addresses(
    service: Service, family: Family, limits: AddressLimits
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """External IPs, load balancer addresses, and a line for each address that the limits bar."""
    if service.spec.type != "LoadBalancer" and not service.spec.external_ips:
        return (), (), ()
    external = dict.fromkeys(_of_family(family, service.spec.external_ips))
    ingress = (entry.ip for entry in service.status.load_balancer.ingress if entry.ip_mode == "VIP")
    balancers = dict.fromkeys(_of_family(family, ingress)) if service.spec.type == "LoadBalancer" else {}
    barred = dict.fromkeys(external, limits.no_external_ips) if limits.no_external_ips else {}
    reserved = (address for address in (*external, *balancers) if limits.reserved(address))
    barred |= dict.fromkeys(reserved, "it is within the cluster's service ranges")
    of_pods = (address for address in external if limits.of_pods(address))
    barred |= dict.fromkeys(of_pods, "it is within the cluster's pod ranges")
    return (
        tuple(address for address in external if address not in barred),
        tuple(address for address in balancers if address not in external and address not in barred),
        tuple(f"external address {address} is not served: {why}" for address, why in barred.items()),
    )


def _of_family(family: Family, addresses: Iterable[str]) -> Iterable[str]:
    return (family.canonical(address) for address in addresses if address and family.owns(address))


def _source_ranges(service: Service, family: Family) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The ranges of the family in canonical form, and a line for each that is not a network."""
    if not service.spec.load_balancer_source_ranges:
        return (), ()
    valid, invalid = [], []
    for text in service.spec.load_balancer_source_ranges:
        if not family.owns(text):
            continue
        try:
            valid.append(family.canonical_network(text.strip()))
        except ValueError:
            invalid.append(f"loadBalancerSourceRanges: {text!r} is not a network and is ignored")
    return tuple(dict.fromkeys(valid)), tuple(invalid)


def _affinity_seconds(service: Service) -> int:
    if service.spec.session_affinity != "ClientIP":
        return 0
    return service.spec.session_affinity_config.client_ip.timeout_seconds


def _canonical(targets: Iterable[EndpointTarget], family: Family) -> Iterable[EndpointTarget]:
    return (EndpointTarget(family.canonical(address), port) for address, port in targets if family.owns(address))


def _too_many(targets: Mapping[EndpointTarget, float]) -> tuple[str, ...]:
    if len(targets) <= _MAX_TARGETS:
        return ()
    return (f"{len(targets) - _MAX_TARGETS} of {len(targets)} endpoints get no traffic: the maximum is {_MAX_TARGETS}",)


def _of_other_family(foreign: set[EndpointTarget], family: Family) -> tuple[str, ...]:
    if not foreign:
        return ()
    return (f"{len(foreign)} endpoints have no {family.name} address, such as {min(foreign)}",)
