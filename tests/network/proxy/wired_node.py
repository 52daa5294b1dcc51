r"""A node whose every neighbour is this program: packets are put on its links, and what leaves it is read, byte by byte.

    pods  (tun, 10.0.0.0/8 and fd00:10::/32) --\
                                                  node, with the addresses that a test gives it
    wire  (tun, everything else)             --/

The kernel treats a packet within the call that sends it, but for the loopback's queue, so little is waited for: what is not
seen then was dropped.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from itertools import count

from network.proxy.node import SYSCTLS
from network.proxy.packets import PROTOCOLS, CapturedPacket, first_packet, read_packet, read_payload
from zonewise.lab.network import namespaces

PODS = ("10.0.0.0/8", "fd00:10::/32")
MASQUERADED = frozenset({"198.51.100.1", "198.51.100.2", "2001:db8:ffff::1", "2001:db8:ffff::2"})
"""The addresses of the node's links, which no other rule than masquerading makes a source."""
_LINKS = {"pods": ("198.51.100.1", "2001:db8:ffff::1"), "wire": ("198.51.100.2", "2001:db8:ffff::2")}
_SYSCTLS = SYSCTLS | {"net.ipv4.icmp_ratemask": 0}
_TUNSETIFF, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
_IPV6_HEADER_INCLUDED = 36
_LARGEST = 2000
_LOOPBACK_SECONDS = 0.02
_numbers = count(1)
_cookies = count(1)


@dataclass
class WiredNode:
    netns: str
    links: dict[str, int]
    senders: dict[int, socket.socket]
    received: dict[int, list[tuple[int, socket.socket]]]
    """By address family, raw sockets with their protocol: they get a copy of each packet that the node accepts."""
    addresses: set[str] = field(default_factory=set)
    _source_ports: dict[tuple[str, str, str, int], Iterator[int]] = field(
        default_factory=lambda: defaultdict(lambda: iter(range(10_000, 65_536)))
    )

    def own(self, addresses: Iterable[str]) -> None:
        """Give the node these addresses, and no others."""
        wanted = set(addresses)
        lines = [f"addr del {_host(address)} dev lo" for address in sorted(self.addresses - wanted)]
        lines += [f"addr add {_host(address)} dev lo" for address in sorted(wanted - self.addresses)]
        namespaces.ip(lines, self.netns)
        self.addresses = wanted

    def send(self, protocol: str, source: str, dest: str, port: int) -> list[CapturedPacket]:
        """All that was seen of one new connection: from the node if the source is one of its addresses."""
        cookie = next(_cookies)
        source_port = next(self._source_ports[protocol, source, dest, port])  # else it belongs to an earlier connection
        packet = first_packet(PROTOCOLS[protocol], source, dest, (source_port, port), cookie)
        version = ip_address(source).version
        if source not in self.addresses:
            on_node = any(ip_address(source) in ip_network(pods) for pods in PODS if (":" in pods) is (":" in source))
            os.write(self.links["pods" if on_node else "wire"], packet)
            return self._seen(cookie, version)
        with suppress(PermissionError):  # what the kernel says of an own packet that a rule drops or rejects
            self.senders[version].sendto(packet, (dest, 0))
        if seen := self._seen(cookie, version):
            return seen
        time.sleep(_LOOPBACK_SECONDS)
        return self._seen(cookie, version)

    def _seen(self, cookie: int, version: int) -> list[CapturedPacket]:
        return [seen for seen in self._all_seen(version) if seen.cookie == cookie]

    def _all_seen(self, version: int) -> list[CapturedPacket]:
        left = [read_packet(packet) for device in self.links.values() for packet in _frames(device)]
        accepted = [_accepted(protocol, raw, version) for protocol, raw in self.received[version]]
        return [seen for seen in left if seen] + [seen for several in accepted for seen in several]


def _host(address: str) -> str:
    return f"{address}/128 nodad" if ":" in address else f"{address}/32"


def _frames(device: int) -> Iterator[bytes]:
    while True:
        try:
            yield os.read(device, _LARGEST)
        except BlockingIOError:
            return


def _accepted(protocol: int, raw: socket.socket, version: int) -> list[CapturedPacket]:
    """Of IPv6, the kernel gives only what follows the header."""
    packets = []
    while True:
        try:
            packet, (source, *_) = raw.recvfrom(_LARGEST)
        except BlockingIOError:
            return [seen for seen in packets if seen]
        if version == 4:
            packets.append(read_packet(packet))
        elif protocol == socket.IPPROTO_ICMPV6:
            inner = read_packet(packet[8:]) if packet[:2] == b"\1\4" else None
            packets.append(inner and inner._replace(rejected=True))
        else:
            packets.append(read_payload(protocol, packet, source, ""))


@contextmanager
def create() -> Iterator[WiredNode]:
    netns = f"zwp{os.getpid()}-wired{next(_numbers)}"
    with ExitStack() as stack:
        namespaces.ip([f"netns add {netns}"])
        stack.callback(namespaces.remove, [netns])
        namespaces.sysctl(netns, _SYSCTLS)
        links = namespaces.inside(netns, lambda: {name: _tun(name) for name in _LINKS})
        for device in links.values():
            stack.callback(os.close, device)
        _configure(netns)
        senders, received = namespaces.inside(netns, lambda: (_senders(), _receivers()))
        for opened in (*senders.values(), *(raw for several in received.values() for _, raw in several)):
            stack.enter_context(opened)
        yield WiredNode(netns, links, senders, received)


def _tun(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TUN_WITHOUT_HEADER))
    return device


def _configure(netns: str) -> None:
    lines = ["link set lo up"]
    for name, (four, six) in _LINKS.items():
        lines += [f"link set {name} addrgenmode none", f"link set {name} up"]
        lines += [f"addr add {four}/32 dev {name}", f"addr add {six}/128 dev {name} nodad"]
    namespaces.ip(lines, netns)
    for family, pods in zip(("-4", "-6"), PODS, strict=True):
        namespaces.ip([f"route add {pods} dev pods", "route add default dev wire"], netns, family=family)


def _senders() -> dict[int, socket.socket]:
    four = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    six = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_RAW)
    six.setsockopt(socket.IPPROTO_IPV6, _IPV6_HEADER_INCLUDED, 1)
    return {4: four, 6: six}


def _receivers() -> dict[int, list[tuple[int, socket.socket]]]:
    return {
        4: [_receiver(socket.AF_INET, protocol) for protocol in (*PROTOCOLS.values(), socket.IPPROTO_ICMP)],
        6: [_receiver(socket.AF_INET6, protocol) for protocol in (*PROTOCOLS.values(), socket.IPPROTO_ICMPV6)],
    }


def _receiver(family: socket.AddressFamily, protocol: int) -> tuple[int, socket.socket]:
    raw = socket.socket(family, socket.SOCK_RAW, protocol)
    raw.setblocking(False)
    return protocol, raw
