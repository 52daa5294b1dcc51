"""The serving processes as processes: one that hangs is replaced, and what was asked meanwhile is answered."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import dns.message
import pytest

from support.dns.cluster import World, endpoint, headless, slice_of
from support.waiting import PATIENCE_SECONDS, eventually
from zonewise.dns.decide.table import Update
from zonewise.dns.server import forkclient, supervisor
from zonewise.dns.server.sockets import open_sockets
from zonewise.dns.server.supervisor import Orders, Supervisor


def process(nursery: int, name: str) -> int | None:
    children = Path(f"/proc/{nursery}/task/{nursery}/children").read_text().split()
    return next((int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == name), None)


def has_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def test_one_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "SILENCE_SECONDS", 1.0)
    world = World()
    world.put(headless("h"), slice_of("h", [endpoint("10.0.11.7", "zone-a-1")]))
    doors = open_sockets(("127.0.0.1",), 0, 1)

    def snapshot() -> Iterator[Update]:
        yield from world.catalog.snapshot()
        yield ("loaded",)

    serving = Supervisor(doors, Orders(world.table.domain), snapshot, lambda _report: None, forkclient._start())
    nursery = serving._parent._born
    assert nursery is not None
    running = asyncio.create_task(serving.run())
    try:
        await eventually(lambda: serving.trouble is None)
        hanging = process(nursery.pid, "dns-udp-1")
        assert hanging is not None
        os.kill(hanging, signal.SIGSTOP)
        await eventually(lambda: has_stopped(hanging), "it takes no question along")
        query = dns.message.make_query("h.shop.svc.cluster.local", "A")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.setblocking(False)
            client.connect(("127.0.0.1", doors.port))
            client.send(query.to_wire())
            async with asyncio.timeout(PATIENCE_SECONDS):
                reply = await asyncio.get_running_loop().sock_recv(client, 2048)
        assert dns.message.from_wire(reply).answer[0][0].to_text() == "10.0.11.7"
        assert process(nursery.pid, "dns-udp-1") != hanging
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        doors.close()
