"""Traffic counters to increments, samples and history."""

from __future__ import annotations

from zonewise.dashboard.decide.traffic import (
    ALL_SERVICES,
    BUCKET_SECONDS,
    BUCKETS,
    RECENT_SECONDS,
    DashboardTraffic,
    TrafficHistory,
    TrafficSample,
)
from zonewise.diagnostics.decide.status.traffic import TrafficPath, ZoneFlow
from zonewise.objects import Key

SHOP = Key("shop", "catalog")
IN_ZONE = TrafficPath(SHOP, "a", "a")
ACROSS = TrafficPath(SHOP, "a", "b")
ZONES = ("a", "b")


def test_the_first_counters_of_a_proxy_are_a_baseline() -> None:
    meter = DashboardTraffic()
    meter.add("node-1", {IN_ZONE: 1000.0})
    assert meter.sample(100.0, ZONES).services == {}
    meter.add("node-1", {IN_ZONE: 1300.0, ACROSS: 100.0})
    sample = meter.sample(110.0, ZONES)
    assert (sample.seconds, sample.services) == (10.0, {"shop/catalog": (300, 100)})
    assert sample.flows == (ZoneFlow("a", "a", 300), ZoneFlow("a", "b", 100))


def test_a_restarted_proxy_counts_from_zero() -> None:
    meter = DashboardTraffic()
    meter.add("node-1", {IN_ZONE: 1000.0})
    meter.add("node-1", {IN_ZONE: 40.0})
    assert meter.sample(100.0, ZONES).services == {"shop/catalog": (40, 0)}


def test_a_proxy_that_was_gone_gets_a_new_baseline() -> None:
    meter = DashboardTraffic()
    meter.add("node-1", {IN_ZONE: 1000.0})
    meter.retain({"node-2"})
    meter.add("node-1", {IN_ZONE: 5000.0})
    assert meter.sample(100.0, ZONES).services == {}


def traffic(at: float, in_zone: int, across: int) -> TrafficSample:
    return TrafficSample(at=at, seconds=5.0, flows=(), services={"shop/catalog": (in_zone, across)} if in_zone else {})


def test_history_sums_by_bucket_and_drops_the_oldest() -> None:
    history = TrafficHistory()
    start = BUCKET_SECONDS * 1000
    history.add(traffic(start, 10, 5))
    history.add(traffic(start + 5, 10, 5))
    history.add(traffic(start + BUCKET_SECONDS, 1, 1))
    assert history.by_service() == {
        "shop/catalog": [(1000, 20, 10), (1001, 1, 1)],
        ALL_SERVICES: [(1000, 20, 10), (1001, 1, 1)],
    }
    history.add(traffic(start + BUCKET_SECONDS * BUCKETS, 0, 0))
    assert history.by_service()["shop/catalog"] == [(1001, 1, 1)]


def test_only_recent_samples_are_kept_for_rates() -> None:
    history = TrafficHistory()
    for at in (0.0, 10.0, RECENT_SECONDS, RECENT_SECONDS + 5):
        history.add(traffic(at, 1, 1))
    assert [sample.at for sample in history.recent] == [10.0, RECENT_SECONDS, RECENT_SECONDS + 5]
