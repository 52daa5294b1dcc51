"""Metrics of the slice controller, named as the stock controller's, so that its dashboards and alerts work.

The stock controller's counters do not end in `_total`, which this library appends to every counter, so they are gauges
here that only rise. `changes_endpointslices_per_sync` and `reallocated_endpoints_per_sync` are Zonewise's own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from prometheus_client import Gauge, Histogram

from zonewise.objects import Key, Service, key_of
from zonewise.routing import Decision
from zonewise.routing.policy import AutomaticHints, SameDomain, Strength, TrafficDistribution, hints_enabled
from zonewise.slices.decide.plan import SlicesPlan

_SUBSYSTEM: Final = "endpoint_slice_controller"
_POWERS_OF_TWO: Final = tuple(2.0**power for power in range(1, 16))


def _histogram(name: str, help_text: str, labels: tuple[str, ...] = (), buckets: tuple[float, ...] = ()) -> Histogram:
    options = {"buckets": buckets} if buckets else {}
    return Histogram(name, help_text, labels, subsystem=_SUBSYSTEM, **options)  # type: ignore[arg-type]


def _gauge(name: str, help_text: str, labels: tuple[str, ...] = ()) -> Gauge:
    return Gauge(name, help_text, labels, subsystem=_SUBSYSTEM)


ADDED: Final = _histogram("endpoints_added_per_sync", "Endpoints added on each Service sync", buckets=_POWERS_OF_TWO)
REMOVED: Final = _histogram(
    "endpoints_removed_per_sync", "Endpoints removed on each Service sync", buckets=_POWERS_OF_TWO
)
REALLOCATED: Final = _histogram(
    "reallocated_endpoints_per_sync", "Endpoints given to other zones on each Service sync", buckets=_POWERS_OF_TWO
)
CHANGED: Final = _histogram(
    "endpointslices_changed_per_sync",
    "EndpointSlices changed on each Service sync",
    ("topology", "traffic_distribution"),
)
CHANGED_BY_APPROACH: Final = _histogram(
    "changes_endpointslices_per_sync",
    "EndpointSlices changed on each Service sync, by same-zone approach",
    ("approach",),
)
DESIRED_ENDPOINTS: Final = _gauge("endpoints_desired", "Endpoints desired")
SLICES: Final = _gauge("num_endpoint_slices", "EndpointSlices")
DESIRED_SLICES: Final = _gauge("desired_endpoint_slices", "EndpointSlices that would exist with perfect allocation")
CHANGES: Final = _gauge("changes", "EndpointSlice changes", ("operation",))
SYNCS: Final = _gauge("syncs", "EndpointSlice syncs", ("result",))
SERVICES_BY_DISTRIBUTION: Final = _gauge(
    "services_count_by_traffic_distribution", "Services by trafficDistribution", ("traffic_distribution",)
)


class WriteOperation(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


class WriteResult(StrEnum):
    """The stock controller also counts stale syncs; this one tracks its writes and has none."""

    SUCCESS = "success"
    STALE = "stale"
    ERROR = "error"


CHANGES_BY_OPERATION: Final = {operation: CHANGES.labels(operation) for operation in WriteOperation}
SYNCS_BY_RESULT: Final = {result: SYNCS.labels(result) for result in WriteResult}


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of one Service in the totals."""

    endpoints: int = 0
    slices: int = 0
    desired_slices: int = 0
    distribution: str = ""


_NO_PART: Final = _Part()


class Totals:
    """Sums over all Services, updated by each sync; the gauges read them when scraped."""

    def __init__(self) -> None:
        self._parts: dict[Key, _Part] = {}
        self._endpoints = self._slices = self._desired_slices = 0
        self._distributions: Counter[str] = Counter()
        DESIRED_ENDPOINTS.set_function(lambda: self._endpoints)
        SLICES.set_function(lambda: self._slices)
        DESIRED_SLICES.set_function(lambda: self._desired_slices)
        for value in TrafficDistribution:
            SERVICES_BY_DISTRIBUTION.labels(value).set_function(partial(self._distributions.__getitem__, value))

    def note(self, service: Service, plan: SlicesPlan) -> None:
        distribution = _distribution(service)
        part = _Part(plan.desired_endpoints, plan.slices, plan.desired_slices, distribution)
        self._put(key_of(service), part)

    def forget(self, service: Key) -> None:
        self._put(service, _NO_PART)
        del self._parts[service]

    def _put(self, service: Key, part: _Part) -> None:
        before = self._parts.get(service, _NO_PART)
        self._parts[service] = part
        self._endpoints += part.endpoints - before.endpoints
        self._slices += part.slices - before.slices
        self._desired_slices += part.desired_slices - before.desired_slices
        self._distributions[before.distribution] -= 1
        self._distributions[part.distribution] += 1


def observe(service: Service, plan: SlicesPlan) -> None:
    ADDED.observe(plan.added)
    REMOVED.observe(plan.removed)
    REALLOCATED.observe(plan.reallocated)
    topology = "Auto" if hints_enabled(service.metadata.annotations) else "Disabled"
    CHANGED.labels(topology, _distribution(service)).observe(plan.writes)
    CHANGED_BY_APPROACH.labels(_approach(plan)).observe(plan.writes)


def _distribution(service: Service) -> str:
    """The value in effect: empty if automatic hints take precedence or the value is unknown."""
    value = service.spec.traffic_distribution
    if value is None or value not in set(TrafficDistribution) or hints_enabled(service.metadata.annotations):
        return ""
    return value


def _approach(plan: SlicesPlan) -> str:
    decision: Decision | None = next(iter(plan.decisions.values()), None)
    match decision.reading.policy if decision else None:
        case SameDomain() as policy:
            return policy.zone
        case AutomaticHints():
            return "Auto"
        case _:
            return Strength.BALANCED
