"""Opens the ports: for each address one UDP socket per serving process and one for TCP, shared with what runs beside us.

A server that replaces another binds the same port while the old one still answers; the kernel spreads packets over all.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final

from zonewise.errors import UsageError, ZonewiseError

RECEIVE_BYTES: Final = 4 << 20
_TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class ListenSockets:
    """`udp` by process, then by address; `tcp` by address."""

    port: int
    udp: tuple[tuple[socket.socket, ...], ...]
    tcp: tuple[socket.socket, ...]

    @property
    def all(self) -> tuple[socket.socket, ...]:
        return (*(one for process in self.udp for one in process), *self.tcp)

    def close(self) -> None:
        for each in self.all:
            each.close()


def open_sockets(addresses: tuple[str, ...], port: int, processes: int) -> ListenSockets:
    """Without addresses all of them, IPv4 and IPv6. Port 0 is any that is free for UDP and TCP alike."""
    tries = _TRIES if port == 0 else 1
    while True:
        tries -= 1
        try:
            return _open(addresses or ("",), port, processes)
        except OSError as error:
            if not tries:
                advice = "choose another with --port, or stop what has it"
                raise ZonewiseError(f"port {port} can't be opened: {error.strerror}; {advice}") from error


def _open(addresses: tuple[str, ...], port: int, processes: int) -> ListenSockets:
    opened: list[socket.socket] = []

    def bound(address: str, kind: socket.SocketKind) -> socket.socket:
        nonlocal port
        opened.append(_socket(address, kind))
        opened[-1].bind((address, port))
        port = opened[-1].getsockname()[1]
        return opened[-1]

    try:
        udp = tuple(tuple(bound(each, socket.SOCK_DGRAM) for each in addresses) for _ in range(processes))
        tcp = tuple(bound(each, socket.SOCK_STREAM) for each in addresses)
    except OSError:
        for each in opened:
            each.close()
        raise
    return ListenSockets(port, udp, tcp)


def _socket(address: str, kind: socket.SocketKind) -> socket.socket:
    both = address == "" and socket.has_dualstack_ipv6()
    made = socket.socket(socket.AF_INET6 if both or ":" in address else socket.AF_INET, kind)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if both:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    if kind == socket.SOCK_DGRAM:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    else:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.setblocking(False)
    return made


def check_addresses(addresses: tuple[str, ...]) -> None:
    for address in addresses:
        try:
            socket.getaddrinfo(address, None, flags=socket.AI_NUMERICHOST)
        except OSError:
            raise UsageError(f"--listen {address!r} is no address; write one such as 10.96.0.10 or fd00::10") from None
