"""Tells how each Service is routed: in its annotation, in events, in metrics. Called after every sync.

`news` decides what to say; here it is said. The annotation is written first and the events after it, so that a process
that dies in between leaves out an event rather than repeat one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from prometheus_client import Counter, Gauge

from zonewise import log
from zonewise.api.names import ROUTING_STATE
from zonewise.kube.client.client import Client
from zonewise.kube.controller.recorder import Recorder, Severity, reference_to
from zonewise.kube.wire.errors import Conflict, Invalid, NotFound
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import NODES, SERVICES, Key, ObjectReference, Service, key_of
from zonewise.routing import Decision, HintsExpression, RoutingNodes, RoutingReason
from zonewise.slices.decide.service_status import ServiceRoutingState, foreign_complaints
from zonewise.slices.decide.status_diff import StatusReport, report_on

_log = log.get_logger(__name__)

_STATES = Gauge(
    "zonewise_services", "Services that ask for topology, by how they are routed", ["policy", "code", "active"]
)
_IN_ZONE = Gauge(
    "zonewise_predicted_in_zone_share",
    "Part of a Service's traffic predicted to stay in its zone",
    ["namespace", "service"],
)
_OVERLOAD = Gauge(
    "zonewise_predicted_worst_overload",
    "How far above an even share the busiest endpoint is predicted to be",
    ["namespace", "service"],
)
_FLIPS = Counter(
    "zonewise_routing_flips", "How often a Service's policy came into force or ceased to be", ["namespace", "service"]
)


class _Ahead(NamedTuple):
    """What was written last, and as which version, while the watch may still show what was there earlier."""

    uid: str
    version: int
    text: str | None


class RoutingReporter:
    """`stock_events`: say about automatic hints what the stock controller says, too."""

    def __init__(
        self,
        client: Client,
        recorder: Recorder,
        *,
        stock_events: bool = False,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client
        self._recorder = recorder
        self._stock_events = stock_events
        self._wall = wall
        self._ahead: dict[Key, _Ahead] = {}
        self._measured: dict[Key, ServiceRoutingState] = {}
        self._told: dict[str, frozenset[RoutingReason]] = {}

    async def report(
        self,
        service: Service,
        decisions: Mapping[str, Decision],
        expressions: Mapping[str, HintsExpression],
        cluster: RoutingNodes,
    ) -> None:
        """`decisions` and `expressions` by address type, as the sync made them."""
        written = self._written(service)
        report = report_on(
            service, decisions, expressions, cluster, written, self._wall(), stock_events=self._stock_events
        )
        self._measure(key_of(service), report.state)
        self._tell_others(service, decisions, cluster)
        if report.changes and await self._write(service, report):
            for note in report.notes:
                self._recorder.record(reference_to(SERVICES, service), note.severity, note.reason, note.text)

    def forget(self, service: Key) -> None:
        """The Service is gone."""
        self._measure(service, None)
        self._ahead.pop(service, None)

    def _written(self, service: Service) -> str | None:
        """The annotation as it is on the server, as far as we know."""
        seen, key = service.metadata.annotations.get(ROUTING_STATE), key_of(service)
        ahead = self._ahead.get(key)
        if ahead and ahead.uid == service.metadata.uid and int(service.metadata.resource_version) < ahead.version:
            return ahead.text
        self._ahead.pop(key, None)
        return seen

    async def _write(self, service: Service, report: StatusReport) -> bool:
        """False where the Service is gone, or another one has its name. Where its annotations are full, events remain."""
        metadata = service.metadata
        patch = MergePatch({"metadata": {"uid": metadata.uid, "annotations": {ROUTING_STATE: report.text}}})
        try:
            made = await self._client.patch(SERVICES, metadata.name, patch, metadata.namespace)
            version = int(made.metadata.resource_version)
        except (NotFound, Conflict):
            return False
        except Invalid as error:
            _log.warning("state not written", service=str(key_of(service)), error=str(error))
            version = sys.maxsize
        self._ahead[key_of(service)] = _Ahead(metadata.uid, version, report.text)
        return True

    def _measure(self, service: Key, state: ServiceRoutingState | None) -> None:
        before = self._measured.pop(service, None)
        if before:
            _STATES.labels(*_labels(before)).dec()
        if state:
            self._measured[service] = state
            _STATES.labels(*_labels(state)).inc()
            _IN_ZONE.labels(*service).set(state.in_zone)
            _OVERLOAD.labels(*service).set(state.worst_overload)
            flips = _FLIPS.labels(*service)
            if before and (before.policy, not before.active) == (state.policy, state.active):
                flips.inc()
        elif before:
            for metric in (_IN_ZONE, _OVERLOAD, _FLIPS):
                metric.remove(*service)

    def _tell_others(self, service: Service, decisions: Mapping[str, Decision], cluster: RoutingNodes) -> None:
        """What nodes and namespaces say wrong is told there, once while it stands."""
        self._tell("", cluster.node_drains.drain.complaints, cluster)
        namespace = service.metadata.namespace
        said = [complaint for decision in decisions.values() for complaint in foreign_complaints(decision)]
        if decisions:  # else the Service has no endpoints to speak of, and nothing is known of its namespace
            self._tell(namespace, said, cluster)

    def _tell(self, where: str, complaints: Iterable[RoutingReason], cluster: RoutingNodes) -> None:
        told = self._told.pop(where, frozenset())
        if standing := frozenset(complaints):
            self._told[where] = standing
        for complaint in sorted(standing - told, key=str):
            text = f"{complaint.sentence}. What helps: {complaint.remedy}"
            self._recorder.record(_reference(complaint, cluster), Severity.WARNING, complaint.code, text)


def _labels(state: ServiceRoutingState) -> tuple[str, str, str]:
    return state.policy, state.code, "true" if state.active else "false"


def _reference(complaint: RoutingReason, cluster: RoutingNodes) -> ObjectReference:
    kind, name = complaint.blame[0]
    if kind == "Node" and (node := cluster.nodes.get(name)):
        return reference_to(NODES, node)
    return ObjectReference(api_version="v1", kind=kind, name=name)
