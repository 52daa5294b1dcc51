"""Endpoints as a Service's pods make them, before routing has its say. Pure."""

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
    said: EndpointConditions(ready=said[0], serving=said[1], terminating=said[2])
    for said in product((False, True), repeat=3)
}

Ports = tuple[EndpointPort, ...]
ByPorts = dict[Ports, list[Endpoint]]


@dataclass(frozen=True, slots=True)
class PodEndpoints:
    """`without_node` are the pods left out because nobody knows their node (any more)."""

    by_family: Mapping[ServiceFamily, ByPorts]
    without_node: tuple[str, ...]


def endpoints_of(
    service: Service, pods: Iterable[Pod], cluster: RoutingNodes, families: Iterable[ServiceFamily]
) -> PodEndpoints:
    found: dict[ServiceFamily, list[tuple[Ports, Endpoint]]] = {family: [] for family in families}
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
            if family in found:
                found[family].append((ports, _endpoint(pod, service, addresses, zones.get(node_name))))
    by_family = {family: _by_ports(endpoints) for family, endpoints in found.items()}
    return PodEndpoints(by_family, tuple(sorted(without_node)))


def _by_ports(found: Iterable[tuple[Ports, Endpoint]]) -> ByPorts:
    """Pods that share an answer about their ports follow each other, and hashing it for each of them would cost."""
    by_ports: ByPorts = {}
    last: Ports | None = None
    together: list[Endpoint] = []
    for ports, endpoint in found:
        if ports is not last:
            last, together = ports, by_ports.setdefault(ports, [])
        together.append(endpoint)
    return by_ports


def _belongs(pod: Pod) -> bool:
    status = pod.status
    return status.phase not in _ENDED and bool(status.pod_ips or status.pod_ip)


def _addresses(ips: tuple[PodIP, ...]) -> Iterable[tuple[ServiceFamily, tuple[str, ...]]]:
    if len(ips) == 1:
        known = canonical(ips[0].ip)
        return ((known[0], (known[1],)),) if known else ()
    by_family: dict[ServiceFamily, list[str]] = {}
    for ip in ips:
        if known := canonical(ip.ip):
            by_family.setdefault(known[0], []).append(known[1])
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
    """A pod has a DNS name of its own under the headless Service that it names as its subdomain."""
    return pod.spec.subdomain == service.metadata.name and pod.metadata.namespace == service.metadata.namespace


def port_resolver(service: Service) -> Callable[[Pod], Ports]:
    """Pods differ only where the Service names a port, so all others share one answer."""
    wanted = service.spec.ports
    if any(isinstance(port.target_port, str) for port in wanted):
        return lambda pod: _resolved(wanted, pod)
    same_for_all = _resolved(wanted, Pod())
    return lambda _pod: same_for_all


def _resolved(wanted: Iterable[ServicePort], pod: Pod) -> Ports:
    """A named port that the pod does not have is left out."""
    return tuple(
        EndpointPort(name=port.name, protocol=port.protocol, port=number, app_protocol=port.app_protocol)
        for port in wanted
        if (number := _number(port, pod)) is not None
    )


def _number(port: ServicePort, pod: Pod) -> int | None:
    if isinstance(port.target_port, int):
        return port.target_port
    return next(
        (
            found.container_port
            for found in _ports_of(pod)
            if found.name == port.target_port and found.protocol == port.protocol
        ),
        None,
    )


def _ports_of(pod: Pod) -> Iterator[ContainerPort]:
    """Containers first, then sidecars."""
    for container in pod.spec.containers:
        yield from container.ports
    for container in pod.spec.init_containers:
        if container.restart_policy == "Always":
            yield from container.ports
