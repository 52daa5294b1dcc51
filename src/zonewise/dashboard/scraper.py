"""Scraper of the node proxies' traffic counters: `/metrics` of each node, every few seconds.

Nodes that do not answer are retried with a growing delay. If none answers, as from outside the cluster's network, the
proxies are scraped through the API server, if that is allowed. A large cluster is scraped less often, so that scraping
takes a bounded share of a core.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import aiohttp
from yarl import URL

from zonewise.dashboard.decide.rows import ProxiesRow
from zonewise.dashboard.decide.traffic import DashboardTraffic
from zonewise.dashboard.live_state import LiveState
from zonewise.diagnostics.decide.status.traffic import METRIC, ByteCounters, MeasuredTraffic, parse_counters
from zonewise.kube.client.metrics_token import TokenSource
from zonewise.kube.server.listening import is_loopback
from zonewise.kube.wire.errors import ApiError
from zonewise.objects import Node
from zonewise.topology import zone_of

PERIOD_SECONDS: Final = 5.0
MAX_CPU_SHARE: Final = 0.05
MAX_CONCURRENT_SCRAPES: Final = 32
TIMEOUT_SECONDS: Final = 4.0
MAX_BACKOFF_SECONDS: Final = 120.0
API_SERVER_PERIODS: Final = 3
"""Scraping through the API server is rarer by this factor, to spare it."""
_MAX_BODY_BYTES: Final = 32 << 20


def internal_addresses(nodes: Iterable[Node]) -> set[str]:
    """The first internal address of each node. Nodes that share one share a proxy."""
    addresses = (
        next((address.address for address in node.status.addresses if address.type == "InternalIP"), "")
        for node in nodes
    )
    return {address for address in addresses if address}


Measure = Callable[[], Awaitable[MeasuredTraffic]]


class Scraper:
    def __init__(
        self,
        nodes: Iterable[Node],
        port: int,
        state: LiveState,
        period_seconds: float = PERIOD_SECONDS,
        through_api_server: Measure | None = None,
        token: TokenSource | None = None,
    ) -> None:
        """`nodes` is read afresh each time. `through_api_server` is used if no node answers."""
        self._token = token
        self._nodes = nodes
        self._port = port
        self._state = state
        self._period_seconds = period_seconds
        self._meter = DashboardTraffic()
        self._backoff_seconds: dict[str, float] = {}
        self._retry_at: dict[str, float] = {}
        self._problem = ""
        self._through_api_server = through_api_server
        self._api_server_backoff_seconds = 0.0
        self._api_server_retry_at = 0.0
        self._measured = MeasuredTraffic()

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        connector = aiohttp.TCPConnector(limit=MAX_CONCURRENT_SCRAPES)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            while True:
                started = time.thread_time()
                await self._scrape_all(session)
                spent_seconds = time.thread_time() - started
                await asyncio.sleep(max(self._period_seconds, spent_seconds / MAX_CPU_SHARE))

    async def _scrape_all(self, session: aiohttp.ClientSession) -> None:
        addresses, now = internal_addresses(self._nodes), time.monotonic()
        self._meter.retain(addresses | self._measured.by_node.keys())
        self._backoff_seconds = {
            address: seconds for address, seconds in self._backoff_seconds.items() if address in addresses
        }
        token = await self._token() if self._token else ""
        headers = {"Accept": "text/plain"} | ({"Authorization": f"Bearer {token}"} if token else {})
        due = [address for address in addresses if self._retry_at.get(address, 0.0) <= now]
        await asyncio.gather(*(self._scrape(session, address, headers) for address in due))
        answering = len(addresses) - sum(seconds > 0 for seconds in self._backoff_seconds.values())
        problem = self._problem if answering < len(addresses) else ""
        row = ProxiesRow(nodes=len(addresses), answering=answering, trouble=problem)
        if answering or self._through_api_server is None:
            self._measured = MeasuredTraffic()
            self._publish(row)
        elif self._api_server_retry_at <= now:
            self._publish(await self._scrape_through_api_server(self._through_api_server, row))

    def _publish(self, row: ProxiesRow) -> None:
        self._state.publish({"proxies": {"all": row}})
        if row.answering:
            zones = {zone for node in self._nodes if (zone := zone_of(node.metadata.labels))}
            self._state.publish_traffic(self._meter.sample(time.time(), zones))

    async def _scrape_through_api_server(self, measure: Measure, direct: ProxiesRow) -> ProxiesRow:
        """The meter then knows proxies by node names, not by addresses."""
        try:
            measured = await measure()
        except ApiError as error:
            measured = MeasuredTraffic(problem=str(error))
        self._measured = measured
        for node, counters in measured.by_node.items():
            self._meter.add(node, counters)
        period = self._period_seconds * API_SERVER_PERIODS
        self._api_server_backoff_seconds = (
            0.0 if measured.by_node else min(self._api_server_backoff_seconds * 2 or period, MAX_BACKOFF_SECONDS)
        )
        self._api_server_retry_at = time.monotonic() + (self._api_server_backoff_seconds or period)
        if measured.by_node:
            return ProxiesRow(nodes=measured.proxies, answering=len(measured.by_node), trouble=measured.problem)
        why = measured.problem or "no Zonewise proxy runs"
        return ProxiesRow(
            nodes=direct.nodes, answering=0, trouble=f"{direct.trouble}; through the API server: {why}".lstrip("; ")
        )

    async def _scrape(self, session: aiohttp.ClientSession, address: str, headers: dict[str, str]) -> None:
        try:
            counters = await self._read(session, address, headers)
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
            doubled = self._backoff_seconds.get(address, 0.0) * 2
            seconds = min(max(doubled, self._period_seconds), MAX_BACKOFF_SECONDS)
            self._backoff_seconds[address] = seconds
            self._retry_at[address] = time.monotonic() + seconds
            self._problem = f"{address}:{self._port} {_describe(error)}"
            return
        self._backoff_seconds[address] = 0.0
        self._retry_at.pop(address, None)
        self._meter.add(address, counters)

    async def _read(self, session: aiohttp.ClientSession, address: str, headers: dict[str, str]) -> ByteCounters:
        """Proxies have certificates of their own making: not the token but the figures could go astray."""
        scheme = "http" if is_loopback(address) else "https"
        url = URL.build(scheme=scheme, host=address, port=self._port, path="/metrics", query={"name[]": METRIC})
        async with session.get(url, allow_redirects=False, headers=headers, ssl=False) as reply:
            if reply.status != 200:
                raise ValueError(f"answers {reply.status}")
            body = bytearray()
            async for chunk in reply.content.iter_chunked(1 << 16):
                body += chunk
                if len(body) > _MAX_BODY_BYTES:
                    raise ValueError(f"answers with more than {_MAX_BODY_BYTES >> 20} MiB")
        return parse_counters(body.decode(errors="replace"))


def _describe(error: Exception) -> str:
    match error:
        case TimeoutError():
            return f"does not answer within {TIMEOUT_SECONDS:g} s"
        case OSError():
            return "can't be reached"
        case _:
            return str(error) or type(error).__name__
