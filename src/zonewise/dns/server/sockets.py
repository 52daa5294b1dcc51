"""Listening sockets: per address one UDP socket for each worker and one TCP socket, with SO_REUSEPORT.

A new server binds the same port while the old one still answers. The kernel spreads packets over all sockets.
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
    """`udp` by worker, then by address; `tcp` by address."""

    port: int
    udp: tuple[tuple[socket.socket, ...], ...]
    tcp: tuple[socket.socket, ...]

    @property
    def all(self) -> tuple[socket.socket, ...]:
        return (*(sock for worker in self.udp for sock in worker), *self.tcp)

    def close(self) -> None:
        for sock in self.all:
            sock.close()


def open_sockets(addresses: tuple[str, ...], port: int, processes: int) -> ListenSockets:
    """No addresses means all, IPv4 and IPv6. Port 0 means any that is free for both UDP and TCP."""
    tries = _TRIES if port == 0 else 1
    while True:
        tries -= 1
        try:
            return _open(addresses or ("",), port, processes)
        except OSError as error:
            if not tries:
                advice = "choose another with --port, or stop the process that uses it"
                raise ZonewiseError(f"port {port} can't be opened: {error.strerror}; {advice}") from error


def _open(addresses: tuple[str, ...], port: int, processes: int) -> ListenSockets:
    opened: list[socket.socket] = []

    def bind(address: str, kind: socket.SocketKind) -> socket.socket:
        nonlocal port
        opened.append(_socket(address, kind))
        opened[-1].bind((address, port))
        port = opened[-1].getsockname()[1]
        return opened[-1]

    try:
        udp = tuple(tuple(bind(address, socket.SOCK_DGRAM) for address in addresses) for _ in range(processes))
        tcp = tuple(bind(address, socket.SOCK_STREAM) for address in addresses)
    except OSError:
        for sock in opened:
            sock.close()
        raise
    return ListenSockets(port, udp, tcp)


def _socket(address: str, kind: socket.SocketKind) -> socket.socket:
    dual_stack = address == "" and socket.has_dualstack_ipv6()
    sock = socket.socket(socket.AF_INET6 if dual_stack or ":" in address else socket.AF_INET, kind)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if dual_stack:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    if kind == socket.SOCK_DGRAM:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    else:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
    return sock


def check_addresses(addresses: tuple[str, ...]) -> None:
    for address in addresses:
        try:
            socket.getaddrinfo(address, None, flags=socket.AI_NUMERICHOST)
        except OSError:
            raise UsageError(
                f"--listen {address!r} is not an IP address; write one such as 10.96.0.10 or fd00::10"
            ) from None
