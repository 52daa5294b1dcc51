"""Fills in the sheet of a Service from its objects: its addresses, its endpoints, and which groups of nodes get which.

Who gets which endpoints of a headless Service is the decision of `zonewise.routing` (see `views`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import NamedTuple

from zonewise.dns.decide.client_groups import ClientGroupView
from zonewise.dns.decide.service_records import NO_PORT, PORTLESS, EndpointRecord, Port, ServiceRecords, host_label
from zonewise.dns.wire.names import LONGEST_LABEL, LONGEST_NAME, WrongNameError, below, dashed, packed, to_wire
from zonewise.dns.wire.records import SrvTarget
from zonewise.objects import Endpoint, EndpointSlice, Key, Service
from zonewise.routing.endpoints import is_ready


@dataclass(frozen=True, slots=True)
class ClusterDomain:
    """What all records share: the cluster's domain, and how they are written."""

    wire: bytes
    ttl: int = 5
    name_endpoints_by_pod: bool = False

    @property
    def services(self) -> bytes:
        return b"\x03svc" + self.wire


class EndpointAddress(NamedTuple):
    """One address of one ready endpoint, with the ports of its slice. `key` is what routing calls the endpoint.

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
    """None where no packet could carry it."""
    return below(domain.services, key.name, key.namespace)


def ready_addresses(slices: Iterable[EndpointSlice], domain: ClusterDomain) -> list[EndpointAddress]:
    """By address, so that the same cluster gives the same bytes whatever came first."""
    return sorted(place for each in slices if each.address_type != "FQDN" for place in _slice_places(each, domain))


class FqdnEndpoint(NamedTuple):
    """A ready endpoint of a slice of type FQDN: a name in the place of an address."""

    host: str
    target: bytes
    ports: tuple[Port, ...]
    zone: str


def fqdn_endpoints(slices: Iterable[EndpointSlice], domain: ClusterDomain) -> list[FqdnEndpoint]:
    named = (each for each in slices if each.address_type == "FQDN")
    return sorted(
        FqdnEndpoint(_host(endpoint, address, domain) or dashed(address), target, _ports(each), endpoint.zone or "")
        for each in named
        for endpoint in each.endpoints or ()
        for address in endpoint.addresses
        if is_ready(endpoint) and (target := _target(address))
    )


def fqdn_records(pointers: Sequence[FqdnEndpoint]) -> ServiceRecords:
    """Of a headless Service that has no endpoint with an address: its names are aliases, as CoreDNS has it."""
    ports = {found: number for number, found in enumerate(dict.fromkeys(each.ports for each in pointers))}
    aliases = tuple(
        (each.host.lower().encode(), each.target, ports[each.ports], each.zone.lower().encode()) for each in pointers
    )
    return ServiceRecords(ports=tuple(ports), aliases=aliases)


def build_records(
    service: Service,
    places: Sequence[EndpointAddress],
    view: ClientGroupView | None,
    drained: frozenset[str] = frozenset(),
) -> ServiceRecords | None:
    """`view` says who gets which endpoints of a headless Service; without one everybody gets all but the `drained`."""
    if service.spec.type == "ExternalName":
        return _external(service.spec.external_name)
    ports = {found: number for number, found in enumerate(dict.fromkeys(each.ports for each in places))}
    zones = {found: number for number, found in enumerate(dict.fromkeys(each.zone for each in places))}
    rows = tuple(EndpointRecord(each.address, _label(each), zones[each.zone], ports[each.ports]) for each in places)
    sheet = ServiceRecords(rows, tuple(ports), tuple(zone.lower().encode() for zone in zones))
    if not is_headless(service):
        own = tuple((port.name, port.protocol, port.port) for port in service.spec.ports) or PORTLESS
        return sheet._replace(virtual=tuple(cluster_ips(service)), own_ports=own)
    if drained:
        sheet = sheet._replace(left_out=_bits(places, drained))
    if view:
        groups = tuple(_bits(places, keys) for keys in view.keys)
        sheet = sheet._replace(profile=view.profile.id, groups=groups, near=view.near)
    return sheet


def count_names(sheet: ServiceRecords) -> int:
    """Of endpoints and of ports, and the Service's own."""
    ports = {port[:2] for found in (*sheet.ports, sheet.own_ports) for port in found if port[0]}
    return 1 + len(sheet.rows) + len(sheet.aliases) + len(ports) + len({protocol for _, protocol in ports})


def name_server_targets(
    key: Key, service: Service, places: Sequence[EndpointAddress], domain: ClusterDomain
) -> Iterator[SrvTarget]:
    """The names and addresses of a Service, where these are a name server's."""
    name = service_name(key, domain)
    if name is None:
        return
    if not is_headless(service):
        yield from (SrvTarget(name, 53, ip) for ip in cluster_ips(service))
        return
    for place in places:
        if host := below(name, place.host or dashed(str(ip_address(place.address)))):
            yield SrvTarget(host, 53, place.address)


def cluster_ips(service: Service) -> list[bytes]:
    return [ip for text in service.spec.cluster_ips or (service.spec.cluster_ip,) if (ip := packed(text))]


def _bits(places: Sequence[EndpointAddress], keys: Container[str]) -> int:
    return int("".join("01"[place.key in keys] for place in reversed(places)) or "0", 2)


def _slice_places(each: EndpointSlice, domain: ClusterDomain) -> Iterator[EndpointAddress]:
    ports = _ports(each)
    for endpoint in each.endpoints or ():
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


def _label(place: EndpointAddress) -> bytes | None:
    return place.host.lower().encode() if place.host else None


def _external(name: str) -> ServiceRecords | None:
    target = _target(name)
    return ServiceRecords(alias=target) if target else None


def _target(name: str) -> bytes | None:
    """A name that no packet could carry, or an address in its place, is as good as none."""
    try:
        wire = to_wire(name)
    except (WrongNameError, UnicodeError):
        return None
    return None if packed(name) is not None or len(wire) > LONGEST_NAME or wire == b"\0" else wire


def _ports(each: EndpointSlice) -> tuple[Port, ...]:
    return tuple((port.name or "", port.protocol, port.port or NO_PORT) for port in each.ports or ()) or PORTLESS
