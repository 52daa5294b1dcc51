"""Clients and servers in a network namespace, for proxy tests: the answering endpoint and the client address it sees.

python connect.py serve ADDRESS:PORT...      answers "ADDRESS PEER" to every TCP connection and UDP datagram
python connect.py ask < requests.json        sends all requests at once and prints the outcome of each attempt
python connect.py visit ADDRESS PORT         a new connection every few milliseconds until its input ends; prints the
                                             start in seconds and the outcome of each
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import sys
import time
from typing import Any

PATIENCE_SECONDS = 5.0
AT_ONCE = 200
PACE_SECONDS = 0.005


def family_of(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


async def serve(endpoints: list[str]) -> None:
    loop = asyncio.get_running_loop()
    for endpoint in endpoints:
        address, _, port = endpoint.rpartition(":")
        address = address or os.environ["POD_IP"]
        await asyncio.start_server(_greet, address, int(port), backlog=1024)
        await loop.create_datagram_endpoint(lambda own=address: _Datagrams(own), (address, int(port)))
    print("serving", flush=True)
    await asyncio.Event().wait()


async def _greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    own, peer = writer.get_extra_info("sockname")[0], writer.get_extra_info("peername")[0]
    writer.write(f"{own} {peer}".encode())
    await writer.drain()
    writer.close()


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, own: str) -> None:
        self._own = own

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport.sendto(f"{self._own} {addr[0]}".encode(), addr)


async def ask(requests: list[dict[str, Any]]) -> list[list[str]]:
    gate = asyncio.Semaphore(AT_ONCE)
    attempts_by_request = [[_once(gate, request) for _ in range(request.get("count", 1))] for request in requests]
    outcomes = await asyncio.gather(*(attempt for attempts in attempts_by_request for attempt in attempts))
    remaining = iter(outcomes)
    return [[next(remaining) for _ in attempts] for attempts in attempts_by_request]


async def _once(gate: asyncio.Semaphore, request: dict[str, Any]) -> str:
    """Answering endpoint and the client address it saw, or the failure: refused, silence, or the error's name."""
    async with gate:
        try:
            async with asyncio.timeout(request.get("patience_seconds", PATIENCE_SECONDS)):
                return await _exchange(request)
        except TimeoutError:
            return "silence"
        except OSError as error:
            return "refused" if error.errno == errno.ECONNREFUSED else errno.errorcode.get(error.errno or 0, "error")


async def _exchange(request: dict[str, Any]) -> str:
    loop = asyncio.get_running_loop()
    udp = request.get("protocol") == "UDP"
    with socket.socket(family_of(request["address"]), socket.SOCK_DGRAM if udp else socket.SOCK_STREAM) as client:
        client.setblocking(False)
        if source := request.get("source"):
            client.bind((source, request.get("source_port", 0)))
        await loop.sock_connect(client, (request["address"], request["port"]))
        if udp:
            await loop.sock_sendall(client, b"?")
        return (await loop.sock_recv(client, 200)).decode()


async def visit(address: str, port: int) -> list[tuple[float, str]]:
    loop = asyncio.get_running_loop()
    stdin_closed = loop.run_in_executor(None, sys.stdin.read)
    gate = asyncio.Semaphore(AT_ONCE)
    request = {"address": address, "port": port}
    attempts: list[tuple[float, asyncio.Task[str]]] = []
    while not stdin_closed.done():
        attempts.append((time.time(), asyncio.create_task(_once(gate, request))))
        await asyncio.sleep(PACE_SECONDS)
    return [(began, await outcome) for began, outcome in attempts]


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        asyncio.run(serve(sys.argv[2:]))
    elif sys.argv[1] == "visit":
        print(json.dumps(asyncio.run(visit(sys.argv[2], int(sys.argv[3])))))
    else:
        print(json.dumps(asyncio.run(ask(json.load(sys.stdin)))))
