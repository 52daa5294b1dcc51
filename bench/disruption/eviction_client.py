"""A minimal eviction client with little CPU use: prepared request bytes, and only status codes are read."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Self, cast


class Evictor:
    """`async with Evictor(port, authority, certificate, key) as evictor: await evictor.evict(name, namespace)`."""

    def __init__(self, port: int, authority: Path, certificate: Path, key: Path) -> None:
        self._port = port
        self._context = ssl.create_default_context(cafile=str(authority))
        self._context.load_cert_chain(certificate, key)
        self._context.set_alpn_protocols(["http/1.1"])
        self._idle: list[_Connection] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._idle:
            connection.close()

    async def connect(self, connections: int) -> None:
        """Open connections in advance, so that handshakes are not measured."""
        for _ in range(connections):
            self._idle.append(await self._open())

    async def evict(self, name: str, namespace: str) -> int:
        """Returns the status code."""
        connection = self._idle.pop() if self._idle else await self._open()
        code = await connection.send(_request(name, namespace))
        self._idle.append(connection)
        return code

    async def _open(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, "127.0.0.1", self._port, ssl=self._context)
        return connection


def _request(name: str, namespace: str) -> bytes:
    body = f'{{"apiVersion":"policy/v1","kind":"Eviction","metadata":{{"name":"{name}","namespace":"{namespace}"}}}}'
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/eviction"
    headers = f"Host: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return f"POST {path} HTTP/1.1\r\n{headers}\r\n\r\n{body}".encode()


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._reply: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(error or ConnectionResetError("the server closed the connection"))

    async def send(self, request: bytes) -> int:
        assert self._transport is not None
        if self._transport.is_closing():
            raise ConnectionResetError("the server closed an idle connection")
        self._received = b""
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._reply

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._reply is not None and not self._reply.done() and _is_complete(self._received):
            self._reply.set_result(int(self._received[9:12]))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _is_complete(reply: bytes) -> bool:
    head, end, body = reply.partition(b"\r\n\r\n")
    if not end:
        return False
    _, has_length, rest = head.lower().partition(b"\r\ncontent-length:")
    return len(body) >= int(rest.split(b"\r\n")[0]) if has_length else body.endswith(b"0\r\n\r\n")
