"""Listening sockets of our HTTP servers. "All addresses" means IPv4 and IPv6."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from ipaddress import IPv6Address, ip_address
from typing import TYPE_CHECKING, Final

from zonewise.errors import ZonewiseError

if TYPE_CHECKING:
    from aiohttp import web

_SHUTDOWN_SECONDS: Final = 1.0


def is_loopback(address: str) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return address == "localhost"
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return (mapped or parsed).is_loopback


async def listen_for(
    protocol: Callable[[], asyncio.Protocol], what: str, host: str | None, port: int, tls: ssl.SSLContext | None
) -> asyncio.Server:
    """As `listen`, for a server that is loaded with the first connection."""
    loop = asyncio.get_running_loop()
    try:
        if host:
            return await loop.create_server(protocol, host, port, ssl=tls)
        return await loop.create_server(protocol, sock=_socket_on_all_addresses(port), ssl=tls)
    except OSError as error:
        raise ZonewiseError(f"{what}: {error.strerror}; choose a free address and port") from error


async def listen(runner: web.AppRunner, what: str, host: str | None, port: int, tls: ssl.SSLContext | None) -> int:
    """The port, which is a free one for 0. Without a host, or if it is empty, all addresses are listened on.

    `what` names the server when it can't be had. The runner closes what was opened.
    """
    try:
        await _site(runner, host, port, tls).start()
    except OSError as error:
        raise ZonewiseError(f"{what}: {error.strerror}; choose a free address and port") from error
    return int(runner.addresses[0][1])


def _site(runner: web.AppRunner, host: str | None, port: int, tls: ssl.SSLContext | None) -> web.BaseSite:
    from aiohttp import web  # noqa: PLC0415 - loaded already by the caller, who made the runner

    if host:
        return web.TCPSite(runner, host, port, ssl_context=tls)
    return web.SockSite(runner, _socket_on_all_addresses(port), ssl_context=tls)


def _socket_on_all_addresses(port: int) -> socket.socket:
    """One socket for both families, so that port 0 is the same port in both. A machine may be without IPv6."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=128, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=128)


class LazyHttpServer:
    """The HTTP server is imported with the first request, so that it does not delay the start of the process."""

    def __init__(self, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        self._answer = answer
        self._server: web.Server | None = None

    def connection(self) -> asyncio.Protocol:
        if self._server is None:
            from aiohttp import web  # noqa: PLC0415 - with the first request

            self._server = web.Server(self._answer, access_log=None)
        return self._server()

    async def close(self) -> None:
        if self._server is not None:
            await self._server.shutdown(_SHUTDOWN_SECONDS)
