"""Takeovers without a person: the leader watches the domains' nodes and proposes or writes entries of the takeover map.

`outage` says when. A proposal is an event on the config map with the command that would carry it out. What was written
here is known by an annotation, and only that is removed again; entries that a person wrote are a person's to remove.
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
from zonewise.ceph.decide.outage import Outages, OutageTiming, OutageVerdict, TakeoverAction, count
from zonewise.ceph.decide.takeover import TakeoverDomain, TakeoverError, TakeoverMap
from zonewise.ceph.decide.takeover_edit import AUTOMATIC, automatic, edited
from zonewise.kube.client.client import Client
from zonewise.kube.controller.controller import Controller
from zonewise.kube.controller.elector import boot_seconds
from zonewise.kube.controller.recorder import Recorder, Severity
from zonewise.kube.controller.workqueue import WorkQueue
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import CONFIG_MAPS, NODES, ConfigMap, Key, Node, ObjectReference
from zonewise.objects.change import Change
from zonewise.topology import is_ready

TAKEOVERS = Counter("zonewise_csi_takeovers", "Changes to the takeover map, by what was done", ["act"])

_SETTLE_SECONDS: Final = 0.5
_log = log.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoTakeoverConfig:
    """`watched` is the short name of the label whose domains may fail; `writes` else only proposes."""

    config_map: Key
    labels: DomainLabels
    watched: str
    patience: OutageTiming
    writes: bool = False


class AutoTakeover:
    """Run by the leader; `client` writes only while it leads."""

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
        place = settings.config_map
        self._config: Cache[ConfigMap] = caches.of(CONFIG_MAPS, place.namespace, fields=f"metadata.name={place.name}")
        self._outages = Outages(settings.watched, settings.patience)
        self._said: set[tuple[TakeoverAction, TakeoverDomain]] = set()
        self._map_problem = ""
        self._unknown: frozenset[str] = frozenset()
        self._queue: WorkQueue[str] = WorkQueue("csi-takeover")
        self._controller = Controller("csi-takeover", self._queue, self._look, workers=1)
        self._nodes.on_change(self._node_changed)
        self._config.on_change(lambda _change: self._queue.add_after("map", _SETTLE_SECONDS))

    async def run(self) -> None:
        """With every leadership what was seen is seen anew: who did not look in between can't say how long it lasted."""
        self._outages = Outages(self._settings.watched, self._settings.patience)
        self._queue.add("map")
        await self._controller.run()

    def trouble(self) -> str | None:
        watches: tuple[Cache[Any], ...] = (self._nodes, self._config)
        return "; ".join(f"{watch.name}: {watch.problem}" for watch in watches if watch.problem) or None

    def _node_changed(self, change: Change[Node]) -> None:
        old, new = change.old, change.new
        if old is None or new is None or _seen(old) != _seen(new):
            self._queue.add_after("map", _SETTLE_SECONDS)

    async def _look(self, _key: str) -> float | None:
        now = self._clock()
        seen = [(node.metadata.labels, is_ready(node)) for node in self._nodes]
        self._outages.observe(count(seen, self._settings.labels, self._settings.watched), now)
        said = self._read_map()
        if said is not None:
            self._tell_unknown(said)
            await self._act(said, self._outages.judge(said, now))
        return self._outages.next_look_seconds(now)

    def _read_map(self) -> TakeoverMap | None:
        """None while it can't be read: then nobody's map is touched."""
        found = self._config.get(self._settings.config_map)
        try:
            said = takeover.read(found.data if found else {}, self._settings.labels.names)
        except TakeoverError as error:
            if str(error) != self._map_problem:
                self._map_problem = str(error)
                _log.warning("the takeover map can't be read", error=self._map_problem)
                self._record(Severity.WARNING, "TakeoverMapInvalid", f"{error}; the last map that could be read holds")
            return None
        self._map_problem = ""
        return said

    def _tell_unknown(self, said: TakeoverMap) -> None:
        """A domain that no node is in may be a mistake in writing, or have lost its last node."""
        present = [self._settings.labels.segments(node.metadata.labels) for node in self._nodes]
        named = {domain for source, targets in said.entries.items() for domain in (source, *targets)}
        unknown = frozenset(str(domain) for domain in named if not any(domain.holds(each) for each in present))
        for name in sorted(unknown - self._unknown):
            _log.warning("the takeover map names a domain without nodes", domain=name)
            note = f"no node is in {name}, which {takeover.MAP} names: is it written as the nodes' labels have it?"
            self._record(Severity.WARNING, "TakeoverDomainUnknown", note)
        self._unknown = unknown

    async def _act(self, said: TakeoverMap, verdicts: list[OutageVerdict]) -> None:
        """What we wrote and somebody removed while the domain was down is not written again before it was back."""
        found = self._config.get(self._settings.config_map)
        ours = automatic(found.metadata.annotations) if found else frozenset[str]()
        done = [verdict for verdict in verdicts if self._may(verdict, ours)]
        kept = ours & ({str(source) for source in said.entries} | {str(domain) for domain in self._outages.down()})
        if done or kept != ours:
            await self._write(found, done, kept)
        current = {(verdict.act, verdict.domain) for verdict in verdicts}
        for verdict in verdicts:
            if verdict not in done and (verdict.act, verdict.domain) not in self._said:
                self._propose(verdict)
        self._said = current

    def _may(self, verdict: OutageVerdict, ours: frozenset[str]) -> bool:
        match verdict.act:
            case TakeoverAction.TAKE_OVER:
                return self._settings.writes and str(verdict.domain) not in ours
            case TakeoverAction.GIVE_BACK:
                return self._settings.writes and str(verdict.domain) in ours
            case TakeoverAction.HOLD:
                return False

    async def _write(self, found: ConfigMap | None, done: list[OutageVerdict], ours: frozenset[str]) -> None:
        taken = {str(verdict.domain): verdict.targets for verdict in done if verdict.act is TakeoverAction.TAKE_OVER}
        given = {str(verdict.domain) for verdict in done if verdict.act is TakeoverAction.GIVE_BACK}
        place = self._settings.config_map
        metadata: dict[str, Any] = {"annotations": {AUTOMATIC: json.dumps(sorted((ours - given) | taken.keys()))}}
        data = edited(found.data if found else {}, taken, given)
        if found is None:
            body = {"metadata": metadata | {"name": place.name}, "data": data}
            await self._client.create(CONFIG_MAPS, body, place.namespace)
        else:
            guarded = metadata | {"resourceVersion": found.metadata.resource_version}
            await self._client.patch(
                CONFIG_MAPS, place.name, MergePatch({"metadata": guarded, "data": data}), place.namespace
            )
        for verdict in done:
            TAKEOVERS.labels(str(verdict.act)).inc()
            what = "DomainTakenOver" if verdict.act is TakeoverAction.TAKE_OVER else "DomainGivenBack"
            by = f"; {', '.join(verdict.targets)} take it over" if verdict.targets else "; it is given back"
            _log.warning("the takeover map was changed", act=str(verdict.act), domain=str(verdict.domain))
            self._record(Severity.WARNING, what, f"{verdict.reason}{by}")

    def _propose(self, verdict: OutageVerdict) -> None:
        _log.warning("a takeover is proposed", act=str(verdict.act), reason=str(verdict.reason))
        match verdict.act:
            case TakeoverAction.TAKE_OVER:
                command = f"zonewise csi takeover {verdict.domain} {' '.join(verdict.targets)}"
                self._record(Severity.WARNING, "TakeoverProposed", f"{verdict.reason}; to take it over: {command}")
            case TakeoverAction.GIVE_BACK:
                command = f"zonewise csi giveback {verdict.domain}"
                self._record(Severity.NORMAL, "GivebackProposed", f"{verdict.reason}; to give it back: {command}")
            case TakeoverAction.HOLD:
                self._record(Severity.WARNING, "TakeoverHeld", str(verdict.reason))

    def _record(self, severity: Severity, reason: str, note: str) -> None:
        place = self._settings.config_map
        about = ObjectReference(api_version="v1", kind="ConfigMap", namespace=place.namespace, name=place.name)
        self._recorder.record(about, severity, reason, note)


def _seen(node: Node) -> tuple[object, ...]:
    return is_ready(node), node.metadata.labels
