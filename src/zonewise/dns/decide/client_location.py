"""Who is asking: the node of a client by its address.

Pods are found by their node's pod ranges, which change only when nodes do; a node's own addresses and, where ranges
don't tell, single pods are known exactly and win. An address that nothing matches belongs to no node. `ranges` makes
the places from Node objects, which serving processes never see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

from zonewise.dns.wire.names import packed

Ranges = Mapping[int, Mapping[int, Mapping[int, str]]]
"""Node names by address length in bytes, by how many bits are left out of the prefix, by prefix."""


@dataclass(frozen=True, slots=True)
class ClientLocations:
    exact: Mapping[bytes, str]
    """Nodes' own addresses."""
    ranges: Ranges
    pods: dict[bytes, str] = field(default_factory=dict)
    """Nodes by the addresses of single pods; changed in place, because pods come and go all the time."""

    def node(self, address: str) -> str:
        """Empty for a client on no node we know."""
        found = plain(address)
        if found is None:
            return ""
        return self.exact.get(found) or self.pods.get(found) or self._by_range(found)

    def _by_range(self, address: bytes) -> str:
        number = int.from_bytes(address)
        for bits, nodes in self.ranges.get(len(address), {}).items():
            if node := nodes.get(number >> bits):
                return node
        return ""


def plain(address: str) -> bytes | None:
    """A client's address, None where it is none. IPv4 clients of a socket for both families come as ::ffff:a.b.c.d."""
    found = packed(address.partition("%")[0])
    mapped = found is not None and len(found) == 16 and found[:12] == b"\0" * 10 + b"\xff\xff"
    return found[12:] if found and mapped else found


def is_within(address: str, ranges: Iterable[str]) -> bool:
    """Whether a client is one of those named by the operator."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    plain = getattr(found, "ipv4_mapped", None) or found
    return any(plain in ip_network(text, strict=False) for text in ranges)
