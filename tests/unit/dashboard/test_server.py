"""The dashboard's server over HTTP: requests that must not block each other."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from support.dashboard.cluster import node, service, slice_of
from zonewise.dashboard import from_dump
from zonewise.dashboard import server as dashboard_server
from zonewise.dashboard.auth import LoopbackAuthenticator
from zonewise.dashboard.live_state import LiveState
from zonewise.dashboard.server import DashboardServer, serve
from zonewise.kube.decide import connection_pool
from zonewise.kube.server.listening import listen
from zonewise.planning.snapshot import ServiceSnapshot
from zonewise.routing import HintsForm

PATIENCE_SECONDS = 60.0


class BlockedServices(tuple[ServiceSnapshot, ...]):
    """Services whose iteration blocks until `released`."""

    __slots__ = ()
    entered = threading.Event()
    released = threading.Event()

    def __iter__(self) -> Iterator[ServiceSnapshot]:
        self.entered.set()
        self.released.wait(PATIENCE_SECONDS)
        return super().__iter__()


async def test_a_what_if_request_does_not_wait_for_a_simulation() -> None:
    homes = [("a-1", "a"), ("b-1", "b")]
    objects = [*(node(*home) for home in homes), service("cart", "shop"), slice_of("cart", "shop", homes)]
    data = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}).encode()
    state = LiveState({})
    snapshot = from_dump.publish_dump(from_dump.read_dump(data, "test"), state, HintsForm.STABLE)
    snapshots = iter([replace(snapshot, services=BlockedServices(snapshot.services)), snapshot])
    server = DashboardServer(state, lambda: next(snapshots), LoopbackAuthenticator())
    async with TestClient(TestServer(server.application())) as client:
        simulated = asyncio.create_task(client.get("/simulation"))
        try:
            assert await asyncio.to_thread(BlockedServices.entered.wait, PATIENCE_SECONDS)
            async with asyncio.timeout(PATIENCE_SECONDS / 2):
                assert (await client.post("/what-if", json={})).status == 200
            assert not simulated.done()
        finally:
            BlockedServices.released.set()
        assert (await simulated).status == 200


async def test_streams_of_viewers_outlive_idle_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FIRST_REQUEST_SECONDS", "IDLE_SECONDS"):
        monkeypatch.setattr(connection_pool, name, 0.5)
    monkeypatch.setattr(dashboard_server, "KEEP_ALIVE_SECONDS", 3.0)  # longer than others may be silent
    server = DashboardServer(LiveState({}), lambda: pytest.fail("no snapshot is read"), LoopbackAuthenticator())
    async with serve(server.application()) as runner:
        port = await listen(runner, server.connections, "127.0.0.1", 0, None)
        viewer, idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        viewer[1].write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert b"200" in await viewer[0].readline()
            assert await idle[0].read() == b""
            await viewer[0].readuntil(b"keep-alive\n")
            await viewer[0].readuntil(b"keep-alive\n")
        for _, writer in (viewer, idle):
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize("log_format", ["human", "json"])
def test_lines_of_a_dashboard_that_logs_json_are_json(tmp_path: Path, log_format: str) -> None:
    """The address is a line for people on stdout, or an event in the log."""
    (tmp_path / "dump.json").write_text(json.dumps({"kind": "List", "items": [node("a-1", "a")]}))
    command = [Path(sys.executable).with_name("zonewise"), "dashboard", "-f", tmp_path / "dump.json", "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*map(str, command), "--log-format", log_format], text=True, **pipes) as process:  # type: ignore[call-overload]
        first = process.stdout.readline() if log_format == "human" else _served(process.stderr)
        process.terminate()
        output, messages = process.communicate(timeout=PATIENCE_SECONDS)
    assert "http://127.0.0.1:" in first
    assert not output
    if log_format == "json":
        assert all(isinstance(json.loads(line), dict) for line in messages.splitlines())


def _served(lines: Iterable[str]) -> str:
    return next(line for line in lines if json.loads(line)["event"] == "dashboard served")
