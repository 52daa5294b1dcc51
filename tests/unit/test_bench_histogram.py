"""Quantiles of a histogram from its page, as `histogram_quantile` of Prometheus gives them."""

from __future__ import annotations

import pytest
from bench.programming_latency.histogram import read
from prometheus_client import CollectorRegistry, Histogram, generate_latest

BOUNDS = (0, 0.25, 0.5, 1, 2)


def page(*observations: tuple[str, float]) -> str:
    registry = CollectorRegistry()
    histogram = Histogram("latency_seconds", "A test", ["ip_family"], buckets=BOUNDS, registry=registry)
    for family, value in observations:
        histogram.labels(family).observe(value)
    return generate_latest(registry).decode()


@pytest.mark.parametrize(
    ("values", "share", "quantile"),
    [
        ([0.01] * 100, 0.5, 0.125),
        ([0.01] * 100, 0.99, 0.2475),
        ([0.01] * 50 + [0.75] * 50, 0.5, 0.25),
        ([0.01] * 50 + [0.75] * 50, 0.75, 0.75),
        ([0.01] * 98 + [1.5] * 2, 0.99, 1.5),
        ([9.0], 0.5, 2.0),
    ],
)
def test_quantile_is_linear_within_a_bucket(values: list[float], share: float, quantile: float) -> None:
    histogram = read(page(*(("IPv4", value) for value in values)), "latency_seconds")
    assert histogram.quantile(share) == pytest.approx(quantile)


def test_series_are_added_up_and_earlier_observations_left_out() -> None:
    early = (("IPv4", 1.5),)
    before = read(page(*early), "latency_seconds")
    since = read(page(*early, ("IPv4", 0.125), ("IPv6", 0.375)), "latency_seconds").since(before)
    assert (since.count, since.mean) == (2, pytest.approx(0.25))


def test_page_without_the_histogram_is_empty() -> None:
    empty = read(page(), "latency_seconds")
    assert empty.count == 0
    with pytest.raises(ValueError, match="no observation"):
        empty.quantile(0.5)
