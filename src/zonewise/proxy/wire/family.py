"""IPv4 and IPv6 in nftables: every rule, set and element exists once per address family.

The numbers are from the kernel's headers (linux/netfilter/nf_tables.h), RFC 791 and RFC 8200.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv6Address, ip_network
from itertools import repeat
from socket import inet_ntop, inet_pton
from typing import Final


class Protocol(IntEnum):
    TCP = 6
    UDP = 17
    SCTP = 132


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Compared by identity. `name` is the address type of slices, `table` the family of the nftables table."""

    name: str
    table: str
    number: int
    address_bytes: int
    source_offset: int
    destination_offset: int
    address_type: int
    original_destination: int
    port_unreachable: int

    @property
    def address_registers(self) -> int:
        return self.address_bytes // 4

    def pack(self, address: str) -> bytes:
        """Raises ValueError if it is not an address of this family."""
        try:
            return inet_pton(
                self.number, address
            )  # ten times faster than ipaddress; family numbers are those of sockets
        except OSError:
            return self._pack_lenient(address)

    def pack_all(self, addresses: Iterable[str]) -> list[bytes]:
        """As `pack`, faster for many: the first sync may have a hundred thousand."""
        addresses = list(addresses)
        try:
            return list(map(inet_pton, repeat(self.number), addresses))
        except OSError:
            return [self.pack(address) for address in addresses]

    def _pack_lenient(self, address: str) -> bytes:
        """Old API objects may have leading zeros, which have no meaning, or an interface."""
        if self.address_bytes == 4:
            first, second, third, fourth = address.split(".")
            return bytes((int(first), int(second), int(third), int(fourth)))
        return IPv6Address(address).packed

    def unpack(self, packed: bytes) -> str:
        return inet_ntop(self.number, packed)

    def canonical(self, address: str) -> str:
        """The one form that is compared and written: old API objects have others."""
        return self.unpack(self.pack(address))

    def canonical_network(self, text: str) -> str:
        """Without the host's bits. Raises ValueError if it is not a network of this family."""
        address, _, prefix = text.partition("/")
        return str(ip_network((self.pack(address), int(prefix or self.address_bytes * 8)), strict=False))

    def owns(self, address: str) -> bool:
        """Decided by the colon: the API server has validated the address."""
        return (":" in address) is (self.address_bytes == 16)


IPV4: Final = Family("IPv4", "ip", 2, 4, 12, 16, 7, 20, 3)
IPV6: Final = Family("IPv6", "ip6", 10, 16, 8, 24, 8, 22, 4)
FAMILIES: Final = {family.name: family for family in (IPV4, IPV6)}
