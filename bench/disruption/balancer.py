"""A round-robin TCP balancer: one address for several webhooks, as a Service.

python -m bench.disruption.balancer PORT BACKEND_PORT...
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import cast

import uvloop


class _Side(asyncio.Protocol):
    """One side of a connection; data is forwarded to the other side."""

    def __init__(self, other: _Side | None = None) -> None:
        self.other = other
        self.transport: asyncio.Transport | None = None
        self.buffered: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        for data in self.buffered:
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self.other is not None:
            self.other.send(data)

    def send(self, data: bytes) -> None:
        if self.transport is None:
            self.buffered.append(data)
        else:
            self.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()


class _ClientSide(_Side):
    def __init__(self, ports: itertools.cycle[int]) -> None:
        super().__init__()
        self._port = next(ports)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.other = _Side(self)
        loop = asyncio.get_running_loop()
        self.connecting = loop.create_task(self._connect(loop))

    async def _connect(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self.other is not None
        assert self.transport is not None
        back = self.other
        try:
            await loop.create_connection(lambda: back, "127.0.0.1", self._port)
        except OSError:
            self.transport.close()


async def serve(port: int, backends: list[int]) -> None:
    ports = itertools.cycle(backends)
    server = await asyncio.get_running_loop().create_server(lambda: _ClientSide(ports), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), [int(argument) for argument in sys.argv[2:]]))
