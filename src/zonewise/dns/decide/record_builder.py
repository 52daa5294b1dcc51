"""Builds the DNS records of a Service from its objects: addresses, endpoints, and the endpoints of each node group.

`zonewise.routing` decides which clients get which endpoints of a headless Service (see `client_groups`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import NamedTuple, TypeVar

from zonewise.dns.decide.client_groups import ClientGroupView
from zonewise.dns.decide.service_records import NO_PORT, PORTLESS, EndpointRecord, Port, ServiceRecords, host_label
from zonewise.dns.wire.names import LONGEST_LABEL, LONGEST_NAME, WrongNameError, below, dashed, packed, to_wire
from zonewise.dns.wire.records import SrvTarget
from zonewise.objects import Endpoint, EndpointSlice, Key, Service
from zonewise.routing.endpoints import is_ready

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ClusterDomain:
    """The cluster's domain, and options of all its records."""

    wire: bytes
    ttl: int = 5
    name_endpoints_by_pod: bool = False

    @property
    def services(self) -> bytes:
        return b"\x03svc" + self.wire


class EndpointAddress(NamedTuple):
    """One address of one ready endpoint, with the ports of its slice. `key` identifies the endpoint in routing.

    `host` is its label, empty if that follows from the address.
    """

    address: bytes
    host: str
    ports: tuple[Port, ...]
    zone: str
    key: str


def is_headless(service: Service) -> bool:
    return (service.spec.cluster_ips or (service.spec.cluster_ip,))[0] == "None"


def service_name(key: Key, domain: ClusterDomain) -> bytes | None:
    """None if it is too long for DNS."""
    return below(domain.services, key.name, key.namespace)


def ready_addresses(slices: Iterable[EndpointSlice], domain: ClusterDomain) -> list[EndpointAddress]:
    """Sorted, so that the same cluster gives the same bytes whatever the order of events."""
    with_addresses = (slice_ for slice_ in slices if slice_.address_type != "FQDN")
    return sorted(address for slice_ in with_addresses for address in _slice_addresses(slice_, domain))


class FqdnEndpoint(NamedTuple):
    """A ready endpoint of a slice of type FQDN: a name instead of an address."""

    host: str
    target: bytes
    ports: tuple[Port, ...]
    zone: str


def fqdn_endpoints(slices: Iterable[EndpointSlice], domain: ClusterDomain) -> list[FqdnEndpoint]:
    with_names = (slice_ for slice_ in slices if slice_.address_type == "FQDN")
    return sorted(
        FqdnEndpoint(_host(endpoint, address, domain) or dashed(address), target, _ports(slice_), endpoint.zone or "")
        for slice_ in with_names
        for endpoint in slice_.endpoints or ()
        for address in endpoint.addresses
        if is_ready(endpoint) and (target := _target(address))
    )


def fqdn_records(endpoints: Sequence[FqdnEndpoint]) -> ServiceRecords:
    """For a headless Service without endpoints that have addresses: its names are aliases, as in CoreDNS."""
    ports = _numbered(endpoint.ports for endpoint in endpoints)
    aliases = tuple(
        (endpoint.host.lower().encode(), endpoint.target, ports[endpoint.ports], endpoint.zone.lower().encode())
        for endpoint in endpoints
    )
    return ServiceRecords(ports=tuple(ports), aliases=aliases)


def build_records(
    service: Service,
    addresses: Sequence[EndpointAddress],
    view: ClientGroupView | None,
    drained: frozenset[str] = frozenset(),
) -> ServiceRecords | None:
    """`view` has the endpoints of each client group of a headless Service. Without it, all but `drained` are returned."""
    if service.spec.type == "ExternalName":
        return _external(service.spec.external_name)
    ports = _numbered(address.ports for address in addresses)
    zones = _numbered(address.zone for address in addresses)
    endpoints = tuple(
        EndpointRecord(address.address, _label(address), zones[address.zone], ports[address.ports])
        for address in addresses
    )
    records = ServiceRecords(endpoints, tuple(ports), tuple(zone.lower().encode() for zone in zones))
    if not is_headless(service):
        service_ports = tuple((port.name, port.protocol, port.port) for port in service.spec.ports) or PORTLESS
        return records._replace(cluster_ips=tuple(cluster_ips(service)), service_ports=service_ports)
    if drained:
        records = records._replace(drained=_bits(addresses, drained))
    if view:
        groups = tuple(_bits(addresses, keys) for keys in view.keys)
        records = records._replace(profile=view.profile.id, groups=groups, near=view.near)
    return records


def count_names(service: ServiceRecords) -> int:
    """Names of endpoints and of ports, and the Service's own."""
    ports = {port[:2] for port_set in (*service.ports, service.service_ports) for port in port_set if port[0]}
    return 1 + len(service.endpoints) + len(service.aliases) + len(ports) + len({protocol for _, protocol in ports})


def name_server_targets(
    key: Key, service: Service, addresses: Sequence[EndpointAddress], domain: ClusterDomain
) -> Iterator[SrvTarget]:
    """Names and addresses of a Service of name servers."""
    name = service_name(key, domain)
    if name is None:
        return
    if not is_headless(service):
        yield from (SrvTarget(name, 53, ip) for ip in cluster_ips(service))
        return
    for address in addresses:
        if host := below(name, address.host or dashed(str(ip_address(address.address)))):
            yield SrvTarget(host, 53, address.address)


def cluster_ips(service: Service) -> list[bytes]:
    return [ip for text in service.spec.cluster_ips or (service.spec.cluster_ip,) if (ip := packed(text))]


def _numbered(items: Iterable[_T]) -> dict[_T, int]:
    """Distinct items in order of appearance, with their indexes."""
    return {item: number for number, item in enumerate(dict.fromkeys(items))}


def _bits(addresses: Sequence[EndpointAddress], keys: Container[str]) -> int:
    return int("".join("01"[address.key in keys] for address in reversed(addresses)) or "0", 2)


def _slice_addresses(slice_: EndpointSlice, domain: ClusterDomain) -> Iterator[EndpointAddress]:
    ports = _ports(slice_)
    for endpoint in slice_.endpoints or ():
        if not is_ready(endpoint):
            continue
        for address in endpoint.addresses:
            if (bytes_ := packed(address)) is not None:
                host = _host(endpoint, address, domain)
                yield EndpointAddress(bytes_, host, ports, endpoint.zone or "", endpoint.addresses[0])


def _host(endpoint: Endpoint, address: str, domain: ClusterDomain) -> str:
    if endpoint.hostname:
        return endpoint.hostname
    pod = endpoint.target_ref.name if endpoint.target_ref and domain.name_endpoints_by_pod else ""
    if pod and len(pod) <= LONGEST_LABEL:
        return pod
    return (
        "" if ":" not in address or dashed(address).encode() == host_label(packed(address) or b"") else dashed(address)
    )


def _label(address: EndpointAddress) -> bytes | None:
    return address.host.lower().encode() if address.host else None


def _external(name: str) -> ServiceRecords | None:
    target = _target(name)
    return ServiceRecords(alias=target) if target else None


def _target(name: str) -> bytes | None:
    """None for a name that is too long for DNS, and for an address."""
    try:
        wire = to_wire(name)
    except (WrongNameError, UnicodeError):
        return None
    return None if packed(name) is not None or len(wire) > LONGEST_NAME or wire == b"\0" else wire


def _ports(slice_: EndpointSlice) -> tuple[Port, ...]:
    return tuple((port.name or "", port.protocol, port.port or NO_PORT) for port in slice_.ports or ()) or PORTLESS
