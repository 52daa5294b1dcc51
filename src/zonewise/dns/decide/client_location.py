"""The node of a DNS client, from its address.

Pod ranges of nodes locate most clients, and change only when nodes do. The nodes' own addresses and, in networks whose
nodes have no pod ranges, addresses of single pods take precedence. An address that matches nothing has no node. The
controller derives the locations from Node objects; workers receive the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from zonewise.dns.wire.names import packed

if TYPE_CHECKING:  # workers load this module, but no Kubernetes objects
    from zonewise.objects import Node

Ranges = Mapping[int, Mapping[int, Mapping[int, str]]]
"""Node names by address length in bytes, by number of host bits, by prefix."""

_NO_PODS: Final[Mapping[bytes, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ClientLocations:
    exact: Mapping[bytes, str]
    """Nodes by their own addresses."""
    ranges: Ranges
    pods: dict[bytes, str] = field(default_factory=dict)
    """Nodes by addresses of single pods. Changed in place, because pods come and go all the time."""

    def node_of(self, address: str) -> str:
        """Empty for a client on no known node."""
        client = client_address(address)
        if client is None:
            return ""
        return self.exact.get(client) or self.pods.get(client) or self._by_range(client)

    def nodes_in(self, text: str, prefix: int) -> frozenset[str]:
        """All nodes that clients of a network may be on; with an empty name if some may be on no known node."""
        address = client_address(text)
        if address is None:
            return frozenset({""})
        size = len(address)
        bits = size * 8 - (prefix - 96 if size == 4 and ":" in text else prefix)
        if not bits:
            return frozenset({self.node_of(text)})
        first = int.from_bytes(address)
        spans = [
            (number << small, (number + 1) << small, node)
            for small, nodes in self.ranges.get(size, {}).items()
            if small < bits
            for number, node in _numbers_in(nodes, first >> small, bits - small)
        ]
        for points in (self.exact, self.pods):
            spans += ((number, number + 1, node) for number, node in _addresses_in(points, size, first, bits))
        nodes = {node for _, _, node in spans}
        if not _covers(spans, first, first + (1 << bits)):
            nodes.add(self._by_range(address, bits))
        return frozenset(nodes)

    def _by_range(self, address: bytes, host_bits: int = 0) -> str:
        """The node of the smallest range with so many bits or more."""
        number = int.from_bytes(address)
        for bits, nodes in self.ranges.get(len(address), {}).items():
            if bits >= host_bits and (node := nodes.get(number >> bits)):
                return node
        return ""


def _numbers_in(nodes: Mapping[int, str], first: int, bits: int) -> Iterator[tuple[int, str]]:
    """Of the numbers that differ from `first` in their last bits. There may be fewer of these than nodes, or more."""
    if bits < len(nodes).bit_length():
        return ((number, nodes[number]) for number in range(first, first + (1 << bits)) if number in nodes)
    return ((number, node) for number, node in nodes.items() if number >> bits == first >> bits)


def _addresses_in(nodes: Mapping[bytes, str], size: int, first: int, bits: int) -> Iterator[tuple[int, str]]:
    if bits < len(nodes).bit_length():
        candidates = ((number, number.to_bytes(size)) for number in range(first, first + (1 << bits)))
        return ((number, nodes[address]) for number, address in candidates if address in nodes)
    numbers = ((int.from_bytes(address), node) for address, node in nodes.items() if len(address) == size)
    return ((number, node) for number, node in numbers if number >> bits == first >> bits)


def _covers(spans: Iterable[tuple[int, int, str]], begin: int, end: int) -> bool:
    for first, after, _ in sorted(spans):
        if first > begin:
            return False
        begin = max(begin, after)
    return begin >= end


def client_address(text: str) -> bytes | None:
    """None for what is no address. On a dual-stack socket, IPv4 clients appear as ::ffff:a.b.c.d."""
    address = packed(text.partition("%")[0])
    mapped = address is not None and len(address) == 16 and address[:12] == b"\0" * 10 + b"\xff\xff"
    return address[12:] if address and mapped else address


def client_key(text: str, node: str) -> bytes:
    """Whom limits count. Outside the cluster an IPv6 client may have any address of its 64-bit network."""
    address = client_address(text) or b""
    return address[:8] if len(address) == 16 and not node else address


def is_within(text: str, ranges: Iterable[str]) -> bool:
    """Whether an address is in one of the ranges that the operator listed."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return False
    unmapped = getattr(address, "ipv4_mapped", None) or address
    return any(unmapped in ip_network(text, strict=False) for text in ranges)


def client_locations(nodes: Iterable[Node], pods: Mapping[bytes, str] = _NO_PODS) -> ClientLocations:
    """`pods` maps addresses of pods to nodes, where clients are located by pod."""
    exact: dict[bytes, str] = {}
    ranges: dict[int, dict[int, dict[int, str]]] = {4: {}, 16: {}}
    for node in nodes:
        for address in node_addresses(node):
            exact[address] = node.metadata.name
        for cidr in node.spec.pod_cidrs:
            size, bits, prefix = _parse_range(cidr)
            if size:
                ranges[size].setdefault(bits, {})[prefix] = node.metadata.name
    longest_first = {size: dict(sorted(by_bits.items())) for size, by_bits in ranges.items()}
    return ClientLocations(exact, longest_first, dict(pods))


def node_addresses(node: Node) -> Iterator[bytes]:
    for item in node.status.addresses:
        if (address := packed(item.address)) is not None:
            yield address


def _parse_range(cidr: str) -> tuple[int, int, int]:
    """Length of addresses in bytes, number of host bits, and prefix; zeros for what is no range."""
    try:
        network = ip_network(cidr, strict=False)
    except ValueError:
        return 0, 0, 0
    bits = network.max_prefixlen - network.prefixlen
    return network.max_prefixlen // 8, bits, int(network.network_address) >> bits
