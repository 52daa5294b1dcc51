"""The DNS controller: watches the cluster, builds the zone and streams its updates to the workers.

Everything that costs time happens here, in a process that answers no queries. While the API server is away, the workers
serve what they have.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from zonewise import log
from zonewise.dns import metrics
from zonewise.dns.decide import compact
from zonewise.dns.decide.compact import CompactService
from zonewise.dns.decide.pod_records import PodNameRecords
from zonewise.dns.decide.zone import ClusterZone, ZoneConfig
from zonewise.dns.server.forkserver import ForkedProcess
from zonewise.dns.server.sockets import ListenSockets
from zonewise.dns.server.supervisor import Supervisor
from zonewise.dns.wire.ipc import Update, WorkerConfig, WorkerReport
from zonewise.dns.wire.message import Query, read
from zonewise.dns.wire.names import packed, to_text
from zonewise.kube.controller.controller import Controller
from zonewise.kube.controller.workqueue import WorkQueue
from zonewise.kube.server.health import Health
from zonewise.kube.watch.cache import Cache, matters_by
from zonewise.kube.watch.informers import Caches
from zonewise.kube.watch.service_informers import ServiceInformers, drain_matters
from zonewise.objects import ENDPOINT_SLICES, PODS, SERVICES, Key, Namespace, Node, Pod
from zonewise.objects.change import Change
from zonewise.routing import DRAIN_ZONE
from zonewise.topology import zone_of

SYNC_SECONDS: Final = 5.0
"""How long to wait for the API server before serving names outside the cluster."""

LONGEST_REST_SECONDS: Final = 0.1
"""Longest delay of a change while dozens arrive every second: the workers need the cores, too."""

_NODES: Final = Key("", "nodes")
_NAMESPACES: Final = Key("", "namespaces")

_log = log.get_logger(__name__)


class PodRecordSource(NamedTuple):
    """A pod in the queue, in which a plain key is a Service."""

    key: Key


@dataclass(frozen=True, slots=True)
class DnsControllerConfig:
    settings: ZoneConfig
    orders: WorkerConfig


class DnsController:
    """Made before `caches` run."""

    def __init__(self, caches: Caches, config: DnsControllerConfig) -> None:
        self._config = config
        self._caches = caches
        self.zone = ClusterZone(config.settings)
        self.queue: WorkQueue[Key | PodRecordSource] = WorkQueue("dns")
        self.synced = False
        self._serial = 0
        self._zone_names: dict[str, str] = {}
        self._supervisor: Supervisor | None = None
        by_pod = config.settings.domain.name_endpoints_by_pod
        self.informers: ServiceInformers[CompactService, CompactService] = ServiceInformers(
            caches,
            lambda key, _cause: self.queue.add(key),
            services=caches.of(SERVICES, keep=compact.pack_service),
            slices=caches.of(ENDPOINT_SLICES, keep=compact.pack_slice_with_pods if by_pod else compact.pack_slice),
            owner=_service_of,
        )
        needs_pods = config.settings.locate_by_pods or config.settings.pods is PodNameRecords.VERIFIED
        running = "status.phase!=Succeeded,status.phase!=Failed"
        self.pods: Cache[Pod] | None = caches.of(PODS, fields=running) if needs_pods else None
        self._follow()

    def _follow(self) -> None:
        self.informers.follow()
        self.informers.nodes.on_change(lambda _change: self.queue.add(_NODES), when=matters_by(_node_facts))
        self.informers.namespaces.on_change(self._namespace_changed, when=matters_by(_drain))
        if self.pods is not None:
            self.pods.on_change(self._pod_changed)

    async def run(self, sockets: ListenSockets, health: Health, forked: ForkedProcess | None = None) -> None:
        """While the caches run, until cancelled. `forked` is the first fork server; without it one is started."""
        supervisor = Supervisor(sockets, self._config.orders, self._snapshot, self._take_report, forked)
        self._supervisor = supervisor
        health.add_ready("processes", lambda: supervisor.unready_reason)
        health.add_ready("cluster", lambda: None if self.synced else "the cluster was not read yet")
        metrics.NAMES.set_function(lambda: self.zone.size)
        async with asyncio.TaskGroup() as group:
            await self._first_sync()
            group.create_task(supervisor.run(), name="supervisor")
            group.create_task(self._work(health), name="work")

    async def _first_sync(self) -> None:
        """Workers that start after it get the whole zone at once; before it they refuse names of the cluster."""
        try:
            async with asyncio.timeout(SYNC_SECONDS):
                await self._caches.wait_synced()
        except TimeoutError:
            _log.warning("the API server does not answer; names of the cluster are refused until it does")
            return
        self._load()

    def _load(self) -> None:
        """Keys that fail are left to the queue, which retries and logs them; the others get their records."""
        pods = map(PodRecordSource, self.pods.keys()) if self.pods else ()
        failed: list[Key | PodRecordSource] = []
        for key in (_NODES, _NAMESPACES, *self.informers.services.keys(), *pods):
            try:
                self._apply(key)
            except Exception:  # noqa: BLE001 - a bug; the queue retries the key and logs the error
                failed.append(key)
        self._renew_serial()
        self.queue = WorkQueue("dns")  # all keys that waited are done
        for key in failed:
            self.queue.add(key)
        self.synced = True
        _give_back_memory()
        self._send([("loaded",)])

    async def _work(self, health: Health) -> None:
        health.started()
        await self._caches.wait_synced()
        if not self.synced:
            self._load()
        await Controller("dns", self.queue, self._reconcile, workers=1).run()

    async def _reconcile(self, key: Key | PodRecordSource) -> None:
        self._apply(key)
        self._renew_serial()
        await asyncio.sleep(0)

    def _apply(self, key: Key | PodRecordSource) -> None:
        self._send(list(self._updates(key)))

    def _send(self, updates: list[Update]) -> None:
        if self._supervisor:
            self._supervisor.broadcast(updates)

    def _updates(self, key: Key | PodRecordSource) -> Iterator[Update]:
        match key:
            case Key("", "nodes"):
                nodes = list(self.informers.nodes)
                self._zone_names = {node.metadata.name: zone_of(node.metadata.labels) or "" for node in nodes}
                before = self.zone.drained_by_nodes
                yield from self.zone.set_nodes(nodes)
                drains_changed = before != self.zone.drained_by_nodes
                for service in self.informers.services.keys() if drains_changed else list(self.zone.node_dependent):
                    self.queue.add(service)  # once, however many nodes change meanwhile
            case Key("", "namespaces"):
                namespaces = self.informers.namespaces
                yield from self.zone.set_namespaces(
                    {namespace.metadata.name: namespace.metadata.annotations for namespace in namespaces}
                )
            case PodRecordSource(pod):
                yield from self.zone.set_pod(pod, *_location(self.pods.get(pod) if self.pods else None))
            case Key():
                yield from self._service_updates(key)

    def _service_updates(self, key: Key) -> list[Update]:
        slices = sorted(self.informers.slices_of(key), key=lambda packed: packed.metadata.name)
        service = self.informers.services.get(key)
        return self.zone.set_service(
            key, compact.open_service(service) if service else None, list(map(compact.open_slice, slices))
        )

    def _renew_serial(self) -> None:
        now = int(time.time())
        if now != self._serial:
            self._serial = now
            self._send(self.zone.set_serial(now))

    def _snapshot(self) -> Iterator[Update]:
        yield from self.zone.snapshot()
        if self.synced:
            yield ("loaded",)

    def _take_report(self, report: WorkerReport) -> None:
        metrics.add_report(report, self._zone_names)
        for client, packet, reply in report.samples:
            _log_query(client, packet, reply)

    def _namespace_changed(self, change: Change[Namespace]) -> None:
        self.queue.add(_NAMESPACES)
        if drain_matters(change.old, change.new):
            for service in self.informers.services_in(change.key.name):
                self.queue.add(service)

    def _pod_changed(self, change: Change[Pod]) -> None:
        if _location(change.old) != _location(change.new):
            self.queue.add(PodRecordSource(change.key))


def _log_query(client: str, packet: bytes, reply: bytes) -> None:
    """`reply` is the head of the reply, empty where the worker itself sent none."""
    query = read(packet)
    if not isinstance(query, Query):
        _log.info("query", client=client, question="malformed", bytes=len(packet))
        return
    rcode = reply[3] & 15 if reply else None
    answers = int.from_bytes(reply[6:8]) if reply else None
    _log.info("query", client=client, name=to_text(query.name), type=query.type, rcode=rcode, answers=answers)


def _give_back_memory() -> None:
    """The lists of a large cluster take much more memory than is kept of them, and the C library would not return it."""
    gc.collect()
    gc.freeze()
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _location(pod: Pod | None) -> tuple[list[bytes], str]:
    """The pod's own addresses and its node. Pods on the host network have the node's addresses."""
    if pod is None or pod.spec.host_network or not pod.spec.node_name:
        return [], ""
    return [address for pod_ip in pod.status.pod_ips if (address := packed(pod_ip.ip))], pod.spec.node_name


def _service_of(viewed: CompactService) -> Key:
    return Key(viewed.metadata.namespace, viewed.owner)


def _node_facts(node: Node) -> tuple[Any, ...]:
    """All of a node but its heartbeat."""
    return node.metadata.labels, node.metadata.annotations.get(DRAIN_ZONE), node.spec, node.status


def _drain(namespace: Namespace) -> str:
    return namespace.metadata.annotations.get(DRAIN_ZONE, "")
