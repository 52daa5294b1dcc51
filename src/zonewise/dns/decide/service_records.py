"""Records of one Service: the compact form that workers keep, and the answers derived from it.

The controller makes them (see `record_builder`). Workers keep them encoded, a few hundred bytes per Service, and derive
an answer for its first query: most names are never queried. Names follow the Kubernetes DNS specification 1.1.0. What it
leaves open follows CoreDNS, which clients expect: addresses also under `_port._proto`, SRV also under the bare name,
endpoints by name under every Service.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import Final, NamedTuple

from zonewise.dns.wire import records
from zonewise.dns.wire.message import RecordType
from zonewise.dns.wire.names import LONGEST_LABEL, LONGEST_NAME, dashed, is_v4, undashed
from zonewise.dns.wire.records import SrvTarget, WireAnswer

NO_PORT: Final = -1
"""The port of a Service without ports: it has addresses, but no SRV records."""

PORTLESS: Final = (("", "", NO_PORT),)
_MARSHAL_VERSION: Final = 2
"""Later versions write shared objects as references, and then equal records are not equal bytes."""

_ALIASED: Final = frozenset({RecordType.A, RecordType.AAAA, RecordType.TXT})
_FAMILIES: Final = {int(RecordType.A): 4, int(RecordType.AAAA): 16}
_ZONE: Final = b"_zone"

Port = tuple[str, str, int]
"""Name, protocol, number."""

Matches = Callable[[Port], bool]


class EndpointRecord(NamedTuple):
    """One address of one ready endpoint. `host` is its label, or None if that follows from the address.

    `zone` and `ports` are indexes into `ServiceRecords.zones` and `ServiceRecords.ports`.
    """

    address: bytes
    host: bytes | None
    zone: int
    ports: int


class ServiceRecords(NamedTuple):
    """Sets of endpoints are integers, with a bit for each. `groups` are the endpoints of node groups 1 and up."""

    endpoints: tuple[EndpointRecord, ...] = ()
    ports: tuple[tuple[Port, ...], ...] = ()
    zones: tuple[bytes, ...] = ()
    cluster_ips: tuple[bytes, ...] | None = None
    """None for a headless Service."""
    service_ports: tuple[Port, ...] = ()
    """Of the cluster IPs."""
    drained: int = 0
    """Endpoints in drained zones: only their own names, and names with the zone, return them."""
    profile: int = 0
    groups: tuple[int, ...] = ()
    near: tuple[bool, ...] = ()
    alias: bytes = b""
    """The target of an ExternalName Service."""
    aliases: tuple[tuple[bytes, bytes, int, bytes], ...] = ()
    """Endpoints of slices of type FQDN: label, target, index of the ports, and zone."""


class AliasRecord(NamedTuple):
    """A CNAME whose target has to be resolved as well."""

    target: bytes
    answer: WireAnswer


class LookupResult(NamedTuple):
    """The answer of a name for a type; None is NODATA. `varies`: other groups of nodes may get a different answer."""

    content: WireAnswer | AliasRecord | None
    varies: bool = False


def encode(service: ServiceRecords) -> bytes:
    plain = (tuple(map(tuple, service.endpoints)), *service[1:])
    return marshal.dumps(plain, _MARSHAL_VERSION)


def decode(encoded: bytes) -> ServiceRecords:
    endpoints, *fields = marshal.loads(encoded)  # noqa: S302 - from our own controller only
    return ServiceRecords(tuple(map(EndpointRecord._make, endpoints)), *fields)


def host_label(address: bytes) -> bytes:
    """The label of an endpoint without a host name."""
    if is_v4(address):
        return b"%d-%d-%d-%d" % tuple(address)
    return dashed(str(IPv6Address(address))).encode()


def may_contain(encoded: bytes, label: bytes) -> bool:
    """Whether there can be an endpoint or protocol with that label, without decoding: large Services take long."""
    address = undashed(label.decode("ascii", "replace"))
    return label.startswith(b"_") or label in encoded or (address is not None and address.packed in encoded)


def _any_port(_port: Port) -> bool:
    return True


def _port_matcher(labels: Sequence[bytes]) -> Matches | None:
    """For `_port` and `_proto`; None for other labels."""
    if not all(len(label) > 1 and label.startswith(b"_") for label in labels):
        return None
    port, protocol = (label[1:].decode("utf-8", "replace") for label in labels)
    return lambda candidate: candidate[0].lower() == port and candidate[1].lower() == protocol


@dataclass(slots=True)
class RecordReader:
    """`name` is the Service's."""

    name: bytes
    service: ServiceRecords
    ttl: int
    _by_label: dict[bytes, list[EndpointRecord]] = field(default_factory=dict)

    def find(self, labels: Sequence[bytes], type_: int, group: int = 0) -> LookupResult | None:
        """The answer for a name, given by its labels before the Service's; None if there is no such name."""
        if self.service.alias:
            return self._alias(self.service.alias, type_) if not labels else None
        if self.service.aliases:
            return self._aliases(labels, type_)
        if not labels or (len(labels) == 2 and labels[-1] != _ZONE):
            return self._service(labels, type_, group)
        if labels[-1] == _ZONE:
            return self._zonal(labels[:-1], type_)
        return self._single(labels[0], type_) if len(labels) == 1 else None

    def hosts(self) -> Iterator[tuple[bytes, bytes]]:
        """Endpoints' addresses and full names, for PTR records."""
        for endpoint in self.service.endpoints:
            if host := self._host(endpoint):
                yield endpoint.address, host

    def _alias(self, target: bytes, type_: int) -> LookupResult:
        answer = records.alias(target, self.ttl)
        if type_ == RecordType.CNAME:
            return LookupResult(answer)
        return LookupResult(AliasRecord(target, answer) if type_ in _ALIASED else None)

    def _aliases(self, labels: Sequence[bytes], type_: int) -> LookupResult | None:
        """A name can have one CNAME only (RFC 2181, 10.1): that of the first endpoint."""
        aliases = self.service.aliases
        if labels and labels[-1] == _ZONE:
            return self._zonal_alias(labels[:-1], type_)
        if len(labels) == 1:
            aliases = tuple(alias for alias in aliases if alias[0] == labels[0])
        elif labels:
            matches = _port_matcher(labels) if len(labels) == 2 else None
            aliases = tuple(alias for alias in aliases if matches and any(map(matches, self.service.ports[alias[2]])))
        return self._alias(aliases[0][1], type_) if aliases else None

    def _zonal_alias(self, labels: Sequence[bytes], type_: int) -> LookupResult | None:
        if len(labels) < 2 or labels[-1] not in {b"pin", b"prefer"}:
            return None
        zone = b".".join(labels[:-1])
        aliases = [alias for alias in self.service.aliases if alias[3] == zone and zone]
        if not aliases and labels[-1] == b"prefer":
            aliases = list(self.service.aliases)
        return self._alias(aliases[0][1], type_) if aliases else LookupResult(None)

    def _service(self, labels: Sequence[bytes], type_: int, group: int) -> LookupResult | None:
        """The bare name, or `_port._proto` below it."""
        matches = _port_matcher(labels) if labels else _any_port
        if matches is None:
            return None
        if self.service.cluster_ips is not None:
            return self._cluster_ips(labels, matches, type_)
        active = self._select(~self.service.drained)
        if not active or (labels and not any(matches(port) for endpoint in active for port in self._ports(endpoint))):
            return None
        if group:
            of_group = self._select(self.service.groups[group - 1] & ~self.service.drained)
            return LookupResult(self._answer(labels, of_group, matches, type_), varies=True)
        answer = self._answer(labels, active, matches, type_)
        return LookupResult(answer, varies=answer is not None and self.service.profile > 0)

    def _cluster_ips(self, labels: Sequence[bytes], matches: Matches, type_: int) -> LookupResult | None:
        ports = [port for port in self.service.service_ports if matches(port)]
        if labels and not ports:
            return None
        addresses = self.service.cluster_ips or ()
        if type_ != RecordType.SRV:
            return LookupResult(self._addresses(addresses, type_))
        targets = [SrvTarget(self.name, port[2], address) for address in addresses for port in ports]
        return LookupResult(self._srv(labels, targets))

    def _single(self, label: bytes, type_: int) -> LookupResult | None:
        """A protocol, which exists without records, or an endpoint."""
        if label.startswith(b"_"):
            ports = self.service.service_ports if self.service.cluster_ips is not None else self._active_ports()
            protocol = label[1:].decode("ascii", "replace")
            exists = any(name and port_protocol.lower() == protocol for name, port_protocol, _ in ports)
            return LookupResult(None) if exists else None
        endpoints = self._with_label(label)
        return LookupResult(self._answer([label], endpoints, _any_port, type_)) if endpoints else None

    def _with_label(self, label: bytes) -> Sequence[EndpointRecord]:
        """Indexed, because a client that resolves one endpoint by name mostly resolves the others, too."""
        if not self._by_label:
            for endpoint in self.service.endpoints:
                self._by_label.setdefault(_label(endpoint), []).append(endpoint)
        return self._by_label.get(label, ())

    def _zonal(self, labels: Sequence[bytes], type_: int) -> LookupResult | None:
        """`<zone>.pin` has the zone's records or none, `<zone>.prefer` the zone's or else all. Zones may have dots."""
        service = self.service
        if service.cluster_ips is not None or len(labels) < 2 or labels[-1] not in {b"pin", b"prefer"}:
            return None
        zone = b".".join(labels[:-1])
        endpoints: Sequence[EndpointRecord] = [
            endpoint for endpoint in service.endpoints if service.zones[endpoint.zone] == zone and zone
        ]
        if not endpoints and labels[-1] == b"prefer":
            endpoints = service.endpoints
        return LookupResult(self._answer([*labels, _ZONE], endpoints, _any_port, type_))

    def _answer(
        self, labels: Sequence[bytes], endpoints: Sequence[EndpointRecord], matches: Matches, type_: int
    ) -> WireAnswer | None:
        if type_ == RecordType.SRV:
            targets = [
                SrvTarget(self._host(endpoint), port[2], endpoint.address)
                for endpoint in endpoints
                for port in self._ports(endpoint)
                if matches(port)
            ]
            return self._srv(labels, targets)
        if matches is not _any_port:
            endpoints = [endpoint for endpoint in endpoints if any(map(matches, self._ports(endpoint)))]
        return self._addresses(dict.fromkeys(endpoint.address for endpoint in endpoints), type_)

    def _addresses(self, addresses: Iterable[bytes], type_: int) -> WireAnswer | None:
        size = _FAMILIES.get(type_)
        of_family = [address for address in addresses if len(address) == size]
        return records.addresses(of_family, self.ttl) if of_family else None

    def _srv(self, labels: Sequence[bytes], entries: Sequence[SrvTarget]) -> WireAnswer | None:
        targets = [entry for entry in entries if entry.port != NO_PORT and entry.name]
        at = b"".join(bytes((len(label),)) + label for label in labels) + self.name
        return records.services(at, targets, len(entries), self.ttl) if targets else None

    def _select(self, bits: int) -> Sequence[EndpointRecord]:
        """By the digits: a shift per endpoint would be quadratic."""
        endpoints = self.service.endpoints
        if bits == ~0:
            return endpoints
        digits = bin(bits & (1 << len(endpoints)) - 1)[:1:-1]
        return [endpoint for endpoint, digit in zip(endpoints, digits, strict=False) if digit == "1"]

    def _ports(self, endpoint: EndpointRecord) -> tuple[Port, ...]:
        return self.service.ports[endpoint.ports]

    def _active_ports(self) -> Iterator[Port]:
        return (port for endpoint in self._select(~self.service.drained) for port in self._ports(endpoint))

    def _host(self, endpoint: EndpointRecord) -> bytes:
        """The full name of an endpoint; empty if it is too long for DNS."""
        label = _label(endpoint)
        if not 0 < len(label) <= LONGEST_LABEL or len(label) + 1 + len(self.name) > LONGEST_NAME:
            return b""
        return bytes((len(label),)) + label + self.name


def _label(endpoint: EndpointRecord) -> bytes:
    return endpoint.host if endpoint.host is not None else host_label(endpoint.address)
