"""Reporter of Service routing: writes the state annotation, events and metrics after every sync.

`status_diff` decides what to report. The annotation is written before the events, so that a process that dies in
between loses an event rather than repeat one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

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

_STATES: Final = Gauge(
    "zonewise_services", "Services that ask for topology, by how they are routed", ["policy", "code", "active"]
)
_IN_ZONE: Final = Gauge(
    "zonewise_predicted_in_zone_share",
    "Part of a Service's traffic predicted to stay in its zone",
    ["namespace", "service"],
)
_OVERLOAD: Final = Gauge(
    "zonewise_predicted_worst_overload",
    "How far above an even share the busiest endpoint is predicted to be",
    ["namespace", "service"],
)
_FLIPS: Final = Counter(
    "zonewise_routing_flips", "How often a Service's policy came into force or ceased to be", ["namespace", "service"]
)


class _LastWrite(NamedTuple):
    """The last annotation written and its resource version, while the watch may still show an older one."""

    uid: str
    version: int
    text: str | None


class RoutingReporter:
    """`stock_events`: also emit the stock controller's events about automatic hints."""

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
        self._last_writes: dict[Key, _LastWrite] = {}
        self._measured: dict[Key, ServiceRoutingState] = {}
        self._reported: dict[str, frozenset[RoutingReason]] = {}

    async def report(
        self,
        service: Service,
        decisions: Mapping[str, Decision],
        expressions: Mapping[str, HintsExpression],
        cluster: RoutingNodes,
    ) -> None:
        """`decisions` and `expressions` by address type, as the sync made them."""
        annotation = self._stored_annotation(service)
        report = report_on(
            service, decisions, expressions, cluster, annotation, self._wall(), stock_events=self._stock_events
        )
        if report.problem:
            log.warn_once(_log, "routing state unusable", service=str(key_of(service)), problem=report.problem)
        self._measure(key_of(service), report.state)
        self._report_foreign_complaints(service, decisions, cluster)
        if report.changes and await self._write(service, report):
            for note in report.notes:
                self._recorder.record(reference_to(SERVICES, service), note.severity, note.reason, note.text)

    def forget(self, service: Key) -> None:
        """The Service is gone."""
        self._measure(service, None)
        self._last_writes.pop(service, None)

    def _stored_annotation(self, service: Service) -> str | None:
        """The annotation as stored: the watched one, or a newer one that this process wrote."""
        watched, key = service.metadata.annotations.get(ROUTING_STATE), key_of(service)
        last_write = self._last_writes.get(key)
        if (
            last_write
            and last_write.uid == service.metadata.uid
            and int(service.metadata.resource_version) < last_write.version
        ):
            return last_write.text
        self._last_writes.pop(key, None)
        return watched

    async def _write(self, service: Service, report: StatusReport) -> bool:
        """False if the Service is gone or was recreated. If its annotations are too large, only events are emitted."""
        metadata = service.metadata
        patch = MergePatch({"metadata": {"uid": metadata.uid, "annotations": {ROUTING_STATE: report.text}}})
        try:
            updated = await self._client.patch(SERVICES, metadata.name, patch, metadata.namespace)
            version = int(updated.metadata.resource_version)
        except (NotFound, Conflict):
            return False
        except Invalid as error:
            _log.warning("routing state rejected", service=str(key_of(service)), error=str(error))
            version = sys.maxsize
        self._last_writes[key_of(service)] = _LastWrite(metadata.uid, version, report.text)
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

    def _report_foreign_complaints(
        self, service: Service, decisions: Mapping[str, Decision], cluster: RoutingNodes
    ) -> None:
        """Complaints about nodes and the namespace become events there, once while they last."""
        self._report_complaints("", cluster.node_drains.drain.complaints, cluster)
        namespace = service.metadata.namespace
        complaints = [complaint for decision in decisions.values() for complaint in foreign_complaints(decision)]
        if decisions:  # otherwise nothing was decided, and complaints about the namespace are unknown
            self._report_complaints(namespace, complaints, cluster)

    def _report_complaints(self, scope: str, complaints: Iterable[RoutingReason], cluster: RoutingNodes) -> None:
        reported = self._reported.pop(scope, frozenset())
        if current := frozenset(complaints):
            self._reported[scope] = current
        for complaint in sorted(current - reported, key=str):
            text = f"{complaint.sentence}. What helps: {complaint.remedy}"
            self._recorder.record(_reference(complaint, cluster), Severity.WARNING, complaint.code, text)


def _labels(state: ServiceRoutingState) -> tuple[str, str, str]:
    return state.policy, state.code, "true" if state.active else "false"


def _reference(complaint: RoutingReason, cluster: RoutingNodes) -> ObjectReference:
    kind, name = complaint.blame[0]
    if kind == "Node" and (node := cluster.nodes.get(name)):
        return reference_to(NODES, node)
    return ObjectReference(api_version="v1", kind=kind, name=name)
