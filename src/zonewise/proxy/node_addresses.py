"""The node's addresses, from its Node object and from the kernel, on which node ports are served."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

from zonewise.errors import UsageError
from zonewise.objects import Node
from zonewise.proxy.wire.netlink import DUMP, REQUEST, attributes, received

PRIMARY: Final = "primary"
_GET_ADDRESS, _NEW_ADDRESS, _DONE = 22, 20, 3
_ADDRESS, _LOCAL = 1, 2


def node_port_addresses(node: Node, ranges: Iterable[str]) -> tuple[str, ...]:
    """The addresses within `ranges`, loopback excluded; `primary`, the default, means the first of each family."""
    cidrs = [text for text in ranges if text != PRIMARY]
    chosen = list(primary(node)) if PRIMARY in ranges or not cidrs else []
    if cidrs:
        networks = [ip_network(text, strict=False) for text in cidrs]
        chosen += [str(address) for address in addresses() if any(address in network for network in networks)]
    return tuple(dict.fromkeys(chosen))


def check_ranges(ranges: Iterable[str]) -> None:
    for text in ranges:
        try:
            ip_network(text, strict=False) if text != PRIMARY else None
        except ValueError:
            raise UsageError(f"{text!r} is not a CIDR: write one such as 10.0.0.0/8") from None


def primary(node: Node) -> tuple[str, ...]:
    """The node's own address of each family."""
    internal = [
        address.address
        for address in node.status.addresses
        if address.type == "InternalIP" and _is_address(address.address)
    ]
    firsts = {":" in address: address for address in reversed(internal)}
    return tuple(firsts.values())


def _is_address(text: str) -> bool:
    """The API server does not validate a node's status."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def addresses() -> list[IPv4Address | IPv6Address]:
    """All addresses of this machine but loopback and link-local ones."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as route:
        route.bind((0, 0))
        route.send(struct.pack("=IHHIIB7x", 24, _GET_ADDRESS, REQUEST | DUMP, 1, 0, 0))
        listed: list[IPv4Address | IPv6Address] = []
        while True:
            for reply in received(route.recv(1 << 18)):
                if reply.kind == _DONE:
                    return [address for address in listed if not address.is_loopback and not address.is_link_local]
                if reply.kind == _NEW_ADDRESS:
                    parts = dict(attributes(reply.payload[8:]))
                    listed.append(ip_address(bytes(parts.get(_LOCAL) or parts[_ADDRESS])))
