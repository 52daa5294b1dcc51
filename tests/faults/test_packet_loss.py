"""One packet in five lost each way between two zones: requests through a Service take longer, and none is lost."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import pairwise

import pytest

from faults.proxy_setup import FAR, ProxySetup
from network.proxy.node import NodeNet
from support.fault_report import Report
from support.waiting import eventually
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.network import namespaces
from zonewise.objects import ENDPOINT_SLICES

pytestmark = [pytest.mark.xdist_group("proxy-faults"), pytest.mark.timeout(1800)]

LONG = os.environ.get("ZONEWISE_FAULTS") == "long"
CLIENTS, REQUESTS = (40, 250) if LONG else (12, 10)
LOSS_PERCENT = 20
PORT = 7070
_LOSS = f"numgen random mod 100 < {LOSS_PERCENT} counter drop"
_TABLE = f"""
table inet loss {{
  chain forward {{
    type filter hook forward priority 0
    oifname "far" {_LOSS}
    iifname "far" {_LOSS}
  }}
}}
"""


@contextmanager
def packets_lost(node_net: NodeNet) -> Iterator[None]:
    """On the link between the node and the far zone. Both ways must have dropped some."""
    namespaces.run(namespaces.command(node_net.netns("node"), ["nft", "-f", "-"]), _TABLE)
    try:
        yield
        rules = [line for line in node_net.nft("list", "table", "inet", "loss").splitlines() if "counter" in line]
        dropped = [int(rule.split("packets ")[1].split()[0]) for rule in rules]
        assert len(dropped) == 2
        assert min(dropped) > 0
    finally:
        node_net.nft("delete", "table", "inet", "loss")


@asynccontextmanager
async def echo_servers(node_net: NodeNet) -> AsyncIterator[None]:
    """One at each address in the far zone."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(line)
        finally:
            writer.close()

    servers = []
    for address in FAR:
        listener = namespaces.inside(node_net.netns("far"), lambda own=address: socket.create_server((own, PORT)))
        servers.append(await asyncio.start_server(echo, sock=listener))
    try:
        yield
    finally:
        for server in servers:
            server.close()


async def ask(node_net: NodeNet, address: str, client: int, answered: list[float]) -> None:
    """A connection through the Service, and one request after the other on it."""
    sock = namespaces.inside(node_net.netns("out"), socket.socket)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, (address, 80))
    except BaseException:
        sock.close()
        raise
    reader, writer = await asyncio.open_connection(sock=sock)
    try:
        for number in range(REQUESTS):
            line = f"{client} {number}\n".encode()
            writer.write(line)
            assert await reader.readline() == line
            answered.append(time.monotonic())
    finally:
        writer.close()


async def test_no_request_through_a_service_is_lost_with_its_packets(setup: ProxySetup, report: Report) -> None:
    address = await setup.serve("lossy", FAR)
    ports = MergePatch({"ports": [{"name": "main", "port": PORT}]})
    await setup.client.patch(ENDPOINT_SLICES, "lossy-hand", ports, setup.namespace)
    answered: list[list[float]] = [[] for _ in range(CLIENTS)]
    async with echo_servers(setup.node_net):
        await eventually(lambda: asyncio.to_thread(echoes, setup.node_net, address), "the proxy serves it")
        began = time.monotonic()
        with packets_lost(setup.node_net):
            async with asyncio.TaskGroup() as group:
                for client, times in enumerate(answered):
                    group.create_task(ask(setup.node_net, address, client, times))
    assert [len(times) for times in answered] == [REQUESTS] * CLIENTS
    gap = max(later - before for times in answered for before, later in pairwise([began, *times]))
    row = {"component": "proxy", "fault": f"{LOSS_PERCENT} % of packets lost between zones, each way"}
    report(**row, rounds=CLIENTS, requests=CLIENTS * REQUESTS, what="requests", gap_seconds=gap)


def echoes(node_net: NodeNet, address: str) -> bool:
    """Whether the proxy has the last port of the slice: at its first one other servers answer."""

    def exchange() -> bool:
        try:
            with socket.create_connection((address, 80), 5) as client:
                client.sendall(b"ready?\n")
                return client.recv(100) == b"ready?\n"
        except OSError:
            return False

    return namespaces.inside(node_net.netns("out"), exchange)
