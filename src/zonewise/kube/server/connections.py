"""Connections of our HTTP servers, counted from the moment they are accepted, before any TLS handshake.

Strangers reach these ports, and an idle connection costs a descriptor. `zonewise.kube.decide.connection_pool` says which
connections are closed; servers tell it of requests, and of clients that have proved who they are.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from zonewise import descriptors
from zonewise.kube.decide.connection_pool import MAX_ON_PROBATION, ConnectionKey, ConnectionPool
from zonewise.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp import web

_SWEEP_SECONDS: Final = 1.0
_REPORT_SECONDS: Final = 60.0

_log = get_logger(__name__)


class Connections:
    """Of one server, on all its listening sockets."""

    def __init__(self, server: str) -> None:
        self.server = server
        self._limit = min(MAX_ON_PROBATION, descriptors.limit() // 4)
        self._pool = ConnectionPool(self._limit)
        self._open: dict[ConnectionKey, Connection] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = 0
        self._reported_at = float("-inf")

    def renew(self, request: web.BaseRequest) -> None:
        self._pool.renew(_key_of(request), _now())

    def prove(self, request: web.BaseRequest) -> None:
        """The client of this request may keep its connection, beside any number of others."""
        self._pool.prove(_key_of(request))

    def middleware(self) -> Callable[..., Awaitable[web.StreamResponse]]:
        """Renews the connection of each request of an application."""
        from aiohttp import web  # noqa: PLC0415 - loaded already by the caller, who makes an application

        @web.middleware
        async def renew(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            self.renew(request)
            try:
                return await handler(request)
            finally:
                self.renew(request)

        return renew

    def accept(self, accepted: socket.socket, address: Any) -> Connection:
        connection = Connection(self, accepted, address)
        self._open[connection.key] = connection
        surplus = self._pool.add(connection.key, _now())
        if surplus is not None:
            self._end(surplus)
            self._report(surplus.address)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(_SWEEP_SECONDS, self._close_expired)
        return connection

    def forget(self, connection: Connection) -> None:
        if self._open.get(connection.key) is connection:
            del self._open[connection.key]
            self._pool.remove(connection.key)

    def _close_expired(self) -> None:
        for key in self._pool.expired(_now()):
            self._end(key)
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(_SWEEP_SECONDS, self._close_expired) if len(self._pool) else None

    def _end(self, key: ConnectionKey) -> None:
        connection = self._open.pop(key, None)
        if connection is not None:
            connection.end()

    def _report(self, address: str) -> None:
        self._closed += 1
        if _now() - self._reported_at >= _REPORT_SECONDS:
            _log.warning(
                "too many idle connections, oldest closed",
                server=self.server,
                limit=self._limit,
                closed=self._closed,
                last=address,
            )
            self._reported_at, self._closed = _now(), 0


class Connection(socket.socket):
    """An accepted socket. It is open until the event loop gives it up: asyncio closes, uvloop detaches it."""

    def __init__(self, connections: Connections, accepted: socket.socket, address: Any) -> None:
        self.key = _key(address, accepted.getsockname())
        super().__init__(accepted.family, accepted.type, accepted.proto, accepted.detach())
        self._connections = connections

    def end(self) -> None:
        """The event loop reads the end, whether it waits for TLS, for a request or for a client's answer to a close."""
        with suppress(OSError):
            self.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connections.forget(self)
        super().close()

    def detach(self) -> int:
        self._connections.forget(self)
        return super().detach()


def _key_of(request: web.BaseRequest) -> ConnectionKey:
    return _key(request.get_extra_info("peername"), request.get_extra_info("sockname"))


def _key(peer: Any, own: Any) -> ConnectionKey:
    return ConnectionKey(*(peer or ("", 0))[:2], *(own or ("", 0))[:2])


def _now() -> float:
    return asyncio.get_running_loop().time()
