"""A client that does nothing but evict, over as many connections as are needed at once: it costs the measured machine little.

Requests are bytes made beforehand, and of the answers only their codes are read.
"""

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
        """So many beforehand: handshakes are no part of an eviction."""
        for _ in range(connections):
            self._idle.append(await self._connected())

    async def evict(self, name: str, namespace: str) -> int:
        """The code that it was answered with."""
        connection = self._idle.pop() if self._idle else await self._connected()
        code = await connection.ask(_request(name, namespace))
        self._idle.append(connection)
        return code

    async def _connected(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(_Connection, "127.0.0.1", self._port, ssl=self._context)
        return made


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
        self._answer: asyncio.Future[int] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionResetError("the server hung up"))

    async def ask(self, request: bytes) -> int:
        assert self._transport is not None
        if self._transport.is_closing():
            raise ConnectionResetError("the server hung up while nobody asked")
        self._received = b""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._answer is not None and not self._answer.done() and _is_whole(self._received):
            self._answer.set_result(int(self._received[9:12]))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    if not end:
        return False
    _, found, rest = head.lower().partition(b"\r\ncontent-length:")
    return len(body) >= int(rest.split(b"\r\n")[0]) if found else body.endswith(b"0\r\n\r\n")
