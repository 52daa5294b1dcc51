"""The names of one Service and the records under each, by the Kubernetes DNS specification 1.1.0.

What the specification leaves open follows CoreDNS, which clients are used to: addresses also under `_port._proto`, SRV
also under the bare name, endpoints by name under every Service. Who gets which endpoints of a headless Service is
the decision of `zonewise.routing`: the answers then differ by group of clients (see `views`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from zonewise.dns import records
from zonewise.dns.message import Type
from zonewise.dns.names import WrongNameError, below, dashed, packed, to_wire
from zonewise.dns.records import Answer, Target
from zonewise.dns.views import View
from zonewise.objects import Endpoint, EndpointSlice, Service
from zonewise.routing.endpoints import is_ready

NO_PORT: Final = -1
"""Stands for the port of a Service that names none: it has addresses, but no SRV records."""

_LONGEST_LABEL: Final = 63


class Varied(NamedTuple):
    """An answer by group of clients. Group 0 is of clients nobody knows: it gets everything.

    `near` says which groups were answered by a preference or rule rather than with everything. None stands for NODATA.
    """

    profile: int
    answers: tuple[Answer | None, ...]
    near: tuple[bool, ...]


class Alias(NamedTuple):
    """The records are elsewhere: whoever answers has to look there too."""

    target: bytes
    answer: Answer


Content = Answer | Varied | Alias
Records = Mapping[int, Content]
"""By type; a name without any exists all the same."""


class Zonal(NamedTuple):
    """What stands below `_zone`: `<zone>.pin` has the zone's records or none, `<zone>.prefer` the zone's or else all."""

    by_zone: Mapping[bytes, Records]
    everything: Records


Port = tuple[str, str, int]
"""Name, protocol, number."""


@dataclass(frozen=True, slots=True)
class Domain:
    """What all records share: the cluster's domain, and how they are written."""

    wire: bytes
    ttl: int = 5
    name_endpoints_by_pod: bool = False

    @property
    def services(self) -> bytes:
        return to_wire("svc")[:-1] + self.wire


@dataclass(frozen=True, slots=True)
class Row:
    """One address of one ready endpoint, with the ports of its slice. `key` is what routing calls the endpoint."""

    key: str
    address: bytes
    host: str
    zone: str
    ports: tuple[Port, ...]


@dataclass(frozen=True, slots=True)
class Published:
    """All that one Service says. `reverse` are PTR targets by address."""

    names: Mapping[bytes, Records] = field(default_factory=dict)
    zonal: Mapping[bytes, Zonal] = field(default_factory=dict)
    reverse: Mapping[bytes, tuple[bytes, ...]] = field(default_factory=dict)
    virtual: Mapping[bytes, bytes] = field(default_factory=dict)
    """Its cluster IPs: named after it alone, whatever endpoints have the same address."""


def is_headless(service: Service) -> bool:
    return (service.spec.cluster_ips or (service.spec.cluster_ip,))[0] == "None"


def rows_of(slices: Iterable[EndpointSlice], domain: Domain) -> list[Row]:
    """By address, so that the same cluster gives the same bytes whatever came first."""
    found = [row for each in slices if each.address_type != "FQDN" for row in _slice_rows(each, domain)]
    return sorted(found, key=lambda row: (row.address, row.host, row.ports))


def publish(
    service: Service, rows: Sequence[Row], view: View | None, domain: Domain, drained: Container[str] = ()
) -> Published:
    """`view` says who gets which rows of a headless Service; without one everybody gets all but the `drained`.

    An endpoint of a drained zone keeps its own name, and is still there for who names the zone.
    """
    name = below(domain.services, service.metadata.name, service.metadata.namespace)
    if name is None:
        return Published()
    writer = _Writer(name, domain)
    if service.spec.type == "ExternalName":
        return _external(writer, service.spec.external_name)
    endpoints = writer.endpoints(rows)
    reverse = _reverse(writer, rows)
    if is_headless(service):
        names = _headless(writer, [row for row in rows if row.key not in drained], view)
        return Published({**endpoints, **names}, _zonal(writer, rows), reverse)
    ips = cluster_ips(service)
    ports = tuple((port.name, port.protocol, port.port) for port in service.spec.ports) or (("", "", NO_PORT),)
    virtual = [Row("", ip, "", "", ports) for ip in ips]
    names = writer.service(lambda at, matches: writer.plain(at, virtual, matches, host=False), ports)
    return Published({**endpoints, **names}, {}, reverse, dict.fromkeys(ips, name))


def cluster_ips(service: Service) -> list[bytes]:
    return [ip for text in service.spec.cluster_ips or (service.spec.cluster_ip,) if (ip := packed(text))]


def _slice_rows(each: EndpointSlice, domain: Domain) -> Iterator[Row]:
    ports = tuple((port.name or "", port.protocol, port.port or NO_PORT) for port in each.ports or ())
    for endpoint in each.endpoints or ():
        if not is_ready(endpoint):
            continue
        for address in endpoint.addresses:
            if (bytes_ := packed(address)) is not None:
                host = _host(endpoint, address, domain)
                yield Row(endpoint.addresses[0], bytes_, host, endpoint.zone or "", ports or (("", "", NO_PORT),))


def _host(endpoint: Endpoint, address: str, domain: Domain) -> str:
    if endpoint.hostname:
        return endpoint.hostname
    pod = endpoint.target_ref.name if endpoint.target_ref and domain.name_endpoints_by_pod else ""
    return pod if pod and len(pod) <= _LONGEST_LABEL else dashed(address)


def _reverse(writer: _Writer, rows: Sequence[Row]) -> dict[bytes, tuple[bytes, ...]]:
    hosts: dict[bytes, dict[bytes, None]] = {}
    for row in rows:
        if at := writer.host(row.host):
            hosts.setdefault(row.address, {})[at] = None
    return {address: tuple(found) for address, found in hosts.items()}


def _external(writer: _Writer, target: str) -> Published:
    """A name that no packet could carry, or an address in its place, is as good as none."""
    try:
        wire = to_wire(target)
    except (WrongNameError, UnicodeError):
        return Published()
    if packed(target) is not None or len(wire) > 255 or wire == b"\0":
        return Published()
    found = Alias(wire, records.alias(wire, writer.domain.ttl))
    types = (Type.A, Type.AAAA, Type.TXT)
    return Published({writer.name: {Type.CNAME: found.answer, **dict.fromkeys(types, found)}})


def _headless(writer: _Writer, rows: Sequence[Row], view: View | None) -> dict[bytes, Records]:
    ports = tuple(dict.fromkeys(port for row in rows for port in row.ports))

    def write(at: bytes, matches: Matches) -> Records:
        return writer.varied(at, rows, matches, view) if view else writer.plain(at, rows, matches)

    return writer.service(write, ports) if rows else {}


def _zonal(writer: _Writer, rows: Sequence[Row]) -> dict[bytes, Zonal]:
    at = below(writer.name, "_zone")
    if at is None:
        return {}
    by_zone: dict[str, list[Row]] = {}
    for row in rows:
        if row.zone:
            by_zone.setdefault(row.zone.lower(), []).append(row)
    found = {zone.encode(): writer.plain(None, there, _anything) for zone, there in sorted(by_zone.items())}
    return {at: Zonal(found, writer.plain(None, rows, _anything))}


Matches = Callable[[Port], bool]


def _anything(_port: Port) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class _Writer:
    name: bytes
    domain: Domain
    _hosts: dict[str, bytes | None] = field(default_factory=dict)

    def host(self, label: str) -> bytes | None:
        """The name of an endpoint; each is written many times."""
        if label not in self._hosts:
            self._hosts[label] = below(self.name, label)
        return self._hosts[label]

    def service(self, write: Callable[[bytes, Matches], Records], ports: Iterable[Port]) -> dict[bytes, Records]:
        """The bare name and `_port._proto` below it, with the `_proto` between them, which exists but is empty."""
        names = {self.name: write(self.name, _anything)}
        for port, protocol in sorted({(name.lower(), protocol.lower()) for name, protocol, _ in ports if name}):
            if at := below(self.name, f"_{port}", f"_{protocol}"):
                names[at] = write(at, _Named(port, protocol))
                names.setdefault(at[len(port) + 2 :], {})
        return names

    def endpoints(self, rows: Iterable[Row]) -> dict[bytes, Records]:
        by_host: dict[bytes, list[Row]] = {}
        for row in rows:
            if at := self.host(row.host):
                by_host.setdefault(at, []).append(row)
        return {at: self.plain(at, found, _anything) for at, found in by_host.items()}

    def plain(self, at: bytes | None, rows: Sequence[Row], matches: Matches, *, host: bool = True) -> dict[int, Answer]:
        """`at` is the name asked for, or None where that may be any."""
        found = self.addresses(rows, matches)
        if answer := self._services(at, rows, matches, host=host):
            found[Type.SRV] = answer
        return found

    def addresses(self, rows: Sequence[Row], matches: Matches) -> dict[int, Answer]:
        matching = dict.fromkeys(row.address for row in rows if matches is _anything or any(map(matches, row.ports)))
        v4 = [address for address in matching if len(address) == 4]
        v6 = [address for address in matching if len(address) != 4]
        families = ((Type.A, v4), (Type.AAAA, v6))
        return {type_: records.addresses(found, self.domain.ttl) for type_, found in families if found}

    def varied(self, at: bytes, rows: Sequence[Row], matches: Matches, view: View) -> Records:
        plain = self.plain(at, rows, matches)
        seen = [plain, *(self.plain(at, [row for row in rows if row.key in keys], matches) for keys in view.keys)]
        return {type_: Varied(view.profile.id, tuple(each.get(type_) for each in seen), view.near) for type_ in plain}

    def _services(self, at: bytes | None, rows: Sequence[Row], matches: Matches, *, host: bool) -> Answer | None:
        entries = [(row, port[2]) for row in rows for port in row.ports if matches(port)]
        targets = [
            Target(target, number, row.address)
            for row, number in entries
            if number != NO_PORT and (target := self.host(row.host) if host else self.name)
        ]
        return records.services(at, targets, len(entries), self.domain.ttl) if targets else None


@dataclass(frozen=True, slots=True)
class _Named:
    port: str
    protocol: str

    def __call__(self, found: Port) -> bool:
        return (found[0].lower(), found[1].lower()) == (self.port, self.protocol)
