"""Fault-injecting TCP proxy between a client and an API server.

TLS passes through untouched, so the client sees the server's own certificate, which names 127.0.0.1: only the port in
the kubeconfig differs.

    async with FaultProxy(cluster.server) as proxy:
        client = await Client.connect(proxy.kubeconfig(cluster.kubeconfig, tmp_path))
        proxy.reset()           # every open connection gets a TCP reset
        proxy.reset_after(9000) # 9,000 more bytes reach the client, then the connection that carries them is reset, once
        proxy.go_silent()       # connections stay open, also new ones; no byte and no FIN passes
        proxy.delay(0.2)        # every chunk waits
        await proxy.refuse()    # the listener closes; open connections are reset
        await proxy.heal()      # faults end; held-back bytes are delivered
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import yaml

CHUNK_BYTES = 2**16
_TURNS_OF_AN_ACCEPT = 5
"""Of the loop. `_accept` resets what was accepted just before the listener closed three turns later; sockets close in one more."""


class FaultProxy:
    def __init__(self, server: str, listen: Callable[[int], socket.socket] | None = None) -> None:
        """`listen` opens the port (0 for any), possibly in another network namespace."""
        address = urlsplit(server)
        self._listen = listen or (lambda port: socket.create_server(("127.0.0.1", port)))
        self._target = (address.hostname, address.port)
        self._listener: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._delay_seconds = 0.0
        self._bytes_until_reset: int | None = None
        self.port = 0
        self.accepted = 0
        """Number of accepted connections."""

    async def __aenter__(self) -> Self:
        await self.heal()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()

    def kubeconfig(self, original: Path, directory: Path) -> Path:
        """Copy of `original` that uses this proxy."""
        config = yaml.safe_load(original.read_text())
        for entry in config["clusters"]:
            host = urlsplit(entry["cluster"]["server"]).hostname
            entry["cluster"]["server"] = f"https://{host}:{self.port}"
        path = directory / f"through-{self.port}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    def reset(self) -> None:
        for connection in self._connections:
            connection.cancel()

    def reset_after(self, count: int) -> None:
        self._bytes_until_reset = count

    def go_silent(self) -> None:
        self._flowing.clear()

    def delay(self, seconds: float) -> None:
        self._delay_seconds = seconds

    async def refuse(self) -> None:
        if self._listener is not None:
            self._listener.close()
            await self._listener.wait_closed()
            self._listener = None
        self.reset()
        await asyncio.gather(*self._connections, return_exceptions=True)
        for _ in range(_TURNS_OF_AN_ACCEPT):
            await asyncio.sleep(0)

    async def heal(self) -> None:
        self._flowing.set()
        self._delay_seconds = 0.0
        self._bytes_until_reset = None
        if self._listener is None:
            self._listener = await asyncio.start_server(self._accept, sock=self._listen(self.port))
            self.port = self._listener.sockets[0].getsockname()[1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._listener is None:  # it was in the backlog when the listener closed
            _reset(writer)
            return
        self.accepted += 1
        connection = asyncio.create_task(self._carry(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)
        connection.add_done_callback(lambda _: _reset(writer))  # also when it was cancelled before its first step

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flowing.wait()
        with suppress(OSError):
            server_reader, server_writer = await asyncio.open_connection(*self._target)
            try:
                await self._exchange(reader, writer, server_reader, server_writer)
            finally:
                _reset(server_writer)

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        """Forward until both sides have closed; if one is reset, reset the other."""
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, server_writer))
                pumps.create_task(self._pump(server_reader, writer, to_client=True))
        except* OSError:
            pass
        else:
            for ended in (writer, server_writer):
                ended.close()
                await ended.wait_closed()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_client: bool = False
    ) -> None:
        """Forward until EOF, and forward the EOF."""
        while chunk := await reader.read(CHUNK_BYTES):
            await self._flowing.wait()
            await asyncio.sleep(self._delay_seconds)
            writer.write(self._until_reset(chunk) if to_client else chunk)
            await writer.drain()
            if to_client and self._bytes_until_reset == 0:
                self._bytes_until_reset = None
                raise ConnectionResetError("reset_after")
        await self._flowing.wait()
        writer.write_eof()

    def _until_reset(self, chunk: bytes) -> bytes:
        if self._bytes_until_reset is None:
            return chunk
        passing = chunk[: self._bytes_until_reset]
        self._bytes_until_reset -= len(passing)
        return passing


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a TCP reset instead of a FIN: see SO_LINGER in socket(7)."""
    if not writer.transport.is_closing():
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
