"""One Service on one sheet: what serving processes keep of it, and how the answer to a question is written from it.

The watcher fills sheets in (see `service`); serving processes keep them as bytes, a few hundred per Service, and write
an answer when it is asked for: most never are. By the Kubernetes DNS specification 1.1.0. What it leaves open follows
CoreDNS, which clients are used to: addresses also under `_port._proto`, SRV also under the bare name, endpoints by name
under every Service.
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
"""Stands for the port of a Service that names none: it has addresses, but no SRV records."""

PORTLESS: Final = (("", "", NO_PORT),)
_FORM: Final = 2
"""Of marshal: later ones write shared objects differently, and then equal sheets are not equal bytes."""

_ALIASED: Final = frozenset({RecordType.A, RecordType.AAAA, RecordType.TXT})
_FAMILIES: Final = {int(RecordType.A): 4, int(RecordType.AAAA): 16}
_ZONE: Final = b"_zone"

Port = tuple[str, str, int]
"""Name, protocol, number."""

Matches = Callable[[Port], bool]


class EndpointRecord(NamedTuple):
    """One address of one ready endpoint. `host` is its label, or None if that follows from the address."""

    address: bytes
    host: bytes | None
    zone: int
    ports: int


class ServiceRecords(NamedTuple):
    """Sets of rows are numbers, with a bit for each. `groups` are what the groups of nodes get, from group 1 on."""

    rows: tuple[EndpointRecord, ...] = ()
    ports: tuple[tuple[Port, ...], ...] = ()
    zones: tuple[bytes, ...] = ()
    virtual: tuple[bytes, ...] | None = None
    """The cluster IPs; None for a headless Service."""
    own_ports: tuple[Port, ...] = ()
    """Of the Service itself: those of its cluster IPs."""
    left_out: int = 0
    """Rows of zones that are drained: they keep their own names, and are there for who names the zone."""
    profile: int = 0
    groups: tuple[int, ...] = ()
    near: tuple[bool, ...] = ()
    alias: bytes = b""
    """What an ExternalName points at."""
    aliases: tuple[tuple[bytes, bytes, int, bytes], ...] = ()
    """Of a Service whose endpoints are names (slices of type FQDN): label, target, which ports, and zone."""


class AliasRecord(NamedTuple):
    """The records are elsewhere: whoever answers has to look there too."""

    target: bytes
    answer: WireAnswer


class LookupResult(NamedTuple):
    """What a name says for a type; None is NODATA. `varies` where other groups of nodes may get something else."""

    content: WireAnswer | AliasRecord | None
    varies: bool = False


def encode(sheet: ServiceRecords) -> bytes:
    plain = (tuple(map(tuple, sheet.rows)), *sheet[1:])
    return marshal.dumps(plain, _FORM)


def decode(written: bytes) -> ServiceRecords:
    rows, *others = marshal.loads(written)  # noqa: S302 - from our own watcher only
    return ServiceRecords(tuple(map(EndpointRecord._make, rows)), *others)


def host_label(address: bytes) -> bytes:
    """Of an endpoint without a host name."""
    if is_v4(address):
        return b"%d-%d-%d-%d" % tuple(address)
    return dashed(str(IPv6Address(address))).encode()


def may_contain(written: bytes, label: bytes) -> bool:
    """Whether a sheet can have an endpoint or protocol of that name, told without reading it: large ones take long."""
    address = undashed(label.decode("ascii", "replace"))
    return label.startswith(b"_") or label in written or (address is not None and address.packed in written)


def _anything(_port: Port) -> bool:
    return True


def _named(labels: Sequence[bytes]) -> Matches | None:
    """Of `_port` and `_proto`; None for labels that are not such."""
    if not all(len(label) > 1 and label.startswith(b"_") for label in labels):
        return None
    port, protocol = (label[1:].decode("utf-8", "replace") for label in labels)
    return lambda found: found[0].lower() == port and found[1].lower() == protocol


@dataclass(slots=True)
class RecordReader:
    """A sheet to be read: `name` is the Service's."""

    name: bytes
    sheet: ServiceRecords
    ttl: int
    _by_label: dict[bytes, list[EndpointRecord]] = field(default_factory=dict)

    def find(self, labels: Sequence[bytes], type_: int, group: int = 0) -> LookupResult | None:
        """What stands at the name with these labels before the Service's; None if there is no such name."""
        if self.sheet.alias:
            return self._alias(self.sheet.alias, type_) if not labels else None
        if self.sheet.aliases:
            return self._aliases(labels, type_)
        if not labels or (len(labels) == 2 and labels[-1] != _ZONE):
            return self._service(labels, type_, group)
        if labels[-1] == _ZONE:
            return self._zonal(labels[:-1], type_)
        return self._single(labels[0], type_) if len(labels) == 1 else None

    def hosts(self) -> Iterator[tuple[bytes, bytes]]:
        """Endpoints' addresses and full names, for PTR records."""
        for row in self.sheet.rows:
            if host := self._host(row):
                yield row.address, host

    def _alias(self, target: bytes, type_: int) -> LookupResult:
        answer = records.alias(target, self.ttl)
        if type_ == RecordType.CNAME:
            return LookupResult(answer)
        return LookupResult(AliasRecord(target, answer) if type_ in _ALIASED else None)

    def _aliases(self, labels: Sequence[bytes], type_: int) -> LookupResult | None:
        """A name can have one alias only (RFC 2181, 10.1): of several endpoints the first counts."""
        found = self.sheet.aliases
        if labels and labels[-1] == _ZONE:
            return self._zonal_alias(labels[:-1], type_)
        if len(labels) == 1:
            found = tuple(each for each in found if each[0] == labels[0])
        elif labels:
            matches = _named(labels) if len(labels) == 2 else None
            found = tuple(each for each in found if matches and any(map(matches, self.sheet.ports[each[2]])))
        return self._alias(found[0][1], type_) if found else None

    def _zonal_alias(self, labels: Sequence[bytes], type_: int) -> LookupResult | None:
        if len(labels) < 2 or labels[-1] not in {b"pin", b"prefer"}:
            return None
        zone = b".".join(labels[:-1])
        found = [each for each in self.sheet.aliases if each[3] == zone and zone]
        if not found and labels[-1] == b"prefer":
            found = list(self.sheet.aliases)
        return self._alias(found[0][1], type_) if found else LookupResult(None)

    def _service(self, labels: Sequence[bytes], type_: int, group: int) -> LookupResult | None:
        """The bare name, or `_port._proto` below it."""
        matches = _named(labels) if labels else _anything
        if matches is None:
            return None
        if self.sheet.virtual is not None:
            return self._virtual(labels, matches, type_)
        shown = self._rows(~self.sheet.left_out)
        if not shown or (labels and not any(matches(port) for row in shown for port in self._ports(row))):
            return None
        if group:
            there = self._rows(self.sheet.groups[group - 1] & ~self.sheet.left_out)
            return LookupResult(self._answer(labels, there, matches, type_), varies=True)
        everything = self._answer(labels, shown, matches, type_)
        return LookupResult(everything, varies=everything is not None and self.sheet.profile > 0)

    def _virtual(self, labels: Sequence[bytes], matches: Matches, type_: int) -> LookupResult | None:
        ports = [port for port in self.sheet.own_ports if matches(port)]
        if labels and not ports:
            return None
        addresses = self.sheet.virtual or ()
        if type_ != RecordType.SRV:
            return LookupResult(self._addresses(addresses, type_))
        targets = [SrvTarget(self.name, port[2], address) for address in addresses for port in ports]
        return LookupResult(self._services(labels, targets))

    def _single(self, label: bytes, type_: int) -> LookupResult | None:
        """A protocol, which exists but is empty, or an endpoint."""
        if label.startswith(b"_"):
            ports = self.sheet.own_ports if self.sheet.virtual is not None else self._shown_ports()
            protocol = label[1:].decode("ascii", "replace")
            known = any(name and found.lower() == protocol for name, found, _ in ports)
            return LookupResult(None) if known else None
        rows = self._labelled(label)
        return LookupResult(self._answer([label], rows, _anything, type_)) if rows else None

    def _labelled(self, label: bytes) -> Sequence[EndpointRecord]:
        """Who asks for one endpoint by its name mostly asks for the others, too."""
        if not self._by_label:
            for row in self.sheet.rows:
                self._by_label.setdefault(_label(row), []).append(row)
        return self._by_label.get(label, ())

    def _zonal(self, labels: Sequence[bytes], type_: int) -> LookupResult | None:
        """`<zone>.pin` has the zone's records or none, `<zone>.prefer` the zone's or else all; zones may have dots."""
        if self.sheet.virtual is not None or len(labels) < 2 or labels[-1] not in {b"pin", b"prefer"}:
            return None
        zone = b".".join(labels[:-1])
        rows: Sequence[EndpointRecord] = [row for row in self.sheet.rows if self.sheet.zones[row.zone] == zone and zone]
        if not rows and labels[-1] == b"prefer":
            rows = self.sheet.rows
        return LookupResult(self._answer([*labels, _ZONE], rows, _anything, type_))

    def _answer(
        self, labels: Sequence[bytes], rows: Sequence[EndpointRecord], matches: Matches, type_: int
    ) -> WireAnswer | None:
        if type_ == RecordType.SRV:
            entries = [(row, port[2]) for row in rows for port in self._ports(row) if matches(port)]
            targets = [SrvTarget(self._host(row), port, row.address) for row, port in entries]
            return self._services(labels, targets)
        if matches is not _anything:
            rows = [row for row in rows if any(map(matches, self._ports(row)))]
        return self._addresses(dict.fromkeys(row.address for row in rows), type_)

    def _addresses(self, addresses: Iterable[bytes], type_: int) -> WireAnswer | None:
        size = _FAMILIES.get(type_)
        found = [address for address in addresses if len(address) == size]
        return records.addresses(found, self.ttl) if found else None

    def _services(self, labels: Sequence[bytes], entries: Sequence[SrvTarget]) -> WireAnswer | None:
        targets = [each for each in entries if each.port != NO_PORT and each.name]
        at = b"".join(bytes((len(label),)) + label for label in labels) + self.name
        return records.services(at, targets, len(entries), self.ttl) if targets else None

    def _rows(self, chosen: int) -> Sequence[EndpointRecord]:
        """By digits, as shifting a number of many thousand bits takes longer with each."""
        rows = self.sheet.rows
        if chosen == ~0:
            return rows
        digits = bin(chosen & (1 << len(rows)) - 1)[:1:-1]
        return [row for row, digit in zip(rows, digits, strict=False) if digit == "1"]

    def _ports(self, row: EndpointRecord) -> tuple[Port, ...]:
        return self.sheet.ports[row.ports]

    def _shown_ports(self) -> Iterator[Port]:
        return (port for row in self._rows(~self.sheet.left_out) for port in self._ports(row))

    def _host(self, row: EndpointRecord) -> bytes:
        """The full name of an endpoint; empty where no packet could carry it."""
        label = _label(row)
        if not 0 < len(label) <= LONGEST_LABEL or len(label) + 1 + len(self.name) > LONGEST_NAME:
            return b""
        return bytes((len(label),)) + label + self.name


def _label(row: EndpointRecord) -> bytes:
    return row.host if row.host is not None else host_label(row.address)
