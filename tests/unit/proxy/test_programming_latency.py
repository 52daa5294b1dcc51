"""Which changes of slices count for network programming latency, and how late they are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from unit.proxy.build import slice_of
from zonewise.objects import EndpointSlice, Key
from zonewise.objects.change import Change
from zonewise.proxy.decide.programming_latency import PendingTriggerTimes, TriggerTime
from zonewise.proxy.kube_proxy_metrics import PROGRAMMING_BUCKETS, SYNC_BUCKETS

STARTED = datetime(2026, 1, 1, 12, 0, 0, 500_000, UTC)
WEB, API = "web", "api"
FIRST, SECOND = "2026-01-01T12:00:01Z", "2026-01-01T12:00:02Z"


def written(trigger: str | None, service: str = WEB, name: str = "1", family: str = "IPv4") -> EndpointSlice:
    annotations = {"endpoints.kubernetes.io/last-change-trigger-time": trigger} if trigger is not None else {}
    labels = {"kubernetes.io/service-name": service} if service else {}
    metadata = {
        "name": f"{service}-{name}",
        "namespace": "shop",
        "labels": labels,
        "annotations": {"other": "note", **annotations},
    }
    return slice_of(metadata=metadata, addressType=family)


def put(endpoint_slice: EndpointSlice, old: EndpointSlice | None = None) -> Change[EndpointSlice]:
    return Change(Key("shop", endpoint_slice.metadata.name), old, endpoint_slice)


def removed(endpoint_slice: EndpointSlice) -> Change[EndpointSlice]:
    return Change(Key("shop", endpoint_slice.metadata.name), endpoint_slice, None)


def seconds(family: str, *after_noon: float) -> set[tuple[str, float]]:
    return {(family, value) for value in after_noon}


@dataclass(frozen=True)
class Case:
    """`counted`: family and trigger time in seconds after noon."""

    changes: tuple[Change[EndpointSlice], ...]
    counted: set[tuple[str, float]]


CASES = {
    "an added slice": Case((put(written(FIRST)),), seconds("IPv4", 1)),
    "two slices of a Service": Case((put(written(FIRST)), put(written(SECOND, name="2"))), seconds("IPv4", 1, 2)),
    "each update before one sync": Case(
        (put(written(FIRST)), put(written(SECOND), old=written(FIRST))), seconds("IPv4", 1, 2)
    ),
    "two Services": Case((put(written(FIRST)), put(written(SECOND, API))), seconds("IPv4", 1, 2)),
    "both families": Case(
        (put(written(FIRST)), put(written(SECOND, name="2", family="IPv6"))), {("IPv4", 1.0), ("IPv6", 2.0)}
    ),
    "names for addresses": Case((put(written(FIRST, family="FQDN")),), set()),
    "a slice of no Service": Case((put(written(FIRST, service="")),), set()),
    "a fraction of nine digits": Case((put(written("2026-01-01T12:00:01.250000123Z")),), seconds("IPv4", 1.25)),
    "another time zone": Case((put(written("2026-01-01T13:00:01+01:00")),), seconds("IPv4", 1)),
    "a time that is not reached yet": Case((put(written("2026-01-01T12:01:00Z")),), seconds("IPv4", 60)),
    "no annotation": Case((put(written(None)),), set()),
    "an empty annotation": Case((put(written("")),), set()),
    "no time": Case((put(written("soon")),), set()),
    "a time without a zone": Case((put(written("2026-01-01T12:00:01")),), set()),
    "a change before the start": Case((put(written("2026-01-01T11:59:59Z")),), set()),
    "a change in the second of the start": Case((put(written("2026-01-01T12:00:00Z")),), set()),
    "a change at the start itself": Case((put(written("2026-01-01T12:00:00.5Z")),), set()),
    "a removed slice": Case((removed(written(FIRST)),), set()),
    "a removal drops what its Service waits for": Case(
        (put(written(FIRST)), removed(written(SECOND, name="2"))), set()
    ),
    "a removal leaves other Services alone": Case(
        (put(written(FIRST)), removed(written(FIRST, API))), seconds("IPv4", 1)
    ),
    "a removal leaves the other family alone": Case(
        (put(written(FIRST)), removed(written(FIRST, name="2", family="IPv6"))), seconds("IPv4", 1)
    ),
    "an addition after a removal": Case((removed(written(FIRST)), put(written(SECOND))), seconds("IPv4", 2)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_changes_that_count(case: Case) -> None:
    pending = PendingTriggerTimes(STARTED)
    for change in case.changes:
        pending.slice_changed(change)
    noon = STARTED.replace(microsecond=0)
    taken = pending.take()
    assert {(trigger.family, (trigger.time - noon).total_seconds()) for trigger in taken} == case.counted
    assert len(taken) == len(case.counted)


def test_same_time_counts_for_each_change() -> None:
    """A change with many slices is as many changes of rules."""
    pending = PendingTriggerTimes(STARTED)
    for name in ("1", "2", "2"):
        pending.slice_changed(put(written(FIRST, name=name)))
    assert len(pending.take()) == 3
    assert pending.take() == [], "each counts in one sync"


def test_undecided_service_does_not_count() -> None:
    pending = PendingTriggerTimes(STARTED)
    for service, family in ((WEB, "IPv4"), (WEB, "IPv6"), (API, "IPv4")):
        pending.slice_changed(put(written(FIRST, service, family=family)))
    pending.drop(Key("shop", WEB))
    assert [trigger.family for trigger in pending.take()] == ["IPv4"]


@pytest.mark.parametrize(("after", "latency"), [(0.75, 0.75), (3600, 3600.0), (-2, -2.0)])
def test_latency_is_from_the_trigger_to_the_rules(after: float, latency: float) -> None:
    assert TriggerTime("IPv4", STARTED).latency_seconds(STARTED + timedelta(seconds=after)) == latency


def test_buckets_are_those_of_kube_proxy() -> None:
    """`pkg/proxy/metrics`: 0, a quarter and half a second, each second of a minute, then every 5 s, then every 30 s."""
    assert len(PROGRAMMING_BUCKETS) == 1 + 2 + 59 + 12 + 7
    assert PROGRAMMING_BUCKETS[:5] == (0, 0.25, 0.5, 1, 2)
    assert PROGRAMMING_BUCKETS[60:65] == (58, 59, 60, 65, 70)
    assert PROGRAMMING_BUCKETS[-9:] == (110, 115, 120, 150, 180, 210, 240, 270, 300)
    assert (len(SYNC_BUCKETS), SYNC_BUCKETS[0], SYNC_BUCKETS[-1]) == (15, 0.001, 16.384)
