"""Opens the port of our HTTP servers, `health` and `admission`; on all addresses that means IPv4 and IPv6 alike."""

from __future__ import annotations

import socket
import ssl

from aiohttp import web

from zonewise.errors import ZonewiseError


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
    if host:
        return web.TCPSite(runner, host, port, ssl_context=tls)
    return web.SockSite(runner, _socket_on_all_addresses(port), ssl_context=tls)


def _socket_on_all_addresses(port: int) -> socket.socket:
    """One socket for both families, so that port 0 is the same port in both. A machine may be without IPv6."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=128, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=128)
