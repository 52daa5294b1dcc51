"""Endpoints built from the pods of a Service, before routing adds hints: addresses, conditions, zone and ports."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Final

from zonewise.objects import (
    ContainerPort,
    Endpoint,
    EndpointConditions,
    EndpointPort,
    ObjectReference,
    Pod,
    PodIP,
    Service,
    ServicePort,
)
from zonewise.routing import RoutingNodes
from zonewise.slices.decide.families import ServiceFamily, canonical
from zonewise.topology import ZONE

_ENDED: Final = ("Succeeded", "Failed")

_CONDITIONS: Final = {
    flags: EndpointConditions(ready=flags[0], serving=flags[1], terminating=flags[2])
    for flags in product((False, True), repeat=3)
}

Ports = tuple[EndpointPort, ...]
ByPorts = dict[Ports, list[Endpoint]]


@dataclass(frozen=True, slots=True)
class PodEndpoints:
    """`without_node` are the pods left out because their node is unknown or gone."""

    by_family: Mapping[ServiceFamily, ByPorts]
    without_node: tuple[str, ...]


def endpoints_of(
    service: Service, pods: Iterable[Pod], cluster: RoutingNodes, families: Iterable[ServiceFamily]
) -> PodEndpoints:
    endpoints_by_family: dict[ServiceFamily, list[tuple[Ports, Endpoint]]] = {family: [] for family in families}
    without_node: list[str] = []
    ports_of = port_resolver(service)
    zones, nodes = cluster.domains(ZONE), cluster.nodes
    publish = service.spec.publish_not_ready_addresses
    for pod in pods:
        if not _belongs(pod):
            continue
        node_name = pod.spec.node_name
        if node_name not in nodes and not publish:
            without_node.append(pod.metadata.name)
            continue
        ports = ports_of(pod)
        for family, addresses in _addresses(pod.status.pod_ips):
            if family in endpoints_by_family:
                endpoints_by_family[family].append((ports, _endpoint(pod, service, addresses, zones.get(node_name))))
    by_family = {family: _by_ports(endpoints) for family, endpoints in endpoints_by_family.items()}
    return PodEndpoints(by_family, tuple(sorted(without_node)))


def _by_ports(endpoints: Iterable[tuple[Ports, Endpoint]]) -> ByPorts:
    """Compares ports by identity first: pods mostly share one tuple, and hashing it per pod is slow."""
    by_ports: ByPorts = {}
    last: Ports | None = None
    same_ports: list[Endpoint] = []
    for ports, endpoint in endpoints:
        if ports is not last:
            last, same_ports = ports, by_ports.setdefault(ports, [])
        same_ports.append(endpoint)
    return by_ports


def _belongs(pod: Pod) -> bool:
    status = pod.status
    return status.phase not in _ENDED and bool(status.pod_ips or status.pod_ip)


def _addresses(ips: tuple[PodIP, ...]) -> Iterable[tuple[ServiceFamily, tuple[str, ...]]]:
    if len(ips) == 1:
        address = canonical(ips[0].ip)
        return ((address[0], (address[1],)),) if address else ()
    by_family: dict[ServiceFamily, list[str]] = {}
    for ip in ips:
        if address := canonical(ip.ip):
            by_family.setdefault(address[0], []).append(address[1])
    return [(family, tuple(sorted(addresses))) for family, addresses in by_family.items()]


def _endpoint(pod: Pod, service: Service, addresses: tuple[str, ...], zone: str | None) -> Endpoint:
    metadata, spec = pod.metadata, pod.spec
    serving, terminating = _is_ready(pod), metadata.deletion_timestamp is not None
    ready = service.spec.publish_not_ready_addresses or (serving and not terminating)
    return Endpoint(
        addresses=addresses,
        conditions=_CONDITIONS[ready, serving, terminating],
        hostname=spec.hostname if spec.hostname and _answers_for(service, pod) else None,
        node_name=spec.node_name or None,
        zone=zone,
        target_ref=ObjectReference(kind="Pod", namespace=metadata.namespace, name=metadata.name, uid=metadata.uid),
    )


def _is_ready(pod: Pod) -> bool:
    for condition in pod.status.conditions:
        if condition.type == "Ready":
            return condition.status == "True"
    return False


def _answers_for(service: Service, pod: Pod) -> bool:
    """Whether the pod names the Service as its subdomain, which gives it a DNS name under that Service."""
    return pod.spec.subdomain == service.metadata.name and pod.metadata.namespace == service.metadata.namespace


def port_resolver(service: Service) -> Callable[[Pod], Ports]:
    """Resolves the ports of a pod. Only named target ports differ between pods; otherwise all share one tuple."""
    service_ports = service.spec.ports
    if any(isinstance(port.target_port, str) for port in service_ports):
        return lambda pod: _resolved(service_ports, pod)
    shared = _resolved(service_ports, Pod())
    return lambda _pod: shared


def _resolved(service_ports: Iterable[ServicePort], pod: Pod) -> Ports:
    """Leaves out a named port that the pod does not have."""
    return tuple(
        EndpointPort(name=port.name, protocol=port.protocol, port=number, app_protocol=port.app_protocol)
        for port in service_ports
        if (number := _number(port, pod)) is not None
    )


def _number(port: ServicePort, pod: Pod) -> int | None:
    if isinstance(port.target_port, int):
        return port.target_port
    return next(
        (
            container_port.container_port
            for container_port in _ports_of(pod)
            if container_port.name == port.target_port and container_port.protocol == port.protocol
        ),
        None,
    )


def _ports_of(pod: Pod) -> Iterator[ContainerPort]:
    """Ports of containers first, then of sidecars (restartable init containers)."""
    for container in pod.spec.containers:
        yield from container.ports
    for container in pod.spec.init_containers:
        if container.restart_policy == "Always":
            yield from container.ports
