"""Automatic takeovers: the leader watches the nodes of every domain and proposes or writes entries of the takeover map.

`decide.outage` decides when. A proposal is an event on the config map with the command that carries it out. Entries
written here are listed in an annotation, and only these are removed automatically; entries written by hand are left
alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import Counter

from zonewise import log
from zonewise.ceph.decide import takeover
from zonewise.ceph.decide.domains import DomainLabels
from zonewise.ceph.decide.outage import Outages, OutageTiming, OutageVerdict, TakeoverAction, count_nodes
from zonewise.ceph.decide.takeover import TakeoverDomain, TakeoverError, TakeoverMap
from zonewise.kube.client.client import Client
from zonewise.kube.clock import boot_seconds
from zonewise.kube.controller.controller import Controller
from zonewise.kube.controller.recorder import Recorder, Severity
from zonewise.kube.controller.workqueue import WorkQueue
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import CONFIG_MAPS, NODES, ConfigMap, Key, Node, ObjectReference
from zonewise.objects.change import Change
from zonewise.topology import is_ready

TAKEOVERS: Final = Counter("zonewise_csi_takeovers", "Changes to the takeover map, by what was done", ["act"])

_SETTLE_SECONDS: Final = 0.5
_log = log.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoTakeoverConfig:
    """`watched` is the short name of the watched label; without `writes` takeovers are only proposed."""

    config_map: Key
    labels: DomainLabels
    watched: str
    timing: OutageTiming
    writes: bool = False


class AutoTakeover:
    """Run by the leader; `client` must only write while this process leads."""

    def __init__(
        self,
        client: Client,
        caches: Caches,
        recorder: Recorder,
        settings: AutoTakeoverConfig,
        clock: Callable[[], float] = boot_seconds,
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._settings = settings
        self._clock = clock
        self._nodes: Cache[Node] = caches.of(NODES)
        key = settings.config_map
        self._config: Cache[ConfigMap] = caches.of(CONFIG_MAPS, key.namespace, fields=f"metadata.name={key.name}")
        self._outages = Outages(settings.watched, settings.timing)
        self._reported: set[tuple[TakeoverAction, TakeoverDomain]] = set()
        self._map_problem = ""
        self._unknown: frozenset[str] = frozenset()
        self._queue: WorkQueue[str] = WorkQueue("csi-takeover")
        self._controller = Controller("csi-takeover", self._queue, self._sync, workers=1)
        self._nodes.on_change(self._node_changed)
        self._config.on_change(lambda _change: self._queue.add_after("map", _SETTLE_SECONDS))

    async def run(self) -> None:
        """Times start again with every leadership: a candidate does not observe how long a domain is down."""
        self._outages = Outages(self._settings.watched, self._settings.timing)
        self._queue.add("map")
        await self._controller.run()

    def trouble(self) -> str | None:
        watches: tuple[Cache[Any], ...] = (self._nodes, self._config)
        return "; ".join(f"{watch.name}: {watch.problem}" for watch in watches if watch.problem) or None

    def _node_changed(self, change: Change[Node]) -> None:
        old, new = change.old, change.new
        if old is None or new is None or _relevant(old) != _relevant(new):
            self._queue.add_after("map", _SETTLE_SECONDS)

    async def _sync(self, _key: str) -> float | None:
        now = self._clock()
        nodes = [(node.metadata.labels, is_ready(node)) for node in self._nodes]
        self._outages.observe(count_nodes(nodes, self._settings.labels, self._settings.watched), now)
        takeovers = self._read_map()
        if takeovers is not None:
            self._report_unknown_domains(takeovers)
            await self._act(takeovers, self._outages.judge(takeovers, now))
        return self._outages.next_check_seconds(now)

    def _read_map(self) -> TakeoverMap | None:
        """None while the map is invalid: then it is not changed."""
        config_map = self._config.get(self._settings.config_map)
        try:
            takeovers = takeover.parse_takeover_map(config_map.data if config_map else {}, self._settings.labels.names)
        except TakeoverError as error:
            if str(error) != self._map_problem:
                self._map_problem = str(error)
                _log.warning("takeover map invalid", error=self._map_problem)
                self._record(Severity.WARNING, "TakeoverMapInvalid", f"{error}; the last valid map stays in force")
            return None
        self._map_problem = ""
        return takeovers

    def _report_unknown_domains(self, takeovers: TakeoverMap) -> None:
        """A domain without nodes may be misspelt, or have lost its last node."""
        present = [self._settings.labels.segments(node.metadata.labels) for node in self._nodes]
        domains = {domain for source, targets in takeovers.entries.items() for domain in (source, *targets)}
        unknown = frozenset(str(domain) for domain in domains if not any(map(domain.matches, present)))
        for name in sorted(unknown - self._unknown):
            _log.warning("takeover map names a domain without nodes", domain=name)
            note = f"no node is in {name}, which {takeover.MAP} names: compare its spelling with the nodes' labels"
            self._record(Severity.WARNING, "TakeoverDomainUnknown", note)
        self._unknown = unknown

    async def _act(self, takeovers: TakeoverMap, verdicts: list[OutageVerdict]) -> None:
        """An automatic entry that was removed by hand is not written again before the domain was back."""
        config_map = self._config.get(self._settings.config_map)
        automatic = takeover.automatic_entries(config_map.metadata.annotations) if config_map else frozenset[str]()
        done = [verdict for verdict in verdicts if self._may_write(verdict, automatic)]
        kept = automatic & (
            {str(source) for source in takeovers.entries} | {str(domain) for domain in self._outages.down()}
        )
        if done or kept != automatic:
            await self._write(config_map, done, kept)
        current = {(verdict.action, verdict.domain) for verdict in verdicts}
        for verdict in verdicts:
            if verdict not in done and (verdict.action, verdict.domain) not in self._reported:
                self._propose(verdict)
        self._reported = current

    def _may_write(self, verdict: OutageVerdict, automatic: frozenset[str]) -> bool:
        match verdict.action:
            case TakeoverAction.TAKE_OVER:
                return self._settings.writes and str(verdict.domain) not in automatic
            case TakeoverAction.GIVE_BACK:
                return self._settings.writes and str(verdict.domain) in automatic
            case TakeoverAction.HOLD:
                return False

    async def _write(self, existing: ConfigMap | None, done: list[OutageVerdict], automatic: frozenset[str]) -> None:
        takeovers = {
            str(verdict.domain): verdict.targets for verdict in done if verdict.action is TakeoverAction.TAKE_OVER
        }
        givebacks = {str(verdict.domain) for verdict in done if verdict.action is TakeoverAction.GIVE_BACK}
        key = self._settings.config_map
        metadata: dict[str, Any] = {
            "annotations": {takeover.AUTOMATIC: json.dumps(sorted((automatic - givebacks) | takeovers.keys()))}
        }
        data = takeover.edit_config_map(existing.data if existing else {}, takeovers, givebacks)
        if existing is None:
            body = {"metadata": metadata | {"name": key.name}, "data": data}
            await self._client.create(CONFIG_MAPS, body, key.namespace)
        else:
            guarded = metadata | {"resourceVersion": existing.metadata.resource_version}
            await self._client.patch(
                CONFIG_MAPS, key.name, MergePatch({"metadata": guarded, "data": data}), key.namespace
            )
        for verdict in done:
            TAKEOVERS.labels(str(verdict.action)).inc()
            event = "DomainTakenOver" if verdict.action is TakeoverAction.TAKE_OVER else "DomainGivenBack"
            outcome = f"; taken over by {', '.join(verdict.targets)}" if verdict.targets else "; given back"
            _log.warning("takeover map changed", action=str(verdict.action), domain=str(verdict.domain))
            self._record(Severity.WARNING, event, f"{verdict.reason}{outcome}")

    def _propose(self, verdict: OutageVerdict) -> None:
        _log.warning("takeover proposed", action=str(verdict.action), reason=str(verdict.reason))
        match verdict.action:
            case TakeoverAction.TAKE_OVER:
                command = f"zonewise csi takeover {verdict.domain} {' '.join(verdict.targets)}"
                self._record(Severity.WARNING, "TakeoverProposed", f"{verdict.reason}; to take it over: {command}")
            case TakeoverAction.GIVE_BACK:
                command = f"zonewise csi giveback {verdict.domain}"
                self._record(Severity.NORMAL, "GivebackProposed", f"{verdict.reason}; to give it back: {command}")
            case TakeoverAction.HOLD:
                self._record(Severity.WARNING, "TakeoverHeld", str(verdict.reason))

    def _record(self, severity: Severity, reason: str, note: str) -> None:
        key = self._settings.config_map
        about = ObjectReference(api_version="v1", kind="ConfigMap", namespace=key.namespace, name=key.name)
        self._recorder.record(about, severity, reason, note)


def _relevant(node: Node) -> tuple[object, ...]:
    return is_ready(node), node.metadata.labels
