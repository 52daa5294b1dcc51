"""Which Services have an address: what PTR records are found by, in the process that answers for reverse zones."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from zonewise.dns.decide.service_records import ServiceRecords
from zonewise.dns.wire.names import labels_of, to_wire

_V4: Final = b"\x07in-addr\x04arpa\0"
_V6: Final = b"\x03ip6\x04arpa\0"


def is_reverse(name: bytes) -> bool:
    """Or looks like it: the bytes could be inside a label."""
    return name.endswith((_V4, _V6))


def address_of(name: bytes) -> bytes | None:
    """The address that a name of a reverse zone stands for."""
    labels = labels_of(name)[-3::-1]
    try:
        if name.endswith(_V4):
            found: IPv4Address | IPv6Address = IPv4Address(b".".join(labels).decode())
        else:
            found = IPv6Address(int(b"".join(labels), 16))
    except ValueError:
        return None
    return found.packed if to_wire(found.reverse_pointer) == name else None


class AddressOwners(dict[bytes, bytes | tuple[bytes, ...]]):
    """Names of Services by address; nearly always it is one."""

    def of(self, address: bytes) -> tuple[bytes, ...]:
        found = self.get(address, ())
        return (found,) if isinstance(found, bytes) else found

    def replace(self, name: bytes, before: set[bytes], after: set[bytes]) -> None:
        """The Service had those addresses, and has these now."""
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
    virtual: AddressOwners = field(default_factory=AddressOwners)
    """By cluster IP, which is named after the Service alone, whatever endpoints have the same address."""
    endpoints: AddressOwners = field(default_factory=AddressOwners)

    def replace(self, name: bytes, old: ServiceRecords | None, new: ServiceRecords | None) -> None:
        """A Service's sheet has changed."""
        self.virtual.replace(name, *(set(sheet.virtual or ()) if sheet else set() for sheet in (old, new)))
        self.endpoints.replace(name, *({row.address for row in sheet.rows} if sheet else set() for sheet in (old, new)))
