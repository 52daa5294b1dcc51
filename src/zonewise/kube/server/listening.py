"""Listening sockets of our HTTP servers. "All addresses" means IPv4 and IPv6."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Any, Final

from zonewise.errors import ZonewiseError
from zonewise.kube.decide.connection_pool import IDLE_SECONDS
from zonewise.kube.server.accept_loop import AcceptLoop
from zonewise.kube.server.connections import Connections

if TYPE_CHECKING:
    from aiohttp import web

_SHUTDOWN_SECONDS: Final = 1.0
_BACKLOG: Final = 1024


def is_loopback(address: str) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return address == "localhost"
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return (mapped or parsed).is_loopback


class Listener:
    """Listening sockets of one server, in use until closed."""

    def __init__(self, accept_loops: Sequence[AcceptLoop]) -> None:
        self._accept_loops = accept_loops

    @property
    def port(self) -> int:
        return self._accept_loops[0].port

    def close(self) -> None:
        for accept_loop in self._accept_loops:
            accept_loop.close()


async def listen_for(server: LazyHttpServer, host: str | None, port: int, tls: ssl.SSLContext | None) -> Listener:
    """As `listen`, for a server that is loaded with the first connection."""
    sockets = await _sockets(server.name, host, port)
    return Listener([AcceptLoop(sock, server.connections, server.connection, tls) for sock in sockets])


async def listen(
    runner: web.AppRunner, connections: Connections, host: str | None, port: int, tls: ssl.SSLContext | None
) -> int:
    """The port, which is a free one for 0. Without a host, or if it is empty, all addresses are listened on.

    The runner closes what was opened.
    """
    from zonewise.kube.server.site import AcceptSite  # noqa: PLC0415 - imports aiohttp, as the caller has already

    assert runner.server is not None, "the runner is not set up"
    sockets = await _sockets(connections.server, host, port)
    accept_loops = [AcceptLoop(sock, connections, runner.server, tls) for sock in sockets]
    for accept_loop in accept_loops:
        await AcceptSite(runner, accept_loop).start()
    return accept_loops[0].port


async def _sockets(what: str, host: str | None, port: int) -> list[socket.socket]:
    """`what` names the server when it can't be had."""
    opened: list[socket.socket] = []
    try:
        if not host:
            return [_socket_on_all_addresses(port)]
        for family, address in await _resolve(host, port):
            opened.append(socket.create_server(address, family=family, backlog=_BACKLOG))  # for IPv6, of IPv6 only
    except OSError as error:
        for sock in opened:
            sock.close()
        raise ZonewiseError(f"{what}: {error.strerror}; choose a free address and port") from error
    return opened


async def _resolve(host: str, port: int) -> list[tuple[int, Any]]:
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys((family, address) for family, _, _, _, address in infos))


def _socket_on_all_addresses(port: int) -> socket.socket:
    """One socket for both families, so that port 0 is the same port in both. A machine may be without IPv6."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=_BACKLOG)


class LazyHttpServer:
    """The HTTP server is imported with the first request, so that it does not delay the start of the process."""

    def __init__(self, name: str, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        self.name = name
        self.connections = Connections(name)
        self._answer = answer
        self._server: web.Server | None = None

    def connection(self) -> asyncio.Protocol:
        if self._server is None:
            from aiohttp import web  # noqa: PLC0415 - with the first request

            self._server = web.Server(self._handle, access_log=None, keepalive_timeout=IDLE_SECONDS)
        return self._server()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.connections.renew(request)
        try:
            return await self._answer(request)
        finally:
            self.connections.renew(request)

    async def close(self) -> None:
        if self._server is not None:
            await self._server.shutdown(_SHUTDOWN_SECONDS)
