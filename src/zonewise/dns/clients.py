"""Who is asking: the node of a client by its address.

Pods are found by their node's pod ranges, which change only when nodes do; a node's own addresses and, where ranges
don't tell, single pods are exact entries and win. An address that nothing matches belongs to no node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from zonewise.dns.names import packed
from zonewise.objects import Node

Ranges = Mapping[int, Mapping[int, Mapping[int, str]]]
"""Node names by address length in bytes, by how many bits are left out of the prefix, by prefix."""


@dataclass(frozen=True, slots=True)
class Places:
    exact: Mapping[bytes, str]
    ranges: Ranges

    def node(self, address: str) -> str:
        """Empty for a client on no node we know. IPv4 clients of a socket for both families come as ::ffff:a.b.c.d."""
        found = packed(address.partition("%")[0])
        if found is None:
            return ""
        if found[:12] == b"\0" * 10 + b"\xff\xff" and len(found) == 16:
            found = found[12:]
        return self.exact.get(found) or self._by_range(found)

    def _by_range(self, address: bytes) -> str:
        number = int.from_bytes(address)
        for bits, nodes in self.ranges.get(len(address), {}).items():
            if node := nodes.get(number >> bits):
                return node
        return ""


def places(nodes: Iterable[Node], pods: Mapping[bytes, str]) -> Places:
    """`pods` are nodes by the addresses of pods that no range covers."""
    exact: dict[bytes, str] = dict(pods)
    ranges: dict[int, dict[int, dict[int, str]]] = {4: {}, 16: {}}
    for node in nodes:
        for address in own_addresses(node):
            exact[address] = node.metadata.name
        for text in node.spec.pod_cidrs:
            size, bits, prefix = _range(text)
            if size:
                ranges[size].setdefault(bits, {})[prefix] = node.metadata.name
    return Places(exact, {size: dict(sorted(found.items())) for size, found in ranges.items()})


def own_addresses(node: Node) -> Iterator[bytes]:
    for each in node.status.addresses:
        if (found := packed(each.address)) is not None:
            yield found


def _range(text: str) -> tuple[int, int, int]:
    """Length of addresses, bits left out, and prefix; zeros for what is no range."""
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return 0, 0, 0
    bits = network.max_prefixlen - network.prefixlen
    return network.max_prefixlen // 8, bits, int(network.network_address) >> bits


def is_within(address: str, ranges: Iterable[str]) -> bool:
    """Whether a client is one of those named by the operator."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    plain = getattr(found, "ipv4_mapped", None) or found
    return any(plain in ip_network(text, strict=False) for text in ranges)
