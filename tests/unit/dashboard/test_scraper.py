"""Counters are read whole, however they come, and a node that does not answer is said to."""

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
from zonewise.kube.server.listening import listen
from zonewise.objects import Key, Node

LINES = 3_000


def nodes(*addresses: str) -> list[Node]:
    return [msgspec.convert(node(f"node-{at}", "a", address=found), Node) for at, found in enumerate(addresses)]


def test_nodes_that_share_an_address_share_a_proxy() -> None:
    assert internal_addresses(nodes("127.0.0.1", "127.0.0.1", "", "127.0.0.2")) == {"127.0.0.1", "127.0.0.2"}


async def test_where_no_node_answers_the_proxies_are_asked_another_way() -> None:
    looks = 0

    async def through() -> MeasuredTraffic:
        nonlocal looks
        looks += 1
        path = TrafficPath(Key("shop", "web"), "a", "a")
        return (
            MeasuredTraffic({"node-0": {path: 1000.0 + looks}}, proxies=2, problem="one is away")
            if looks > 1
            else MeasuredTraffic()
        )

    board = LiveState({})
    scraping = asyncio.create_task(Scraper(nodes("127.0.0.9"), 1, board, 0.01, through).run())
    try:
        await eventually(lambda: "proxies" in board.tables)
        row = board.tables["proxies"]["all"]
        assert isinstance(row, ProxiesRow)
        assert row.trouble == "127.0.0.9:1 can't be reached; through the API server: no Zonewise proxy runs"
        await eventually(lambda: any("shop/web" in one.services for one in board.history.recent))
    finally:
        scraping.cancel()
        await asyncio.gather(scraping, return_exceptions=True)
    carried = [one.services["shop/web"] for one in board.history.recent if "shop/web" in one.services]
    assert set(carried) == {(1, 0)}, "what it counted before we came is not ours"
    assert board.tables["proxies"]["all"] == ProxiesRow(nodes=2, answering=1, trouble="one is away")


async def test_long_answers_are_read_to_their_end() -> None:
    counted = 0

    async def metrics(_request: web.Request) -> web.Response:
        nonlocal counted
        counted += 1
        labels = 'namespace="shop",client_zone="a",endpoint_zone="a"'
        lines = [f'zonewise_proxy_bytes_total{{{labels},service="s{at}"}} {counted}.0' for at in range(LINES)]
        return web.Response(text="\n".join(lines) + "\n")

    application = web.Application()
    application.add_routes([web.get("/metrics", metrics)])
    board = LiveState({})
    async with serve(application) as runner:
        port = await listen(runner, "a proxy", "127.0.0.1", 0, None)
        scraping = asyncio.create_task(Scraper(nodes("127.0.0.1", "127.0.0.9"), port, board, 0.01).run())
        await eventually(lambda: any(f"shop/s{LINES - 1}" in one.services for one in board.history.recent))
        scraping.cancel()
        await asyncio.gather(scraping, return_exceptions=True)
    row = board.tables["proxies"]["all"]
    assert isinstance(row, ProxiesRow)
    assert (row.nodes, row.answering) == (2, 1)
    assert row.trouble == f"127.0.0.9:{port} can't be reached"
