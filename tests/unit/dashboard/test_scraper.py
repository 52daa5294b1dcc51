"""The scraper: complete replies, silent nodes, and scraping through the API server."""

from __future__ import annotations

import asyncio

import msgspec
from aiohttp import web

from support.dashboard.cluster import node
from support.waiting import eventually
from zonewise.dashboard.decide.rows import ProxiesRow
from zonewise.dashboard.live_state import LiveState
from zonewise.dashboard.scraper import Scraper, internal_addresses
from zonewise.dashboard.server import serve
from zonewise.diagnostics.decide.status.traffic import MeasuredTraffic, TrafficPath
from zonewise.kube.server.connections import Connections
from zonewise.kube.server.listening import listen
from zonewise.objects import Key, Node

LINES = 3_000


def nodes(*addresses: str) -> list[Node]:
    return [msgspec.convert(node(f"node-{at}", "a", address=address), Node) for at, address in enumerate(addresses)]


def test_nodes_that_share_an_address_share_a_proxy() -> None:
    assert internal_addresses(nodes("127.0.0.1", "127.0.0.1", "", "127.0.0.2")) == {"127.0.0.1", "127.0.0.2"}


async def test_silent_nodes_are_scraped_through_the_api_server() -> None:
    calls = 0

    async def through_api_server() -> MeasuredTraffic:
        nonlocal calls
        calls += 1
        path = TrafficPath(Key("shop", "web"), "a", "a")
        return (
            MeasuredTraffic({"node-0": {path: 1000.0 + calls}}, proxies=2, problem="one is away")
            if calls > 1
            else MeasuredTraffic()
        )

    state = LiveState({})
    scraping = asyncio.create_task(Scraper(nodes("127.0.0.9"), 1, state, 0.01, through_api_server).run())
    try:
        await eventually(lambda: "proxies" in state.tables)
        row = state.tables["proxies"]["all"]
        assert isinstance(row, ProxiesRow)
        assert row.trouble == "127.0.0.9:1 can't be reached; through the API server: no Zonewise proxy runs"
        await eventually(lambda: any("shop/web" in sample.services for sample in state.history.recent))
    finally:
        scraping.cancel()
        await asyncio.gather(scraping, return_exceptions=True)
    samples = [sample.services["shop/web"] for sample in state.history.recent if "shop/web" in sample.services]
    assert set(samples) == {(1, 0)}, "the first counters are a baseline"
    assert state.tables["proxies"]["all"] == ProxiesRow(nodes=2, answering=1, trouble="one is away")


async def test_long_replies_are_read_completely() -> None:
    requests = 0

    async def metrics(_request: web.Request) -> web.Response:
        nonlocal requests
        requests += 1
        labels = 'namespace="shop",client_zone="a",endpoint_zone="a"'
        lines = [f'zonewise_proxy_bytes_total{{{labels},service="s{at}"}} {requests}.0' for at in range(LINES)]
        return web.Response(text="\n".join(lines) + "\n")

    application = web.Application()
    application.add_routes([web.get("/metrics", metrics)])
    state = LiveState({})
    async with serve(application) as runner:
        port = await listen(runner, Connections("a proxy"), "127.0.0.1", 0, None)
        scraping = asyncio.create_task(Scraper(nodes("127.0.0.1", "127.0.0.9"), port, state, 0.01).run())
        await eventually(lambda: any(f"shop/s{LINES - 1}" in sample.services for sample in state.history.recent))
        scraping.cancel()
        await asyncio.gather(scraping, return_exceptions=True)
    row = state.tables["proxies"]["all"]
    assert isinstance(row, ProxiesRow)
    assert (row.nodes, row.answering) == (2, 1)
    assert row.trouble == f"127.0.0.9:{port} can't be reached"
