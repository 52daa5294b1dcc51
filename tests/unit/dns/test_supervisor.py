"""Supervision of real worker processes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import dns.message
import pytest

from support.dns.cluster import FakeCluster, endpoint, headless, slice_of
from support.waiting import PATIENCE_SECONDS, eventually
from zonewise.dns.server import supervisor
from zonewise.dns.server.forkclient import start_fork_server
from zonewise.dns.server.sockets import open_sockets
from zonewise.dns.server.supervisor import Supervisor
from zonewise.dns.wire.ipc import Update, WorkerConfig


def worker_pid(fork_server: int, name: str) -> int | None:
    children = Path(f"/proc/{fork_server}/task/{fork_server}/children").read_text().split()
    return next((int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == name), None)


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def test_hanging_worker_is_replaced_and_its_queue_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "SILENCE_SECONDS", 1.0)
    cluster = FakeCluster()
    cluster.put(headless("h"), slice_of("h", [endpoint("10.0.11.7", "zone-a-1")]))
    sockets = open_sockets(("127.0.0.1",), 0, 1)

    def snapshot() -> Iterator[Update]:
        yield from cluster.zone.snapshot()
        yield ("loaded",)

    fork_server = start_fork_server()
    workers = Supervisor(sockets, WorkerConfig(cluster.table.domain), snapshot, lambda _report: None, fork_server)
    running = asyncio.create_task(workers.run())
    try:
        await eventually(lambda: workers.unready_reason is None)
        hanging = worker_pid(fork_server.pid, "dns-udp-1")
        assert hanging is not None
        os.kill(hanging, signal.SIGSTOP)
        await eventually(lambda: is_stopped(hanging), "otherwise it may still take the query")
        query = dns.message.make_query("h.shop.svc.cluster.local", "A")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.setblocking(False)
            client.connect(("127.0.0.1", sockets.port))
            client.send(query.to_wire())
            async with asyncio.timeout(PATIENCE_SECONDS):
                reply = await asyncio.get_running_loop().sock_recv(client, 2048)
        assert dns.message.from_wire(reply).answer[0][0].to_text() == "10.0.11.7"
        assert worker_pid(fork_server.pid, "dns-udp-1") != hanging
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        sockets.close()
