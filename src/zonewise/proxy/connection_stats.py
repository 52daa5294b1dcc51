"""Traffic metrics from conntrack: connections and bytes per Service, by the zones of client and endpoint.

The kernel counts the bytes of each connection once nf_conntrack_acct is set. Connections that end are reported by the
kernel; those still open are dumped every 20 s, in small parts, and less often when a dump costs more than 1 % of a
core. `TrafficCount` maps a connection to its Service and zones, `TrafficMeter` adds what is new since the last reading.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import time
from collections.abc import Callable, Iterable
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client import Counter

from zonewise import log
from zonewise.objects import EndpointSlice, Key
from zonewise.proxy import conntrack
from zonewise.proxy.conntrack import ConntrackFlow, read_flow
from zonewise.proxy.decide.rules import PortRules
from zonewise.proxy.nft_socket import readable
from zonewise.proxy.wire.elements import frontends
from zonewise.proxy.wire.family import FAMILIES
from zonewise.proxy.wire.netlink import received

_LABELS: Final = ("namespace", "service", "client_zone", "endpoint_zone")
CONNECTIONS = Counter("zonewise_proxy_connections", "Connections to Services", _LABELS)
BYTES = Counter("zonewise_proxy_bytes", "Bytes of connections to Services, headers included, both ways", _LABELS)
LOST = Counter("zonewise_proxy_traffic_lost", "Receive buffer overflows: some ended connections were not counted")
DUMPED = Counter("zonewise_proxy_traffic_looked_at", "Open connections read from the kernel's table")

OUTSIDE: Final = "outside"
UNKNOWN: Final = ""
DUMP_SECONDS: Final = 20.0
MAX_CPU_SHARE: Final = 0.01
"""The share of a core that dumps may use."""
_MAX_CACHED_CLIENTS: Final = 1 << 16
_ACCOUNTING: Final = Path("/proc/sys/net/netfilter/nf_conntrack_acct")
_DESTROYED: Final = 1 << 8 | 2
_GROUP_DESTROY: Final = 3
_log = log.get_logger(__name__)

Networks = tuple[IPv4Network | IPv6Network, ...]
ZoneAndNetworks = Callable[[], tuple[str, Networks]]
"""This node's zone, and the networks of its clients: its pods and itself."""


class TrafficKey(NamedTuple):
    """The Service, and the zones at both ends."""

    service: Key
    client_zone: str
    endpoint_zone: str


_FrontendKey = tuple[bytes, int, int]
"""Address, protocol and port of a frontend."""


class _ServiceAddresses(NamedTuple):
    frontends: tuple[_FrontendKey, ...]
    zones: dict[bytes, str]


class TrafficCount:
    """The Service of each frontend, and the zone of each endpoint address."""

    def __init__(self) -> None:
        self._owners: dict[_FrontendKey, Key] = {}
        self._services: dict[Key, _ServiceAddresses] = {}
        self._local_networks: Networks = ()
        self._is_local_cache: dict[bytes, bool] = {}

    def update(
        self, key: Key, rules: Iterable[PortRules], slices: Iterable[EndpointSlice], nodes: Iterable[str]
    ) -> None:
        """Set the Service's rules and slices; `nodes` are the addresses of its node ports."""
        if old := self._services.pop(key, None):
            for frontend in old.frontends:
                if self._owners.get(frontend) == key:
                    del self._owners[frontend]
        if keys := tuple(frontend for port in rules for frontend in _frontend_keys(port, nodes)):
            self._owners.update(dict.fromkeys(keys, key))
            self._services[key] = _ServiceAddresses(keys, _zones(slices))

    def locate(self, flow: ConntrackFlow, own_zone: str, local_networks: Networks) -> TrafficKey | None:
        """None for a flow to no Service. Clients within `local_networks`, pods and the node, are in our zone."""
        key = self._owners.get((flow.destination, flow.protocol, flow.port))
        if key is None:
            return None
        client_zone = own_zone if self._is_local(flow.source, local_networks) else OUTSIDE
        return TrafficKey(key, client_zone, self._services[key].zones.get(flow.answered_by, UNKNOWN))

    def _is_local(self, packed: bytes, local_networks: Networks) -> bool:
        if local_networks is not self._local_networks or len(self._is_local_cache) > _MAX_CACHED_CLIENTS:
            self._local_networks, self._is_local_cache = local_networks, {}
        if packed not in self._is_local_cache:
            address = ip_address(packed)
            self._is_local_cache[packed] = any(
                address.version == network.version and address in network for network in local_networks
            )
        return self._is_local_cache[packed]


def _zones(slices: Iterable[EndpointSlice]) -> dict[bytes, str]:
    return {
        _packed(address): endpoint.zone or UNKNOWN
        for endpoint_slice in slices
        for endpoint in endpoint_slice.endpoints or ()
        for address in endpoint.addresses[:1]
    }


def _frontend_keys(rules: PortRules, nodes: Iterable[str]) -> list[_FrontendKey]:
    is_ipv6 = ":" in rules.cluster_ip
    return [
        (_packed(address), frontend.protocol, frontend.port)
        for frontend in frontends(rules)
        for address in (
            [frontend.address] if frontend.address else [node for node in nodes if (":" in node) is is_ipv6]
        )
    ]


def _packed(address: str) -> bytes:
    return FAMILIES["IPv6" if ":" in address else "IPv4"].pack(address)


class TrafficMeter:
    """The bytes counted so far of each open connection; the rest is added at the next dump, or when it ends."""

    def __init__(self) -> None:
        self._counted: dict[bytes, int] = {}
        self._in_dump: set[bytes] = set()
        self._ended_in_dump: set[bytes] = set()
        self._dumping = False

    def ended(self, flow: ConntrackFlow, key: TrafficKey) -> None:
        before = self._counted.pop(flow.identity, None)
        if self._dumping:
            self._ended_in_dump.add(flow.identity)
        _count(key, flow.carried, before)

    def open(self, flow: ConntrackFlow, key: TrafficKey) -> None:
        """A connection in the dump. If it ended since the dump began, it is counted already."""
        if flow.identity in self._ended_in_dump:
            return
        _count(key, flow.carried, self._counted.get(flow.identity))
        self._counted[flow.identity] = flow.carried
        self._in_dump.add(flow.identity)

    def begin_dump(self) -> None:
        self._dumping = True

    def end_dump(self) -> None:
        """Connections that were not in the dump have ended, and the notification was lost."""
        self._counted = {identity: self._counted[identity] for identity in self._in_dump & self._counted.keys()}
        self._dumping = False
        self._in_dump.clear()
        self._ended_in_dump.clear()


def _count(key: TrafficKey, carried: int, before: int | None) -> None:
    """A connection that carried less than before is a new one with the same addresses and ports."""
    connections, all_bytes = _counters(key)
    if before is None or carried < before:
        connections.inc()
        before = 0
    all_bytes.inc(carried - before)


@lru_cache(maxsize=1 << 16)
def _counters(key: TrafficKey) -> tuple[Counter, Counter]:
    labels = (*key.service, key.client_zone, key.endpoint_zone)
    return CONNECTIONS.labels(*labels), BYTES.labels(*labels)


async def measure(traffic: TrafficCount, zone_and_networks: ZoneAndNetworks) -> None:
    """Run until cancelled."""
    meter = TrafficMeter()
    account_bytes()
    async with asyncio.TaskGroup() as group:
        group.create_task(_count_ended(traffic, meter, zone_and_networks), name="ended connections")
        group.create_task(_count_open(traffic, meter, zone_and_networks), name="open connections")


def account_bytes() -> None:
    """Make the kernel count bytes, in the current network namespace."""
    try:
        if _ACCOUNTING.read_text().strip() != "1":
            _ACCOUNTING.write_text("1")
    except OSError as error:
        _log.warning(
            "byte accounting unavailable, counting connections only",
            error=str(error),
            remedy=f"write 1 to {_ACCOUNTING}",
        )


async def _count_ended(traffic: TrafficCount, meter: TrafficMeter, zone_and_networks: ZoneAndNetworks) -> None:
    ended = EndedConnection()
    async for _ in readable(ended):
        zone, networks = zone_and_networks()
        for flow in ended.take():
            if key := traffic.locate(flow, zone, networks):
                meter.ended(flow, key)


async def _count_open(traffic: TrafficCount, meter: TrafficMeter, zone_and_networks: ZoneAndNetworks) -> None:
    while True:
        started = time.thread_time()
        meter.begin_dump()
        for family in FAMILIES.values():
            for flows in conntrack.translated(family):
                zone, networks = zone_and_networks()
                DUMPED.inc(len(flows))
                for flow in flows:
                    if key := traffic.locate(flow, zone, networks):
                        meter.open(flow, key)
                await asyncio.sleep(0)
        meter.end_dump()
        await asyncio.sleep(max(DUMP_SECONDS, (time.thread_time() - started) / MAX_CPU_SHARE))


class EndedConnection:
    """Notifications of ended connections in the current network namespace; `fileno` becomes readable with each."""

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

    def take(self, limit: int = 4096) -> Iterable[ConntrackFlow]:
        """Read pending notifications, at most `limit`, so that the event loop is not blocked for long."""
        for _ in range(limit):
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
