"""Idle connections at our servers over real sockets: strangers without a request, and many of them."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import inspect
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop

from support.process import wait_for
from support.waiting import eventually
from zonewise import descriptors
from zonewise.kube.decide import connection_pool
from zonewise.kube.server import health
from zonewise.kube.server.admission import AdmissionServer
from zonewise.kube.server.certificates import Authority
from zonewise.kube.server.health import Health
from zonewise.kube.server.tls import load_pem, server_context

HOST = "127.0.0.1"
KEY = "5" * 64
IDLE = 1500
DESCRIPTORS = 1024
PROGRAMS = Path(__file__).parents[2] / "support/programs"
REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {"uid": "u", "operation": "CREATE", "name": "x", "object": {"metadata": {"name": "x"}}},
}
AUTHORITY = Authority.create(dt.datetime.now(dt.UTC), dt.timedelta(days=1))
TRUSTING = ssl.create_default_context(cadata=AUTHORITY.certificate_pem.decode())
Opened = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """uvloop is production's; it accepts, wraps and closes sockets in ways of its own."""

    @functools.wraps(test)
    def run(*, new_loop: Callable[[], asyncio.AbstractEventLoop], **fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(test(**fixtures))

    parameters = [
        *inspect.signature(test).parameters.values(),
        inspect.Parameter("new_loop", inspect.Parameter.KEYWORD_ONLY),
    ]
    run.__dict__["__signature__"] = inspect.Signature(parameters)
    loops = [uvloop.new_event_loop, asyncio.new_event_loop]
    return pytest.mark.parametrize("new_loop", loops, ids=["uvloop", "asyncio"])(run)


def certificate() -> bytes:
    leaf = AUTHORITY.issue([HOST], dt.datetime.now(dt.UTC), dt.timedelta(days=1))
    return leaf.certificate_pem + leaf.key_pem


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if descriptors.raise_limit() < 2 * IDLE:
        pytest.skip("too few descriptors for the flood")
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def with_tls(port: int) -> Opened:
    return await asyncio.open_connection(HOST, port, ssl=TRUSTING)


async def without_tls(port: int) -> Opened:
    """Of a TLS server: its handshake never begins."""
    return await asyncio.open_connection(HOST, port)


async def half_a_request(port: int) -> Opened:
    reader, writer = await with_tls(port)
    writer.write(b"POST /at-once/%b HTTP/1.1\r\nHost: x\r\n" % KEY.encode())
    await writer.drain()
    return reader, writer


async def is_ended(opened: Opened) -> bool:
    reader, writer = opened
    try:
        async with asyncio.timeout(30):
            return await reader.read() == b""
    except ConnectionError:
        return True
    finally:
        await drop(writer)


async def drop(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


def admission_server() -> AdmissionServer:
    context = server_context()
    load_pem(context, certificate())
    return AdmissionServer([], context, KEY.__eq__, host=HOST, port=0)


@on_both_loops
@pytest.mark.parametrize("connect", [with_tls, without_tls, half_a_request])
async def test_admission_server_ends_connections_without_a_request(
    monkeypatch: pytest.MonkeyPatch, connect: Callable[[int], Awaitable[Opened]]
) -> None:
    monkeypatch.setattr(connection_pool, "FIRST_REQUEST_SECONDS", 0.5)
    async with admission_server() as server:
        assert await is_ended(await connect(server.port))


@on_both_loops
@pytest.mark.parametrize("connect", [with_tls, without_tls])
async def test_oldest_of_too_many_connections_is_closed(
    monkeypatch: pytest.MonkeyPatch, connect: Callable[[int], Awaitable[Opened]]
) -> None:
    monkeypatch.setattr(descriptors, "limit", lambda: 16)  # so four connections are kept
    async with admission_server() as server:
        opened = [await connect(server.port) for _ in range(6)]
        assert [await is_ended(one) for one in opened[:2]] == [True, True]
        await asyncio.sleep(0.2)
        assert not any(reader.at_eof() for reader, _ in opened[2:])
        for _, writer in opened:
            await drop(writer)


@on_both_loops
async def test_stopping_server_ends_handshakes_under_way() -> None:
    async with admission_server() as server:
        silent = await without_tls(server.port)
        await drop((await with_tls(server.port))[1])  # the silent one was accepted before it
    assert await is_ended(silent)


@on_both_loops
async def test_accepting_pauses_while_descriptors_are_used_up(capsys: pytest.CaptureFixture[str]) -> None:
    async with health.serve(Health(), HOST) as port:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        with socket.socket() as client:
            client.setblocking(False)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free_descriptor(), before[1]))
            try:
                await asyncio.get_running_loop().sock_connect(client, (HOST, port))
                started = time.monotonic()
                await asyncio.sleep(0.3)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
            attempts = 1 + int(time.monotonic() - started)
            assert 1 <= capsys.readouterr().out.count("connection not accepted, retrying") <= attempts
            reader, writer = await asyncio.open_connection(sock=client)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            async with asyncio.timeout(30):
                assert b"200" in await reader.readline()
            await drop(writer)


def lowest_free_descriptor() -> int:
    descriptor = os.dup(0)
    os.close(descriptor)
    return descriptor


@on_both_loops
async def test_health_server_ends_idle_connections_and_keeps_used_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    async with health.serve(Health(), HOST) as port:
        used = await asyncio.open_connection(HOST, port)
        used[1].write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200" in await used[0].readline()
        monkeypatch.setattr(connection_pool, "FIRST_REQUEST_SECONDS", 0.5)
        assert await is_ended(await asyncio.open_connection(HOST, port))
        used[1].write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
        async with asyncio.timeout(30):
            assert b"200" in await used[0].readuntil(b"HTTP/1.1 200")
        await drop(used[1])


def test_admission_server_may_open_all_descriptors_it_is_allowed() -> None:
    code = (
        "import resource; from zonewise.kube.server.admission import AdmissionServer; import ssl\n"
        "_, hard = resource.getrlimit(resource.RLIMIT_NOFILE); resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))\n"
        "AdmissionServer([], ssl.create_default_context(), bool, port=0)\n"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def open_files(process: subprocess.Popen[bytes]) -> int:
    return sum(1 for _ in Path(f"/proc/{process.pid}/fd").iterdir())


def port_in(log: Path) -> int:
    return next((int(line) for line in log.read_text().splitlines() if line.isdigit()), 0)


@contextmanager
def limited_server(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """In a process whose administrator allows no more descriptors than programs get by default."""
    (folder / "pem").write_bytes(certificate())
    command = [PROGRAMS / "limited.py", DESCRIPTORS, PROGRAMS / "admission.py", folder / "pem", KEY]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *map(str, command)], stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
        )
    with process:
        try:
            wait_for(lambda: port_in(folder / "log"))
            yield process, port_in(folder / "log")
        finally:
            process.terminate()


async def post_review(port: int) -> bool:
    connector = aiohttp.TCPConnector(ssl=TRUSTING, force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(f"https://{HOST}:{port}/at-once/{KEY}", json=REVIEW) as answer,
    ):
        allowed: bool = (await answer.json())["response"]["allowed"]
        return allowed


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("many_descriptors")
async def test_caller_is_served_beside_more_idle_connections_than_descriptors(tmp_path: Path) -> None:
    """All come from the caller's address, as behind NAT."""
    started = time.monotonic()
    with limited_server(tmp_path) as (process, port):
        opened = [await (without_tls if index % 2 else with_tls)(port) for index in range(IDLE)]
        assert [await post_review(port) for _ in range(3)] == [True] * 3
        await eventually(lambda: open_files(process) < DESCRIPTORS * 3 // 4, "surplus connections are closed")
        for _, writer in opened:
            await drop(writer)
    log = (tmp_path / "log").read_text()
    minutes = (time.monotonic() - started) // 60
    assert 1 <= log.count("too many idle connections") <= 1 + minutes, log[-2000:]
    assert "connection not accepted" not in log
