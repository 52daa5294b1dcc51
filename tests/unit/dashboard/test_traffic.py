"""Counters to rates and shares: what is new counts, once, and is kept for a while."""

from __future__ import annotations

from zonewise.dashboard.decide.traffic import (
    ALL_SERVICES,
    BUCKET_SECONDS,
    BUCKETS,
    RECENT_SECONDS,
    TrafficHistory,
    TrafficMeter,
    TrafficSample,
)
from zonewise.diagnostics.decide.status.traffic import TrafficPath, ZoneFlow
from zonewise.objects import Key

SHOP = Key("shop", "catalog")
STAYS = TrafficPath(SHOP, "a", "a")
CROSSES = TrafficPath(SHOP, "a", "b")
ZONES = ("a", "b")


def test_what_a_proxy_counted_before_we_came_is_not_ours() -> None:
    meter = TrafficMeter()
    meter.add("node-1", {STAYS: 1000.0})
    assert meter.sample(100.0, ZONES).services == {}
    meter.add("node-1", {STAYS: 1300.0, CROSSES: 100.0})
    found = meter.sample(110.0, ZONES)
    assert (found.seconds, found.services) == (10.0, {"shop/catalog": (300, 100)})
    assert found.flows == (ZoneFlow("a", "a", 300), ZoneFlow("a", "b", 100))


def test_a_proxy_that_started_again_counts_from_nothing() -> None:
    meter = TrafficMeter()
    meter.add("node-1", {STAYS: 1000.0})
    meter.add("node-1", {STAYS: 40.0})
    assert meter.sample(100.0, ZONES).services == {"shop/catalog": (40, 0)}


def test_a_proxy_that_is_gone_is_new_when_it_comes_back() -> None:
    meter = TrafficMeter()
    meter.add("node-1", {STAYS: 1000.0})
    meter.retain({"node-2"})
    meter.add("node-1", {STAYS: 5000.0})
    assert meter.sample(100.0, ZONES).services == {}


def traffic(at: float, stayed: int, crossed: int) -> TrafficSample:
    return TrafficSample(at=at, seconds=5.0, flows=(), services={"shop/catalog": (stayed, crossed)} if stayed else {})


def test_history_adds_up_in_buckets_and_forgets_the_oldest() -> None:
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


def test_only_what_is_recent_makes_rates() -> None:
    history = TrafficHistory()
    for at in (0.0, 10.0, RECENT_SECONDS, RECENT_SECONDS + 5):
        history.add(traffic(at, 1, 1))
    assert [one.at for one in history.recent] == [10.0, RECENT_SECONDS, RECENT_SECONDS + 5]
