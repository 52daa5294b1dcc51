"""Topology of the node: kept up to date in NodeGetInfo, in the Node's labels and in its CSINode.

kubelet calls NodeGetInfo once, when the driver registers. The scheduler reads the labels of Nodes, and csi-provisioner
also the keys in CSINodes, at any time. So the plugin watches its own Node, its CSINode and the config map with the
takeover map, and writes changes: `domains`, `takeover` and `csinode` in `decide` decide what to write.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import Gauge

from zonewise import log
from zonewise.api.names import CSI_DRIVER, CSI_TAKEOVER_PREFIX
from zonewise.ceph.decide import takeover
from zonewise.ceph.decide.csinode import next_change
from zonewise.ceph.decide.domains import DomainLabels
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.takeover import TakeoverError, TakeoverMap
from zonewise.ceph.node.volume_watch import EVENT as VOLUME_BROKEN
from zonewise.kube.client.client import Client
from zonewise.kube.controller.controller import Controller
from zonewise.kube.controller.recorder import Recorder, Severity, reference_to
from zonewise.kube.controller.workqueue import WorkQueue
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.errors import NotFound
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import CONFIG_MAPS, NODES, ConfigMap, Key, Node
from zonewise.objects.change import Change
from zonewise.objects.storage import CSI_NODES, CSINode
from zonewise.topology import Reason

TAKEN_OVER: Final = Gauge("zonewise_csi_taken_over_domains", "Takeover labels that this node carries")
MAP_INVALID: Final = Gauge(
    "zonewise_csi_takeover_map_unreadable", "1 while the takeover map can't be read and the last one holds"
)

_FIRST_SYNC_SECONDS: Final = 30.0
_log = log.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NodeTopology:
    """The name of the node, its domain labels, and the config map with the takeover map."""

    node: str
    labels: DomainLabels
    config_map: Key


class TopologyLabels:
    """`run` keeps the node's topology advertised until cancelled; `segments` is called from gRPC threads."""

    def __init__(self, client: Client, caches: Caches, recorder: Recorder, topology: NodeTopology) -> None:
        self._client = client
        self._recorder = recorder
        self._topology = topology
        field_selector = f"metadata.name={topology.node}"
        self._nodes: Cache[Node] = caches.of(NODES, fields=field_selector)
        self._csi_nodes: Cache[CSINode] = caches.of(CSI_NODES, fields=field_selector)
        config = topology.config_map
        self._config: Cache[ConfigMap] = caches.of(CONFIG_MAPS, config.namespace, fields=f"metadata.name={config.name}")
        self._queue: WorkQueue[str] = WorkQueue("csi-advertising")
        self._controller = Controller("csi-advertising", self._queue, self._sync, workers=1)
        self._map: TakeoverMap | None = None
        self._map_problem = ""
        self._segments: Mapping[str, str] = {}
        self._synced = threading.Event()

    def segments(self) -> Mapping[str, str]:
        """For NodeGetInfo. Waits for the first sync of the Node's labels: kubelet rejects a driver with other segments."""
        if not self._synced.wait(_FIRST_SYNC_SECONDS):
            raise CsiError(GrpcCode.UNAVAILABLE, f"the labels of node {self._topology.node} are not synced yet: retry")
        return self._segments

    def report_broken_volume(self, sentence: str) -> None:
        """An event on the Node. Before its first sync the problem is in the log only."""
        node = self._nodes.get(Key("", self._topology.node))
        if node is not None:
            self._recorder.record(reference_to(NODES, node), Severity.WARNING, VOLUME_BROKEN, sentence)

    def trouble(self) -> str | None:
        watches: tuple[Cache[Any], ...] = (self._nodes, self._csi_nodes, self._config)
        problems = [f"{watch.name}: {watch.problem}" for watch in watches if watch.problem]
        return "; ".join(problems) or (None if self._synced.is_set() else "the node's labels are not synced yet")

    async def run(self) -> None:
        self._nodes.on_change(self._node_changed)
        self._csi_nodes.on_change(lambda _change: self._queue.add(self._topology.node))
        self._config.on_change(lambda _change: self._queue.add(self._topology.node))
        self._queue.add(self._topology.node)
        await self._controller.run()

    def _node_changed(self, change: Change[Node]) -> None:
        """Heartbeats are ignored."""
        old, new = change.old, change.new
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            self._queue.add(self._topology.node)

    async def _sync(self, name: str) -> None:
        node = self._nodes.get(Key("", name))
        if node is None:
            _log.warning("node not found", node=name)
            return
        self._read_map()
        labels = self._topology.labels
        advertised = labels.advertised(node.metadata.labels)
        taken_over = None
        if self._map is not None:
            taken_over = takeover.taken_over_labels(self._map, labels.segments(node.metadata.labels), labels.names)
        changes = takeover.label_changes(node.metadata.labels, advertised, taken_over)
        if changes:
            await self._client.patch(NODES, name, MergePatch({"metadata": {"labels": changes}}))
            self._record_changes(node, changes, taken_over or {})
        if self._segments != advertised:
            _log.info("topology advertised", node=name, topology=dict(advertised))
        self._segments = advertised
        self._synced.set()
        TAKEN_OVER.set(_count_taken_over(node.metadata.labels, changes))
        await self._sync_csinode(name, tuple(advertised))

    def _read_map(self) -> None:
        """An invalid map is logged once, and the last valid one stays in force."""
        config_map = self._config.get(self._topology.config_map)
        try:
            self._map = takeover.parse_takeover_map(config_map.data if config_map else {}, self._topology.labels.names)
            problem = ""
        except TakeoverError as error:
            problem = str(error)
        if problem and problem != self._map_problem:
            _log.warning("takeover map invalid, keeping the last one", error=problem)
        self._map_problem = problem
        MAP_INVALID.set(bool(problem))

    def _record_changes(self, node: Node, changes: Mapping[str, str | None], taken_over: Mapping[str, Reason]) -> None:
        _log.info("node labels changed", node=node.metadata.name, labels=dict(changes))
        about = reference_to(NODES, node)
        for sentence in sorted({taken_over[key].sentence for key in changes if key in taken_over}):
            self._recorder.record(about, Severity.NORMAL, "DomainTakenOver", sentence)
        given_back = sorted(key.removeprefix(CSI_TAKEOVER_PREFIX) for key in changes if _is_given_back(key, changes))
        if given_back:
            self._recorder.record(about, Severity.NORMAL, "DomainGivenBack", f"gives back {', '.join(given_back)}")

    async def _sync_csinode(self, name: str, keys: Sequence[str]) -> None:
        """At most two writes; a concurrent change is a conflict, and the sync is retried."""
        if not _differs(self._csi_nodes.get(Key("", name)), keys):
            return
        for _ in range(2):
            try:
                csi_node = await self._client.get(CSI_NODES.whole(), name)
            except NotFound:
                return
            change = next_change(csi_node, keys)
            if change is None:
                return
            await self._client.update(CSI_NODES.whole(), change.body)
            _log.info("CSINode updated", node=name, step=str(change.step), topology_keys=sorted(keys))


def _differs(csi_node: CSINode | None, keys: Sequence[str]) -> bool:
    """According to the cache. An interrupted change shows as a missing entry."""
    if csi_node is None:
        return False
    entry = next((driver for driver in csi_node.spec.drivers or () if driver.name == CSI_DRIVER), None)
    return entry is None or sorted(entry.topology_keys) != sorted(keys)


def _is_given_back(key: str, changes: Mapping[str, str | None]) -> bool:
    return key.startswith(CSI_TAKEOVER_PREFIX) and changes[key] is None


def _count_taken_over(labels: Mapping[str, str], changes: Mapping[str, str | None]) -> int:
    after = {**labels, **changes}
    return sum(key.startswith(CSI_TAKEOVER_PREFIX) and value is not None for key, value in after.items())
