"""The node plugin's word on where its node is, kept true: in NodeGetInfo, in the Node's labels and in its CSINode.

A kubelet asks NodeGetInfo once, when the driver registers. Schedulers read labels of Nodes and provisioners also the
keys in CSINodes, whenever they need them. So the plugin watches its own Node, its CSINode and the config map with the
takeover map, and writes what changes: `domains` and `takeover` say what to write, `registration` how.
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

TAKEN_OVER = Gauge("zonewise_csi_taken_over_domains", "Takeover labels that this node carries")
MAP_TROUBLE = Gauge(
    "zonewise_csi_takeover_map_unreadable", "1 while the takeover map can't be read and the last one holds"
)

_FIRST_ANSWER_SECONDS: Final = 30.0
_log = log.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class NodeTopology:
    """Which node this is, which labels make domains, and where the takeover map is."""

    node: str
    labels: DomainLabels
    config_map: Key


class TopologyLabels:
    """`run` keeps the node's topology advertised until cancelled; `segments` is for gRPC's threads."""

    def __init__(self, client: Client, caches: Caches, recorder: Recorder, where: NodeTopology) -> None:
        self._client = client
        self._recorder = recorder
        self._where = where
        named = f"metadata.name={where.node}"
        self._nodes: Cache[Node] = caches.of(NODES, fields=named)
        self._csi_nodes: Cache[CSINode] = caches.of(CSI_NODES, fields=named)
        config = where.config_map
        self._config: Cache[ConfigMap] = caches.of(CONFIG_MAPS, config.namespace, fields=f"metadata.name={config.name}")
        self._queue: WorkQueue[str] = WorkQueue("csi-advertising")
        self._controller = Controller("csi-advertising", self._queue, self._advertise, workers=1)
        self._map: TakeoverMap | None = None
        self._map_problem = ""
        self._segments: Mapping[str, str] = {}
        self._known = threading.Event()

    def segments(self) -> Mapping[str, str]:
        """What NodeGetInfo says. Not before it stands in the Node's labels: a kubelet that finds others refuses us."""
        if not self._known.wait(_FIRST_ANSWER_SECONDS):
            raise CsiError(GrpcCode.UNAVAILABLE, f"the labels of node {self._where.node} are not known yet: ask again")
        return self._segments

    def trouble(self) -> str | None:
        watches: tuple[Cache[Any], ...] = (self._nodes, self._csi_nodes, self._config)
        problems = [f"{watch.name}: {watch.problem}" for watch in watches if watch.problem]
        return "; ".join(problems) or (None if self._known.is_set() else "the node's labels are not known yet")

    async def run(self) -> None:
        self._nodes.on_change(self._node_changed)
        self._csi_nodes.on_change(lambda _change: self._queue.add(self._where.node))
        self._config.on_change(lambda _change: self._queue.add(self._where.node))
        self._queue.add(self._where.node)
        await self._controller.run()

    def _node_changed(self, change: Change[Node]) -> None:
        """Heartbeats say nothing new."""
        old, new = change.old, change.new
        if old is None or new is None or old.metadata.labels != new.metadata.labels:
            self._queue.add(self._where.node)

    async def _advertise(self, name: str) -> None:
        node = self._nodes.get(Key("", name))
        if node is None:
            _log.warning("there is no such node yet", node=name)
            return
        self._read_map()
        labels = self._where.labels
        advertised = labels.advertised(node.metadata.labels)
        adopted = None
        if self._map is not None:
            adopted = takeover.adopted(self._map, labels.segments(node.metadata.labels), labels.names)
        changes = takeover.label_changes(node.metadata.labels, advertised, adopted)
        if changes:
            await self._client.patch(NODES, name, MergePatch({"metadata": {"labels": changes}}))
            self._tell(node, changes, adopted or {})
        if self._segments != advertised:
            _log.info("topology advertised", node=name, topology=dict(advertised))
        self._segments = advertised
        self._known.set()
        TAKEN_OVER.set(_taken_over(node.metadata.labels, changes))
        await self._correct_registration(name, tuple(advertised))

    def _read_map(self) -> None:
        """A map that can't be read changes nothing; what it says wrong is said once."""
        found = self._config.get(self._where.config_map)
        try:
            self._map = takeover.read(found.data if found else {}, self._where.labels.names)
            problem = ""
        except TakeoverError as error:
            problem = str(error)
        if problem and problem != self._map_problem:
            _log.warning("the takeover map can't be read and the last one holds", error=problem)
        self._map_problem = problem
        MAP_TROUBLE.set(bool(problem))

    def _tell(self, node: Node, changes: Mapping[str, str | None], adopted: Mapping[str, Reason]) -> None:
        _log.info("node labels changed", node=node.metadata.name, labels=dict(changes))
        about = reference_to(NODES, node)
        for sentence in sorted({adopted[key].sentence for key in changes if key in adopted}):
            self._recorder.record(about, Severity.NORMAL, "DomainTakenOver", sentence)
        given = sorted(key.removeprefix(CSI_TAKEOVER_PREFIX) for key in changes if _is_given_back(key, changes))
        if given:
            self._recorder.record(about, Severity.NORMAL, "DomainGivenBack", f"gives back {', '.join(given)}")

    async def _correct_registration(self, name: str, keys: Sequence[str]) -> None:
        """Two writes at most follow each other; who comes between them is met as a conflict, and we look again."""
        if not _differs(self._csi_nodes.get(Key("", name)), keys):
            return
        for _ in range(2):
            try:
                found = await self._client.get(CSI_NODES.whole(), name)
            except NotFound:
                return
            change = next_change(found, keys)
            if change is None:
                return
            await self._client.update(CSI_NODES.whole(), change.body)
            _log.info("registration corrected", node=name, step=str(change.step), topology_keys=sorted(keys))


def _differs(found: CSINode | None, keys: Sequence[str]) -> bool:
    """As far as the watch tells; a note of ours that is left over shows in an entry that is missing."""
    if found is None:
        return False
    entry = next((driver for driver in found.spec.drivers or () if driver.name == CSI_DRIVER), None)
    return entry is None or sorted(entry.topology_keys) != sorted(keys)


def _is_given_back(key: str, changes: Mapping[str, str | None]) -> bool:
    return key.startswith(CSI_TAKEOVER_PREFIX) and changes[key] is None


def _taken_over(labels: Mapping[str, str], changes: Mapping[str, str | None]) -> int:
    after = {**labels, **changes}
    return sum(key.startswith(CSI_TAKEOVER_PREFIX) and value is not None for key, value in after.items())
