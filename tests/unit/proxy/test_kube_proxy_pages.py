"""kube-proxy's pages, over real sockets on free ports."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import UTC, datetime

import aiohttp
import pytest
import structlog.testing

from support.waiting import eventually
from zonewise.proxy import kube_proxy_pages
from zonewise.proxy.decide.node_health import NodeHealth

STUCK = {"healthy": False, "eligible": True}
LEAVING = {"healthy": True, "eligible": False}
WELL = {"healthy": True, "eligible": True}


def free_port() -> int:
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    found = free_port(), free_port()
    monkeypatch.setattr(kube_proxy_pages, "HEALTH_PORT", found[0])
    monkeypatch.setattr(kube_proxy_pages, "STATUS_PORT", found[1])
    monkeypatch.setattr(kube_proxy_pages, "_RETRY_SECONDS", 0.05)
    return found


@pytest.fixture
async def state(ports: tuple[int, int]) -> AsyncIterator[dict[str, bool]]:
    facts = dict(WELL)
    serving = asyncio.create_task(kube_proxy_pages.serve(lambda now: NodeHealth(now, now, **facts)))
    yield facts
    serving.cancel()
    with suppress(asyncio.CancelledError):
        await serving


async def status(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status


async def answers(url: str) -> bool:
    with suppress(aiohttp.ClientError):
        return await status(url) > 0
    return False


async def test_pages_answer_as_those_of_kube_proxy(ports: tuple[int, int], state: dict[str, bool]) -> None:
    health, mode = f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}/proxyMode"
    await eventually(lambda: answers(f"{health}/healthz"), "the page is there")
    await eventually(lambda: answers(mode), "the other is there")
    for facts, codes in ((WELL, (200, 200)), (LEAVING, (503, 200)), (STUCK, (503, 503))):
        state.update(facts)
        assert (await status(f"{health}/healthz"), await status(f"{health}/livez")) == codes
    assert await status(f"{health}/metrics") == 404
    assert await status(f"http://127.0.0.1:{ports[1]}/healthz") == 404
    async with aiohttp.ClientSession() as session:
        body = await (await session.get(f"{health}/healthz")).json()
        assert datetime.fromisoformat(body["lastUpdated"]) <= datetime.now(UTC)
        assert await (await session.get(mode)).text() == "nftables"
        metrics = await (await session.get(f"http://127.0.0.1:{ports[1]}/metrics")).text()
        assert metrics.startswith("# HELP ")


async def test_port_of_a_running_kube_proxy_is_taken_over_when_it_ends(ports: tuple[int, int]) -> None:
    facts = dict(WELL)
    with structlog.testing.capture_logs() as lines:
        with socket.create_server(("", ports[0])):
            serving = asyncio.create_task(kube_proxy_pages.serve(lambda now: NodeHealth(now, now, **facts)))
            await asyncio.sleep(0.3)
        await eventually(lambda: answers(f"http://127.0.0.1:{ports[0]}/healthz"), "it serves the freed port")
    serving.cancel()
    taken = [line["port"] for line in lines if line["log_level"] == "warning"]
    assert taken == [ports[0]], "logged once"


async def test_pages_end_beside_an_idle_connection(ports: tuple[int, int]) -> None:
    serving = asyncio.create_task(kube_proxy_pages.serve(lambda now: NodeHealth(now, now, **WELL)))
    await eventually(lambda: answers(f"http://127.0.0.1:{ports[0]}/healthz"), "the pages are served")
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{ports[0]}/healthz") as response:
        await response.read()
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(serving, 30)
    assert not await answers(f"http://127.0.0.1:{ports[0]}/healthz")
