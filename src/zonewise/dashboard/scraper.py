"""Asks the node proxies what they counted: every few seconds each node's `/metrics`, by its address and the proxies' port.

Nodes that don't answer are asked ever more rarely. Where none does, as from a machine outside of the cluster's network,
the proxies are asked through the API server, if that is allowed. Where there is much to read it is read more rarely, too,
so that it costs a bounded part of a core.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import aiohttp
from yarl import URL

from zonewise.dashboard.decide.rows import ProxiesRow
from zonewise.dashboard.decide.traffic import TrafficHistory
from zonewise.dashboard.live_state import LiveState
from zonewise.diagnostics.decide.status.traffic import METRIC, Bytes, MeasuredTraffic, read_bytes
from zonewise.kube.wire.errors import ApiError
from zonewise.objects import Node
from zonewise.topology import zone_of

PERIOD_SECONDS: Final = 5.0
MOST_OF_A_CORE: Final = 0.05
ASKED_AT_ONCE: Final = 32
TIMEOUT_SECONDS: Final = 4.0
LONGEST_SILENCE_SECONDS: Final = 120.0
THROUGH_PERIODS: Final = 3
"""So much more rarely the API server is asked, which has other things to do."""
_MOST_BYTES: Final = 32 << 20


def addresses_of(nodes: Iterable[Node]) -> set[str]:
    """The first internal address of each; nodes that share one share a proxy."""
    found = (
        next((address.address for address in node.status.addresses if address.type == "InternalIP"), "")
        for node in nodes
    )
    return {address for address in found if address}


Measure = Callable[[], Awaitable[MeasuredTraffic]]


class Scraper:
    def __init__(
        self,
        nodes: Iterable[Node],
        port: int,
        board: LiveState,
        period_seconds: float = PERIOD_SECONDS,
        through: Measure | None = None,
    ) -> None:
        """`nodes` is read again each time; `through` asks where nobody answers from here."""
        self._nodes = nodes
        self._port = port
        self._board = board
        self._period_seconds = period_seconds
        self._meter = TrafficHistory()
        self._silent: dict[str, float] = {}
        self._again_at: dict[str, float] = {}
        self._trouble = ""
        self._through = through
        self._through_silent = 0.0
        self._through_again_at = 0.0
        self._measured = MeasuredTraffic()

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(
            timeout=timeout, connector=aiohttp.TCPConnector(limit=ASKED_AT_ONCE)
        ) as session:
            while True:
                started = time.thread_time()
                await self._ask_all(session)
                spent_seconds = time.thread_time() - started
                await asyncio.sleep(max(self._period_seconds, spent_seconds / MOST_OF_A_CORE))

    async def _ask_all(self, session: aiohttp.ClientSession) -> None:
        there, now = addresses_of(self._nodes), time.monotonic()
        self._meter.keep(there | self._measured.by_node.keys())
        self._silent = {address: seconds for address, seconds in self._silent.items() if address in there}
        due = [address for address in there if self._again_at.get(address, 0.0) <= now]
        await asyncio.gather(*(self._ask(session, address) for address in due))
        answering = len(there) - sum(seconds > 0 for seconds in self._silent.values())
        row = ProxiesRow(nodes=len(there), answering=answering, trouble=self._trouble if answering < len(there) else "")
        if answering or self._through is None:
            self._measured = MeasuredTraffic()
            self._show(row)
        elif self._through_again_at <= now:
            self._show(await self._ask_through(self._through, row))

    def _show(self, row: ProxiesRow) -> None:
        self._board.show({"proxies": {"all": row}})
        if row.answering:
            zones = {zone for node in self._nodes if (zone := zone_of(node.metadata.labels))}
            self._board.show_traffic(self._meter.close(time.time(), zones))

    async def _ask_through(self, through: Measure, silent: ProxiesRow) -> ProxiesRow:
        """Proxies go by the names of their nodes then, which are no addresses."""
        try:
            measured = await through()
        except ApiError as error:
            measured = MeasuredTraffic(problem=str(error))
        self._measured = measured
        for node, counted in measured.by_node.items():
            self._meter.take(node, counted)
        wait = self._period_seconds * THROUGH_PERIODS
        self._through_silent = (
            0.0 if measured.by_node else min(self._through_silent * 2 or wait, LONGEST_SILENCE_SECONDS)
        )
        self._through_again_at = time.monotonic() + (self._through_silent or wait)
        if measured.by_node:
            return ProxiesRow(nodes=measured.proxies, answering=len(measured.by_node), trouble=measured.problem)
        why = measured.problem or "no Zonewise proxy runs"
        return ProxiesRow(
            nodes=silent.nodes, answering=0, trouble=f"{silent.trouble}; through the API server: {why}".lstrip("; ")
        )

    async def _ask(self, session: aiohttp.ClientSession, address: str) -> None:
        try:
            counted = await self._read(session, address)
        except (aiohttp.ClientError, TimeoutError, ValueError, OSError) as error:
            silence = min(max(self._silent.get(address, 0.0) * 2, self._period_seconds), LONGEST_SILENCE_SECONDS)
            self._silent[address] = silence
            self._again_at[address] = time.monotonic() + silence
            self._trouble = f"{address}:{self._port} {_words(error)}"
            return
        self._silent[address] = 0.0
        self._again_at.pop(address, None)
        self._meter.take(address, counted)

    async def _read(self, session: aiohttp.ClientSession, address: str) -> Bytes:
        url = URL.build(scheme="http", host=address, port=self._port, path="/metrics", query={"name[]": METRIC})
        async with session.get(url, allow_redirects=False, headers={"Accept": "text/plain"}) as answer:
            if answer.status != 200:
                raise ValueError(f"answers {answer.status}")
            body = bytearray()
            async for chunk in answer.content.iter_chunked(1 << 16):
                body += chunk
                if len(body) > _MOST_BYTES:
                    raise ValueError(f"tells more than {_MOST_BYTES >> 20} MiB")
        return read_bytes(body.decode(errors="replace"))


def _words(error: Exception) -> str:
    match error:
        case TimeoutError():
            return f"does not answer within {TIMEOUT_SECONDS:g} s"
        case OSError():
            return "can't be reached"
        case _:
            return str(error) or type(error).__name__
