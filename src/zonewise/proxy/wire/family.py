"""The two address families as nftables sees them: every rule, set and element is made once for each.

Pure numbers, from the kernel's headers (linux/netfilter/nf_tables.h), RFC 791 and RFC 8200.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from ipaddress import IPv6Address, ip_address
from itertools import repeat
from socket import inet_pton
from typing import Final


class Protocol(IntEnum):
    TCP = 6
    UDP = 17
    SCTP = 132


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """There are two, told apart by identity. `name` is the address type of slices; `table` the family of its nftables table."""

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
        """Raises ValueError for what is no address of this family."""
        try:
            return inet_pton(
                self.number, address
            )  # netfilter numbers families as sockets do; ten times faster than ipaddress
        except OSError:
            return self._pack_as_once_allowed(address)

    def pack_all(self, addresses: Iterable[str]) -> list[bytes]:
        """As `pack`, for the hundred thousand of a start."""
        listed = list(addresses)
        try:
            return list(map(inet_pton, repeat(self.number), listed))
        except OSError:
            return [self.pack(address) for address in listed]

    def _pack_as_once_allowed(self, address: str) -> bytes:
        """Old objects may have leading zeros, which mean nothing, or an interface."""
        if self.address_bytes == 4:
            first, second, third, fourth = address.split(".")
            return bytes((int(first), int(second), int(third), int(fourth)))
        return IPv6Address(address).packed

    def unpack(self, packed: bytes) -> str:
        return str(ip_address(packed))

    def owns(self, address: str) -> bool:
        """By its form: what the API server lets through is an address of one family or the other."""
        return (":" in address) is (self.address_bytes == 16)


IPV4: Final = Family("IPv4", "ip", 2, 4, 12, 16, 7, 20, 3)
IPV6: Final = Family("IPv6", "ip6", 10, 16, 8, 24, 8, 22, 4)
FAMILIES: Final = {family.name: family for family in (IPV4, IPV6)}
