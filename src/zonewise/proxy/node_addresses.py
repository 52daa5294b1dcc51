"""The addresses that this node has, as the kernel knows them: for node ports on other addresses than the primary ones."""

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


def node_port_addresses(node: Node, wanted: Iterable[str]) -> tuple[str, ...]:
    """By default the node's own, the first of each family; else those within the given ranges, loopback apart."""
    ranges = [written for written in wanted if written != PRIMARY]
    found: list[str] = _primary(node) if PRIMARY in wanted or not ranges else []
    if ranges:
        networks = [ip_network(written, strict=False) for written in ranges]
        found += [str(each) for each in addresses() if any(each in network for network in networks)]
    return tuple(dict.fromkeys(found))


def check_ranges(wanted: Iterable[str]) -> None:
    for written in wanted:
        try:
            ip_network(written, strict=False) if written != PRIMARY else None
        except ValueError:
            raise UsageError(f"{written!r} is no range of addresses: write one such as 10.0.0.0/8") from None


def _primary(node: Node) -> list[str]:
    internal = [
        each.address for each in node.status.addresses if each.type == "InternalIP" and _is_address(each.address)
    ]
    firsts = {":" in address: address for address in reversed(internal)}
    return list(firsts.values())


def _is_address(written: str) -> bool:
    """Nobody checks what stands in a node's status."""
    try:
        ip_address(written)
    except ValueError:
        return False
    return True


def addresses() -> list[IPv4Address | IPv6Address]:
    """All but loopback and link-local ones."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE) as route:
        route.bind((0, 0))
        route.send(struct.pack("=IHHIIB7x", 24, _GET_ADDRESS, REQUEST | DUMP, 1, 0, 0))
        found: list[IPv4Address | IPv6Address] = []
        while True:
            for answer in received(route.recv(1 << 18)):
                if answer.kind == _DONE:
                    return [each for each in found if not each.is_loopback and not each.is_link_local]
                if answer.kind == _NEW_ADDRESS:
                    parts = dict(attributes(answer.payload[8:]))
                    found.append(ip_address(bytes(parts.get(_LOCAL) or parts[_ADDRESS])))
