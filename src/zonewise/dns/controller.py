"""Watches the cluster and keeps the serving processes told: caches, a queue of what changed, the catalog, the fleet.

Everything that costs time happens here, in a process that answers nobody. While the API server is away the serving
processes go on with what they know.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from zonewise import log
from zonewise.dns import metrics
from zonewise.dns.decide import compact
from zonewise.dns.decide.compact import CompactService
from zonewise.dns.decide.pod_records import PodNameRecords
from zonewise.dns.decide.zone import ClusterZone, ZoneConfig
from zonewise.dns.server import priority
from zonewise.dns.server.forkserver import ForkedProcess
from zonewise.dns.server.sockets import ListenSockets
from zonewise.dns.server.supervisor import Supervisor
from zonewise.dns.wire.ipc import Update, WorkerConfig, WorkerReport
from zonewise.dns.wire.message import Query, read
from zonewise.dns.wire.names import packed, to_text
from zonewise.kube.client.client import Client
from zonewise.kube.controller.controller import Controller
from zonewise.kube.controller.workqueue import WorkQueue
from zonewise.kube.server.health import Health
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.objects import (
    ENDPOINT_SLICES,
    NAMESPACES,
    NODES,
    PODS,
    SERVICES,
    Key,
    Namespace,
    Node,
    Pod,
    key_of,
)
from zonewise.objects.change import Change
from zonewise.routing import DRAIN_ZONE
from zonewise.topology import zone_of

SYNC_SECONDS: Final = 5.0
"""How long to wait for the API server before serving what needs none."""

LONGEST_REST_SECONDS: Final = 0.1
"""How late changes may be read while dozens come every second: who answers queries needs the cores, too."""

_BY_SERVICE: Final = "service"
_NODES: Final = Key("", "nodes")
_NAMESPACES: Final = Key("", "namespaces")

_log = log.get_logger(__name__)


class PodRecordSource(NamedTuple):
    """A pod in the queue, where Services stand by their keys alone."""

    key: Key


@dataclass(frozen=True, slots=True)
class DnsControllerConfig:
    settings: ZoneConfig
    orders: WorkerConfig


@dataclass(slots=True)
class DnsController:
    client: Client
    options: DnsControllerConfig
    caches: Caches = field(init=False)
    catalog: ClusterZone = field(init=False)
    queue: WorkQueue[Key | PodRecordSource] = field(init=False)
    synced: bool = False
    _serial: int = 0
    _zones: dict[str, str] = field(default_factory=dict)
    _fleet: Supervisor | None = None

    def __post_init__(self) -> None:
        self.caches = Caches(self.client, longest_rest_seconds=LONGEST_REST_SECONDS)
        self.catalog = ClusterZone(self.options.settings)
        self.queue = WorkQueue("dns")
        self.services.on_change(self._service_changed)
        self.slices.add_index(_BY_SERVICE, _owner)
        self.slices.on_change(self._slice_changed)
        self.nodes.on_change(self._node_changed)
        self.namespaces.on_change(self._namespace_changed)
        if self.pods is not None:
            self.pods.on_change(self._pod_changed)

    @property
    def services(self) -> Cache[CompactService]:
        return self.caches.of(SERVICES, keep=compact.pack_service)

    @property
    def slices(self) -> Cache[CompactService]:
        by_pod = self.options.settings.domain.name_endpoints_by_pod
        keep = compact.pack_slice_with_pods if by_pod else compact.pack_slice
        return self.caches.of(ENDPOINT_SLICES, keep=keep)

    @property
    def nodes(self) -> Cache[Node]:
        return self.caches.of(NODES)

    @property
    def namespaces(self) -> Cache[Namespace]:
        return self.caches.of(NAMESPACES)

    @property
    def pods(self) -> Cache[Pod] | None:
        settings = self.options.settings
        needed = settings.locate_by_pods or settings.pods is PodNameRecords.VERIFIED
        return self.caches.of(PODS, fields="status.phase!=Succeeded,status.phase!=Failed") if needed else None

    async def run(self, doors: ListenSockets, health: Health, born: ForkedProcess | None = None) -> None:
        fleet = self._fleet = Supervisor(doors, self.options.orders, self._snapshot, self._take_report, born)
        health.add_ready("processes", lambda: fleet.unready_reason)
        health.add_ready("cluster", lambda: None if self.synced else "the cluster was not read yet")
        metrics.NAMES.set_function(lambda: self.catalog.size)
        priority.use_batch_scheduling()
        async with self.caches, asyncio.TaskGroup() as group:
            await self._first_sync()
            group.create_task(fleet.run(), name="fleet")
            group.create_task(self._work(health), name="work")

    async def _first_sync(self) -> None:
        """Processes that start after it are told everything at once; before it they know that they know nothing."""
        try:
            async with asyncio.timeout(SYNC_SECONDS):
                await self.caches.wait_synced()
        except TimeoutError:
            _log.warning("the API server does not answer; names of the cluster are refused until it does")
            return
        self._load()

    def _load(self) -> None:
        """One that we fail on is left to the queue, which tries again and says so; the others have their records."""
        pods = map(PodRecordSource, self.pods.keys()) if self.pods else ()
        failed: list[Key | PodRecordSource] = []
        for key in (_NODES, _NAMESPACES, *self.services.keys(), *pods):
            try:
                self._apply(key)
            except Exception:  # noqa: BLE001 - our bug, whatever it is; the queue will meet it again and log it
                failed.append(key)
        self._renew_serial()
        self.queue = WorkQueue("dns")  # what waited is done
        for key in failed:
            self.queue.add(key)
        self.synced = True
        _give_back_memory()
        if self._fleet:
            self._fleet.broadcast([("loaded",)])

    async def _work(self, health: Health) -> None:
        health.started()
        await self.caches.wait_synced()
        if not self.synced:
            self._load()
        await Controller("dns", self.queue, self._reconcile, workers=1).run()

    async def _reconcile(self, key: Key | PodRecordSource) -> None:
        self._apply(key)
        self._renew_serial()
        await asyncio.sleep(0)

    def _apply(self, key: Key | PodRecordSource) -> None:
        self._tell(list(self._updates(key)))

    def _tell(self, updates: list[Update]) -> None:
        if self._fleet:
            self._fleet.broadcast(updates)

    def _updates(self, key: Key | PodRecordSource) -> Iterator[Update]:
        match key:
            case Key("", "nodes"):
                nodes = list(self.nodes)
                self._zones = {node.metadata.name: zone_of(node.metadata.labels) or "" for node in nodes}
                before = self.catalog.drained_by_nodes
                yield from self.catalog.set_nodes(nodes)
                everyone = before != self.catalog.drained_by_nodes
                for key_again in self.services.keys() if everyone else list(self.catalog.node_dependent):
                    self.queue.add(key_again)  # each once, however many nodes change meanwhile
            case Key("", "namespaces"):
                said = {found.metadata.name: found.metadata.annotations for found in self.namespaces}
                yield from self.catalog.set_namespaces(said)
            case PodRecordSource(pod):
                yield from self.catalog.set_pod(pod, *_place(self.pods.get(pod) if self.pods else None))
            case Key():
                yield from self._service_updates(key)

    def _service_updates(self, key: Key) -> list[Update]:
        packed = sorted(self.slices.by_index(_BY_SERVICE, str(key)), key=lambda each: each.metadata.name)
        service = self.services.get(key)
        return self.catalog.set_service(
            key, compact.open_service(service) if service else None, list(map(compact.open_slice, packed))
        )

    def _renew_serial(self) -> None:
        now = int(time.time())
        if now != self._serial:
            self._serial = now
            self._tell(self.catalog.set_serial(now))

    def _snapshot(self) -> Iterator[Update]:
        yield from self.catalog.snapshot()
        if self.synced:
            yield ("loaded",)

    def _take_report(self, report: WorkerReport) -> None:
        metrics.add_report(report, self._zones)
        for client, packet, reply in report.samples:
            _log_query(client, packet, reply)

    def _service_changed(self, change: Change[CompactService]) -> None:
        self.queue.add(change.key)

    def _slice_changed(self, change: Change[CompactService]) -> None:
        for viewed in (change.old, change.new):
            if viewed is not None and viewed.owner:
                self.queue.add(Key(viewed.metadata.namespace, viewed.owner))

    def _node_changed(self, change: Change[Node]) -> None:
        if change.old is None or change.new is None or _facts(change.old) != _facts(change.new):
            self.queue.add(_NODES)

    def _namespace_changed(self, change: Change[Namespace]) -> None:
        old, new = (each and each.metadata.annotations.get(DRAIN_ZONE, "") for each in (change.old, change.new))
        if old == new:
            return
        self.queue.add(_NAMESPACES)
        if old or new:
            for service in self.services:
                if service.metadata.namespace == change.key.name:
                    self.queue.add(key_of(service))

    def _pod_changed(self, change: Change[Pod]) -> None:
        if _place(change.old) != _place(change.new):
            self.queue.add(PodRecordSource(change.key))


def _log_query(client: str, packet: bytes, reply: bytes) -> None:
    """`reply` is the head of it, empty where there was none from the process itself."""
    query = read(packet)
    if not isinstance(query, Query):
        _log.info("query", client=client, question="malformed", bytes=len(packet))
        return
    rcode = reply[3] & 15 if reply else None
    answers = int.from_bytes(reply[6:8]) if reply else None
    _log.info("query", client=client, name=to_text(query.name), type=query.type, rcode=rcode, answers=answers)


def _give_back_memory() -> None:
    """Lists of a large cluster pass through much more memory than is kept of them; the C library would hold on to it."""
    gc.collect()
    gc.freeze()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _place(pod: Pod | None) -> tuple[list[bytes], str]:
    """Addresses of its own, and the node; pods of the node's network have the node's."""
    if pod is None or pod.spec.host_network or not pod.spec.node_name:
        return [], ""
    return [address for each in pod.status.pod_ips if (address := packed(each.ip))], pod.spec.node_name


def _owner(viewed: CompactService) -> Iterable[str]:
    return (str(Key(viewed.metadata.namespace, viewed.owner)),) if viewed.owner else ()


def _facts(node: Node) -> tuple[Any, ...]:
    """All of a node but its heartbeat."""
    return node.metadata.labels, node.metadata.annotations.get(DRAIN_ZONE), node.spec, node.status
