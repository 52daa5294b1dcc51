"""Where clients are, from Node objects: each node's pod ranges and its own addresses. The watcher makes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_network
from types import MappingProxyType
from typing import Final

from zonewise.dns.decide.client_location import ClientLocations
from zonewise.dns.wire.names import packed
from zonewise.objects import Node

NO_PODS: Final[Mapping[bytes, str]] = MappingProxyType({})


def places(nodes: Iterable[Node], pods: Mapping[bytes, str] = NO_PODS) -> ClientLocations:
    """`pods` are nodes by the addresses of pods, where clients are found by those."""
    exact: dict[bytes, str] = {}
    ranges: dict[int, dict[int, dict[int, str]]] = {4: {}, 16: {}}
    for node in nodes:
        for address in own_addresses(node):
            exact[address] = node.metadata.name
        for text in node.spec.pod_cidrs:
            size, bits, prefix = _range(text)
            if size:
                ranges[size].setdefault(bits, {})[prefix] = node.metadata.name
    return ClientLocations(exact, {size: dict(sorted(found.items())) for size, found in ranges.items()}, dict(pods))


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
