"""The node proxy as a process: watch, decide, apply, again and again.

Whatever changes while a transaction is on its way is taken together into the next. When the API server is away the last
rules stay; when the process ends they stay too, and the next one adopts them.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_network

from prometheus_client import Gauge, Histogram

from zonewise import log
from zonewise.kube.client.client import Client
from zonewise.kube.server.health import Health
from zonewise.objects import Key, key_of
from zonewise.proxy import connection_stats, conntrack, node_addresses
from zonewise.proxy.applier import Applier, NodeNetwork
from zonewise.proxy.decide.rules import PortName, PortRules
from zonewise.proxy.decide.service_rules import ServiceRules
from zonewise.proxy.decide.targets import is_stranded, ready_on
from zonewise.proxy.healthcheck import HealthCheckServer, LocalEndpoints
from zonewise.proxy.informers import ProxyInformers
from zonewise.proxy.nft_socket import NftMonitor, NftRefusedError, NftSocket, readable
from zonewise.proxy.service_cidrs import ServiceCidrs
from zonewise.proxy.wire.family import FAMILIES, Family

SERVICES = Gauge("zonewise_proxy_services", "Services that this node's rules serve")
SYNC_SECONDS = Histogram(
    "zonewise_proxy_sync_seconds",
    "From taking changes to rules in the kernel",
    buckets=(1e-3, 0.01, 0.1, 0.5, 1, 5, 30),
)
SYNCED_SERVICES = Histogram("zonewise_proxy_sync_services", "Services in one sync", buckets=(1, 10, 100, 1e3, 1e4))

REPAIR_PAUSE_SECONDS = 1.0
LOOK_AROUND_SECONDS = 10.0
_COLLECTED_AFTER = gc.get_threshold()
_OBJECTS_AT_START = 10_000_000
_log = log.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """`pod_ranges` empty: the node's own, as the cluster says."""

    node: str
    all_services: bool = False
    pod_ranges: tuple[str, ...] = ()
    node_port_ranges: tuple[str, ...] = (node_addresses.PRIMARY,)
    pods_interface: str = ""
    masquerade_all: bool = False
    measure_traffic: bool = False


_Changes = dict[Family, dict[PortName, PortRules | None]]


@dataclass(frozen=True, slots=True)
class PendingBatch:
    keys: frozenset[Key]
    moved: bool
    repair: bool


class PendingServices:
    """What the next sync must do; whatever is added while one runs waits here, however often."""

    def __init__(self) -> None:
        self._keys: set[Key] = set()
        self._wake = asyncio.Event()
        self.moved = False
        self.repair = False

    def add(self, keys: Iterable[Key]) -> None:
        self._keys.update(keys)
        self._wake.set()

    async def take(self) -> PendingBatch:
        await self._wake.wait()
        await asyncio.sleep(0)  # what came in the same breath
        self._wake.clear()
        taken = PendingBatch(frozenset(self._keys), self.moved, self.repair)
        self._keys.clear()
        self.moved = self.repair = False
        return taken


class Proxy:
    def __init__(self, client: Client, settings: ProxyConfig, kernel: NftSocket) -> None:
        self._settings = settings
        self._kernel = kernel
        self._families = tuple(FAMILIES.values())
        self._sources = ProxyInformers(client, settings.node, all_services=settings.all_services)
        self._decider = ServiceRules(self._families, settings.all_services)
        self._health_ports = HealthCheckServer()
        self._pending = PendingServices()
        self._plane: Applier | None = None
        self._placed = asyncio.Event()
        self._complaints: dict[Key, tuple[str, ...]] = {}
        self._checked: dict[Key, tuple[int, LocalEndpoints]] = {}
        self._told: set[str] = set()
        self._unsaid: _Changes = {family: {} for family in self._families}
        """Decided, and not in the kernel yet: what it refuses waits here until it takes it."""
        self._unswept: dict[Family, dict[PortName, PortRules]] = {family: {} for family in self._families}
        """UDP ports that changed, whose flows are still to be looked at."""
        self._service_ranges = ServiceCidrs(client, self._network_changed)
        self._tally = connection_stats.TrafficCount() if settings.measure_traffic else None

    async def run(self, health: Health) -> None:
        """Until cancelled."""
        gc.set_threshold(_OBJECTS_AT_START)
        synced = asyncio.Event()
        self._sources.on_dirty = self._pending.add
        self._sources.on_labels = lambda: self._pending.add(self._decider.by_labels)
        self._sources.on_node = self._node_changed
        async with asyncio.TaskGroup() as group:
            if self._settings.all_services:
                group.create_task(self._service_ranges.run(), name="service ranges")
            group.create_task(self._sources.run(synced), name="watches")
            await synced.wait()
            group.create_task(self._watch_tables(), name="tables")
            group.create_task(self._look_around(), name="addresses")
            if self._tally is not None:
                group.create_task(connection_stats.measure(self._tally, self._here), name="traffic")
            try:
                await self._work(health)
            finally:
                await self._health_ports.close()

    def _network_changed(self) -> None:
        self._pending.moved = True
        self._pending.add(())

    def _node_changed(self) -> None:
        self._pending.moved = True
        self._pending.add(self._sources.services.keys())

    async def _work(self, health: Health) -> None:
        """The kernel's refusal of everything we say is not the end: we say it again."""
        self._pending.add(self._sources.services.keys())
        while True:
            pending = await self._pending.take()
            try:
                await self._sync(pending)
                health.started()
            except NftRefusedError as error:
                _log.error("no rules could be set", error=str(error), retry_in_seconds=REPAIR_PAUSE_SECONDS)
                await asyncio.sleep(REPAIR_PAUSE_SECONDS)
                self._pending.repair = True
                self._pending.add(pending.keys)

    async def _sync(self, pending: PendingBatch) -> None:
        started = time.perf_counter()
        self._decide(pending.keys)
        self._apply(pending)
        self._unsaid = {family: {} for family in self._families}
        SYNC_SECONDS.observe(time.perf_counter() - started)
        SYNCED_SERVICES.observe(len(pending.keys))
        SERVICES.set(len(self._decider.rules))
        self._forget_flows()
        self._note(pending.keys)
        await self._health_ports.update(dict(self._checked.values()))

    def _apply(self, pending: PendingBatch) -> None:
        if self._plane is None:
            plane = Applier(self._kernel, self._families, self._network())
            plane.start(self._unsaid)
            self._plane = plane
            self._placed.set()
            _settle_memory()
            _log.info("rules in place", services=len(self._decider.rules))
            return
        if pending.moved:
            self._plane.set_node_network(self._network())
        self._plane.apply(self._unsaid)
        if pending.repair:
            self._plane.repair()

    def _decide(self, keys: Iterable[Key]) -> None:
        place = self._sources.place()
        for key in keys:
            before = self._decider.rules.get(key, {})
            service = self._sources.services.get(key)
            try:
                answer = self._decider.decide(key, service, self._sources.slices_of(key), place)
            except Exception:  # noqa: BLE001 - a fault of ours with one Service must not end the service of all
                _log.exception("Service left as it was", service=str(key))
                continue
            for family, ports in answer.items():
                self._unsaid[family].update(ports)
                old = before.get(family, {})
                udp = ((name, rules) for name, rules in ports.items() if rules and rules.flows is not None)
                self._unswept[family].update((name, rules) for name, rules in udp if old.get(name) != rules)

    def _network(self) -> NodeNetwork:
        node = self._sources.node
        return NodeNetwork(
            pod_ranges=self._settings.pod_ranges or node.spec.pod_cidrs,
            addresses=node_addresses.node_port_addresses(node, self._settings.node_port_ranges),
            masquerade_all=self._settings.masquerade_all,
            pods_interface=self._settings.pods_interface,
            service_ranges=self._service_ranges.cidrs,
        )

    def _forget_flows(self) -> None:
        assert self._plane is not None
        lost = frozenset((contest.loser, contest.frontend) for contest in self._plane.conflicts())
        for family, ports in self._unswept.items():
            wanted = conntrack.stale_frontends(ports.values(), family, self._plane.network.addresses, lost)
            ports.clear()
            if count := conntrack.forget(family, wanted):
                _log.info("stale UDP flows forgotten", family=family.name, flows=count)

    def _note(self, keys: Iterable[Key]) -> None:
        for key in keys:
            answer = self._decider.rules.get(key, {})
            rules = [rules for ports in answer.values() for rules in ports.values()]
            if self._tally is not None and self._plane is not None:
                self._tally.update(key, rules, self._sources.slices_of(key), self._plane.network.addresses)
            self._complaints.pop(key, None)
            self._checked.pop(key, None)
            if lines := tuple(f"{each.name}: {line}" for each in rules for line in each.left_out):
                self._complaints[key] = lines
            service = self._sources.services.get(key)
            if rules and service and (port := service.spec.health_check_node_port):
                ready = ready_on(self._settings.node, self._sources.slices_of(key))
                self._checked[key] = port, LocalEndpoints(key, ready)
        self._tell()

    def _tell(self) -> None:
        """What is left out: one line per state, not per sync."""
        assert self._plane is not None
        found = {line for lines in self._complaints.values() for line in lines}
        for contest in self._plane.conflicts():
            where = contest.frontend.address or "node port"
            found.add(f"{contest.loser}: {where} port {contest.frontend.port} belongs to {contest.winner}")
        for line in sorted(found - self._told):
            _log.warning("left out", what=line)
        self._told = found

    async def _watch_tables(self) -> None:
        """Word that others changed our tables leads to a repair; a storm of it to one a second.

        Nobody listens before the first rules are in place, or the kernel would write down each of their elements for us.
        """
        await self._placed.wait()
        watch = NftMonitor(self._kernel.port)
        async for _ in readable(watch):
            if watch.touched():
                _log.warning("our tables were changed by others: repairing")
                self._pending.repair = True
                self._pending.add(())
                await asyncio.sleep(REPAIR_PAUSE_SECONDS)

    def _here(self) -> tuple[str, connection_stats.Networks]:
        """This node's zone, and where the clients are that it sends for: its pods, and itself."""
        network = self._plane.network if self._plane else self._network()
        pods = self._sources.node.spec.pod_cidrs or network.pod_ranges
        return self._sources.place().zone, _networks((*pods, *network.addresses))

    def _is_stranded(self) -> bool:
        services, zone = self._sources.services, self._sources.place().zone
        asking = [service for key in self._decider.by_labels if (service := services.get(key))]
        return any(is_stranded(service, self._sources.slices_of(key_of(service)), zone) for service in asking)

    async def _look_around(self) -> None:
        """Addresses come and go without word from the API server, and zones without groups of their own."""
        await self._placed.wait()
        before = True  # at the start there is no Service whose slices are still to come
        while True:
            stranded = self._is_stranded()
            self._sources.watch_every_group(stranded and before)
            before = stranded
            await asyncio.sleep(LOOK_AROUND_SECONDS)
            if self._plane is not None and self._network() != self._plane.network:
                self._network_changed()


def _settle_memory() -> None:
    """What was read at the start stays: the collector need not look at it, neither then nor with every change."""
    gc.freeze()
    gc.set_threshold(*_COLLECTED_AFTER)


@lru_cache(maxsize=4)
def _networks(written: tuple[str, ...]) -> connection_stats.Networks:
    return tuple(ip_network(each, strict=False) for each in written)
