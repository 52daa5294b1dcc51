"""Measures traffic while the proxy runs: listens for connections that end, and now and then looks at those that go on.

What is found is given to `traffic`. A look at many connections is done in small parts, and the more it costs the rarer
it is.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from prometheus_client import Counter

from zonewise import log
from zonewise.proxy import conntrack
from zonewise.proxy.conntrack import ConntrackFlow, read_flow
from zonewise.proxy.nft_socket import readable
from zonewise.proxy.traffic_counters import Networks, TrafficCount, TrafficMeter
from zonewise.proxy.wire.family import FAMILIES
from zonewise.proxy.wire.netlink import received

LOST = Counter("zonewise_proxy_traffic_lost", "Times that ended connections came too fast to be counted")
LOOKED_AT = Counter("zonewise_proxy_traffic_looked_at", "Connections that were looked at while they went on")

LOOK_SECONDS: Final = 20.0
MOST_OF_A_CORE: Final = 0.01
"""What looking may cost."""
_ACCOUNTING: Final = Path("/proc/sys/net/netfilter/nf_conntrack_acct")
_DESTROYED: Final = 1 << 8 | 2
_GROUP_DESTROY: Final = 3
_log = log.get_logger(__name__)

Here = Callable[[], tuple[str, Networks]]
"""This node's zone, and where the clients are that it sends for."""


async def measure(tally: TrafficCount, here: Here) -> None:
    """Until cancelled."""
    meter = TrafficMeter()
    account_bytes()
    async with asyncio.TaskGroup() as group:
        group.create_task(_hear_ends(tally, meter, here), name="ended connections")
        group.create_task(_look_again(tally, meter, here), name="lasting connections")


def account_bytes() -> None:
    """Asks the kernel to count bytes, of the network namespace that we are in."""
    try:
        if _ACCOUNTING.read_text().strip() != "1":
            _ACCOUNTING.write_text("1")
    except OSError as error:
        _log.warning("connections are counted, but no bytes", error=str(error), remedy=f"write 1 to {_ACCOUNTING}")


async def _hear_ends(tally: TrafficCount, meter: TrafficMeter, here: Here) -> None:
    ended = EndedConnection()
    async for _ in readable(ended):
        zone, networks = here()
        for flow in ended.take():
            if where := tally.locate(flow, zone, networks):
                meter.ended(flow, where)


async def _look_again(tally: TrafficCount, meter: TrafficMeter, here: Here) -> None:
    while True:
        started = time.thread_time()
        meter.begin()
        for family in FAMILIES.values():
            for flows in conntrack.translated(family):
                zone, networks = here()
                LOOKED_AT.inc(len(flows))
                for flow in flows:
                    if where := tally.locate(flow, zone, networks):
                        meter.goes_on(flow, where)
                await asyncio.sleep(0)
        meter.looked()
        await asyncio.sleep(max(LOOK_SECONDS, (time.thread_time() - started) / MOST_OF_A_CORE))


class EndedConnection:
    """Connections that ended, of the network namespace in which it is made; `fileno` becomes readable with each."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 12)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)
        self._socket.bind((0, 0))
        self._socket.setsockopt(270, 1, _GROUP_DESTROY)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def take(self, most: int = 4096) -> Iterable[ConntrackFlow]:
        """Those that wait, but not more at once: other work waits, too."""
        for _ in range(most):
            try:
                datagram = self._socket.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                LOST.inc()
                continue
            for message in received(datagram):
                if message.kind == _DESTROYED and (flow := read_flow(message.payload)):
                    yield flow
