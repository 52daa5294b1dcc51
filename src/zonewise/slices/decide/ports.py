"""The ports of an endpoint: those of its Service, found in its pod where the Service names them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from zonewise.objects import ContainerPort, EndpointPort, Pod, Service, ServicePort

Ports = tuple[EndpointPort, ...]


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
