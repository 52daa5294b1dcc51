"""Reverse lookup: the Services that have an address, for PTR records. Kept by the TCP worker only."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from zonewise.dns.decide.service_records import ServiceRecords
from zonewise.dns.wire.names import labels_of, to_wire

_V4: Final = b"\x07in-addr\x04arpa\0"
_V6: Final = b"\x03ip6\x04arpa\0"


def is_reverse(name: bytes) -> bool:
    """May be true for other names: the bytes could be inside a label."""
    return name.endswith((_V4, _V6))


def address_of(name: bytes) -> bytes | None:
    """The address of a name in a reverse zone."""
    labels = labels_of(name)[-3::-1]
    try:
        if name.endswith(_V4):
            address: IPv4Address | IPv6Address = IPv4Address(b".".join(labels).decode())
        else:
            address = IPv6Address(int(b"".join(labels), 16))
    except ValueError:
        return None
    return address.packed if to_wire(address.reverse_pointer) == name else None


class AddressOwners(dict[bytes, bytes | tuple[bytes, ...]]):
    """Names of Services by address. Nearly always there is one, which is stored without a tuple to save memory."""

    def of(self, address: bytes) -> tuple[bytes, ...]:
        names = self.get(address, ())
        return (names,) if isinstance(names, bytes) else names

    def replace(self, name: bytes, before: set[bytes], after: set[bytes]) -> None:
        """The addresses of a Service change from `before` to `after`."""
        for address in before - after:
            self._set(address, tuple(other for other in self.of(address) if other != name))
        for address in after - before:
            self._set(address, tuple(sorted((*self.of(address), name))))

    def _set(self, address: bytes, names: tuple[bytes, ...]) -> None:
        if names:
            self[address] = names if len(names) > 1 else names[0]
        else:
            self.pop(address, None)


@dataclass(slots=True)
class ReverseRecords:
    cluster_ips: AddressOwners = field(default_factory=AddressOwners)
    """A cluster IP has the Service's name alone, even if endpoints have the same address."""
    endpoints: AddressOwners = field(default_factory=AddressOwners)

    def replace(self, name: bytes, old: ServiceRecords | None, new: ServiceRecords | None) -> None:
        """The records of a Service change from `old` to `new`."""
        self.cluster_ips.replace(name, _cluster_ips(old), _cluster_ips(new))
        self.endpoints.replace(name, _endpoints(old), _endpoints(new))


def _cluster_ips(service: ServiceRecords | None) -> set[bytes]:
    return set(service.cluster_ips or ()) if service else set()


def _endpoints(service: ServiceRecords | None) -> set[bytes]:
    return {endpoint.address for endpoint in service.endpoints} if service else set()
