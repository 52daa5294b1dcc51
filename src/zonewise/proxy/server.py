"""The sync loop of the node proxy: watch, decide, apply.

Changes that arrive during a transaction are batched into the next. The last rules stay while the API server is away, and
after the process has ended: the next process adopts them.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_network
from typing import Final

from prometheus_client import Gauge, Histogram

from zonewise import log
from zonewise.api.names import WEIGHTS
from zonewise.kube.client.client import Client
from zonewise.kube.server.health import Health
from zonewise.kube.watch.informers import Caches
from zonewise.objects import Key, key_of
from zonewise.proxy import connection_stats, conntrack, kube_proxy_metrics, kube_proxy_pages, node_addresses
from zonewise.proxy.applier import Applier, NodeNetwork
from zonewise.proxy.decide.node_health import NodeHealth, SyncState
from zonewise.proxy.decide.programming_latency import PendingTriggerTimes
from zonewise.proxy.decide.rules import AddressLimits, PortName, PortRules, address_limits
from zonewise.proxy.decide.service_rules import ServiceRules
from zonewise.proxy.decide.targets import is_stranded, ready_on
from zonewise.proxy.handover import Handover
from zonewise.proxy.healthcheck import HealthCheckServer, LocalEndpoints
from zonewise.proxy.informers import ProxyInformers
from zonewise.proxy.nft_socket import NftMonitor, NftRefusedError, NftSocket, readable
from zonewise.proxy.service_cidrs import ServiceCidrs
from zonewise.proxy.sysctls import ConntrackSettings, set_conntrack
from zonewise.proxy.wire.family import FAMILIES, Family
from zonewise.routing.weights_annotation import weights_problem

SERVICES = Gauge("zonewise_proxy_services", "Services that this node's rules serve")
SYNC_SECONDS = Histogram(
    "zonewise_proxy_sync_seconds",
    "From taking changes to rules in the kernel",
    buckets=(1e-3, 0.01, 0.1, 0.5, 1, 5, 30),
)
SYNCED_SERVICES = Histogram("zonewise_proxy_sync_services", "Services in one sync", buckets=(1, 10, 100, 1e3, 1e4))

REPAIR_PAUSE_SECONDS: Final = 1.0
POLL_SECONDS: Final = 10.0
_GC_THRESHOLD: Final = gc.get_threshold()
_GC_THRESHOLD_AT_START: Final = 10_000_000
_log = log.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ProxyConfig:
    """`pod_ranges` empty: those of the Node object. `service_ranges`: where there are no ServiceCIDRs.

    `conntrack` None: the kernel's settings stay.
    """

    node: str
    all_services: bool = False
    pod_ranges: tuple[str, ...] = ()
    service_ranges: tuple[str, ...] = ()
    node_port_ranges: tuple[str, ...] = (node_addresses.PRIMARY,)
    pods_interface: str = ""
    masquerade_all: bool = False
    measure_traffic: bool = False
    ignore_external_ips: bool = False
    conntrack: ConntrackSettings | None = None
    kube_proxy_pages: bool = False

    def address_limits(self, service_ranges: tuple[str, ...], node_pod_ranges: tuple[str, ...]) -> AddressLimits:
        """`pod_ranges` bar external IPs only where no node has any: they may be wider than what the pods use, and hold
        addresses that Services rightly claim.
        """
        return address_limits(
            service_ranges,
            node_pod_ranges or self.pod_ranges,
            all_services=self.all_services,
            ignore_external_ips=self.ignore_external_ips,
        )


_Changes = dict[Family, dict[PortName, PortRules | None]]


@dataclass(frozen=True, slots=True)
class PendingBatch:
    keys: frozenset[Key]
    network_changed: bool
    repair: bool


class PendingServices:
    """What the next sync must do. Additions during a sync wait here, each once."""

    def __init__(self) -> None:
        self._keys: set[Key] = set()
        self._wake = asyncio.Event()
        self.network_changed = False
        self.repair = False
        self.state = SyncState()

    def add(self, keys: Iterable[Key]) -> None:
        self._keys.update(keys)
        self._wake.set()
        if self.state.waiting_since is None:
            self.state = replace(self.state, waiting_since=datetime.now(UTC))

    def done(self) -> None:
        """What was taken is in the kernel."""
        now = datetime.now(UTC)
        self.state = SyncState(now, now if self._wake.is_set() else None)

    async def take(self) -> PendingBatch:
        await self._wake.wait()
        await asyncio.sleep(0)  # batch what arrives in the same turn of the loop
        self._wake.clear()
        batch = PendingBatch(frozenset(self._keys), self.network_changed, self.repair)
        self._keys.clear()
        self.network_changed = self.repair = False
        return batch


class Proxy:
    """Made before `caches` run."""

    def __init__(self, client: Client, caches: Caches, config: ProxyConfig, kernel: NftSocket) -> None:
        self._config = config
        self._kernel = kernel
        self._families = tuple(FAMILIES.values())
        self._informers = ProxyInformers(client, caches, config.node, all_services=config.all_services)
        self._rules = ServiceRules(self._families, config.all_services)
        self._pending = PendingServices()
        self._trigger_times = PendingTriggerTimes(datetime.now(UTC))
        self._health_checks = HealthCheckServer(lambda: self._pending.state.healthy_at(datetime.now(UTC)))
        self._applier: Applier | None = None
        self._applied = asyncio.Event()
        self._left_out: dict[Key, tuple[str, ...]] = {}
        self._health_check_ports: dict[Key, tuple[int, LocalEndpoints]] = {}
        self._logged: set[str] = set()
        self._unapplied: _Changes = {family: {} for family in self._families}
        """Decided, but not in the kernel yet: changes that it rejected wait here for the next sync."""
        self._changed_udp: dict[Family, dict[PortName, PortRules]] = {family: {} for family in self._families}
        """UDP ports that changed, whose stale flows are to be removed."""
        self._service_cidrs = ServiceCidrs(client, self._node_changed, config.service_ranges)
        self._handover = None if config.all_services else Handover(client, self._pending.add)
        self._traffic = connection_stats.TrafficCount() if config.measure_traffic else None

    async def run(self, health: Health) -> None:
        """Until cancelled."""
        gc.set_threshold(_GC_THRESHOLD_AT_START)
        if self._config.conntrack is not None:
            set_conntrack(self._config.conntrack)
        synced = asyncio.Event()
        self._informers.on_dirty = self._pending.add
        self._informers.on_topology = lambda: self._pending.add(self._rules.by_labels)
        self._informers.on_pod_ranges = lambda: self._pending.add(self._rules.with_external_ips)
        self._informers.on_node = self._node_changed
        self._informers.on_slice = self._trigger_times.slice_changed
        async with asyncio.TaskGroup() as group:
            group.create_task(self._service_cidrs.run(), name="service ranges")
            group.create_task(self._informers.run(synced), name="watches")
            await synced.wait()
            await self._service_cidrs.known.wait()
            if self._handover is not None:
                self._informers.services.on_change(self._handover.service_changed, from_now_on=True)
                group.create_task(self._handover.run(), name="handover")
            group.create_task(self._watch_tables(), name="tables")
            group.create_task(self._poll_node(), name="addresses")
            if self._config.kube_proxy_pages:
                group.create_task(kube_proxy_pages.serve(self._node_health), name="kube-proxy's pages")
            if self._traffic is not None:
                group.create_task(connection_stats.measure(self._traffic, self._zone_and_networks), name="traffic")
            try:
                await self._sync_forever(health)
            finally:
                await self._health_checks.close()

    def _node_health(self, now: datetime) -> NodeHealth:
        return NodeHealth.of(self._pending.state, self._informers.last_node, now)

    def _network_changed(self) -> None:
        self._pending.network_changed = True
        self._pending.add(())

    def _node_changed(self) -> None:
        self._pending.network_changed = True
        self._pending.add(self._informers.services.keys())

    async def _sync_forever(self, health: Health) -> None:
        """When the kernel rejects every rule, all of them are sent again."""
        self._pending.add(self._informers.services.keys())
        while True:
            batch = await self._pending.take()
            try:
                await self._sync(batch)
                health.started()
            except NftRefusedError as error:
                _log.error("no rules could be set", error=str(error), retry_in_seconds=REPAIR_PAUSE_SECONDS)
                await asyncio.sleep(REPAIR_PAUSE_SECONDS)
                self._pending.repair = True
                self._pending.add(batch.keys)

    async def _sync(self, batch: PendingBatch) -> None:
        started = time.perf_counter()
        self._decide(batch.keys)
        families, triggers = self._families_to_sync(batch), self._trigger_times.take()
        try:
            self._apply(batch)
        finally:
            kube_proxy_metrics.count_sync(families, time.perf_counter() - started)
        # Only here, after `_apply`: rules that the kernel refused stay, and are sent again with the next batch.
        self._unapplied = {family: {} for family in self._families}
        self._pending.done()
        kube_proxy_metrics.count_programmed(triggers, datetime.now(UTC))
        SYNC_SECONDS.observe(time.perf_counter() - started)
        SYNCED_SERVICES.observe(len(batch.keys))
        SERVICES.set(len(self._rules.rules))
        self._remove_stale_flows()
        self._report(batch.keys)
        await self._health_checks.update(dict(self._health_check_ports.values()))

    def _families_to_sync(self, batch: PendingBatch) -> list[str]:
        everything = self._applier is None or batch.network_changed or batch.repair
        return [family.name for family, changes in self._unapplied.items() if everything or changes]

    def _apply(self, batch: PendingBatch) -> None:
        if self._applier is None:
            applier = Applier(self._kernel, self._families, self._network())
            applier.start(self._unapplied)
            self._applier = applier
            self._applied.set()
            _freeze_memory()
            _log.info("rules in place", services=len(self._rules.rules))
            return
        if batch.network_changed:
            self._applier.set_node_network(self._network())
        self._applier.apply(self._unapplied)
        if batch.repair:
            self._applier.repair()

    def _decide(self, keys: Iterable[Key]) -> None:
        location = self._informers.location()
        self._rules.limits = self._config.address_limits(self._service_cidrs.cidrs, self._informers.pod_ranges())
        for key in keys:
            if self._handover is not None and self._handover.holds(key):
                self._trigger_times.drop(key)
                continue
            before = self._rules.rules.get(key, {})
            service = self._informers.services.get(key)
            try:
                changes = self._rules.decide(key, service, self._informers.slices_of(key), location)
            except Exception:  # noqa: BLE001 - a bug with one Service must not stop the others
                _log.exception("Service left as it was", service=str(key))
                self._trigger_times.drop(key)
                continue
            for family, ports in changes.items():
                self._unapplied[family].update(ports)
                old = before.get(family, {})
                udp = ((name, rules) for name, rules in ports.items() if rules and rules.flows is not None)
                self._changed_udp[family].update((name, rules) for name, rules in udp if old.get(name) != rules)

    def _network(self) -> NodeNetwork:
        node = self._informers.node
        return NodeNetwork(
            pod_ranges=self._config.pod_ranges or node.spec.pod_cidrs,
            addresses=node_addresses.node_port_addresses(node, self._config.node_port_ranges),
            masquerade_all=self._config.masquerade_all,
            pods_interface=self._config.pods_interface,
            service_ranges=self._service_cidrs.cidrs if self._config.all_services else (),
            node_ips=node_addresses.primary(node),
        )

    def _remove_stale_flows(self) -> None:
        assert self._applier is not None
        lost = frozenset((conflict.loser, conflict.frontend) for conflict in self._applier.conflicts())
        for family, ports in self._changed_udp.items():
            fronts = conntrack.stale_frontends(ports.values(), family, self._applier.network.addresses, lost)
            ports.clear()
            if count := conntrack.forget(family, fronts):
                _log.info("stale UDP flows forgotten", family=family.name, flows=count)

    def _report(self, keys: Iterable[Key]) -> None:
        for key in keys:
            families = self._rules.rules.get(key, {})
            ports = [rules for ports in families.values() for rules in ports.values()]
            if self._traffic is not None and self._applier is not None:
                self._traffic.update(key, ports, self._informers.slices_of(key), self._applier.network.addresses)
            self._left_out.pop(key, None)
            self._health_check_ports.pop(key, None)
            lines = [f"{rules.name}: {line}" for rules in ports for line in rules.left_out]
            weights = {slice_.metadata.annotations.get(WEIGHTS, "") for slice_ in self._informers.slices_of(key)}
            lines += [f"{key}: {problem}" for text in weights if (problem := weights_problem(text))]
            if lines:
                self._left_out[key] = tuple(lines)
            service = self._informers.services.get(key)
            if ports and service and (port := service.spec.health_check_node_port):
                ready = ready_on(self._config.node, self._informers.slices_of(key))
                self._health_check_ports[key] = port, LocalEndpoints(key, ready)
        self._log_left_out()

    def _log_left_out(self) -> None:
        """Once per state, not per sync."""
        assert self._applier is not None
        lines = {line for left_out in self._left_out.values() for line in left_out}
        for conflict in self._applier.conflicts():
            address = conflict.frontend.address or "node port"
            lines.add(f"{conflict.loser}: {address} port {conflict.frontend.port} belongs to {conflict.winner}")
        for line in sorted(lines - self._logged):
            _log.warning("left out", what=line)
        self._logged = lines

    async def _watch_tables(self) -> None:
        """Repair the tables when another program changes them, at most once a second.

        The monitor starts after the first rules: otherwise the kernel would report each of their elements.
        """
        await self._applied.wait()
        monitor = NftMonitor(self._kernel.port)
        async for _ in readable(monitor):
            if monitor.touched():
                _log.warning("tables changed by others, repairing")
                self._pending.repair = True
                self._pending.add(())
                await asyncio.sleep(REPAIR_PAUSE_SECONDS)

    def _zone_and_networks(self) -> tuple[str, connection_stats.Networks]:
        """This node's zone, and the networks of the clients behind this proxy: the node's pods, and the node."""
        network = self._applier.network if self._applier else self._network()
        pods = self._informers.node.spec.pod_cidrs or network.pod_ranges
        return self._informers.location().zone, _networks((*pods, *network.addresses))

    def _is_stranded(self) -> bool:
        services, zone = self._informers.services, self._informers.location().zone
        routed = [service for key in self._rules.by_labels if (service := services.get(key))]
        return any(is_stranded(service, self._informers.slices_of(key_of(service)), zone) for service in routed)

    async def _poll_node(self) -> None:
        """Poll what no watch reports: addresses of the node, and zones without slice groups."""
        await self._applied.wait()
        before = True  # at the start all slices are synced
        while True:
            stranded = self._is_stranded()
            self._informers.watch_every_group(stranded and before)
            before = stranded
            await asyncio.sleep(POLL_SECONDS)
            if self._applier is not None and self._network() != self._applier.network:
                self._network_changed()


def _freeze_memory() -> None:
    """Freeze the initial cache out of garbage collection."""
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLD)


@lru_cache(maxsize=4)
def _networks(ranges: tuple[str, ...]) -> connection_stats.Networks:
    return tuple(ip_network(text, strict=False) for text in ranges)
