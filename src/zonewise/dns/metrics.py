"""What the server tells of itself: sums of what serving processes report, by the client's zone where it matters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from prometheus_client import Counter, Gauge
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import REGISTRY, Collector

QUERIES = Counter("zonewise_dns_queries", "Queries, by the zone of the client's node; empty where unknown", ["zone"])
DENIALS = Counter("zonewise_dns_denials", "Answers without records: the name does not exist, or has none", ["kind"])
TOPOLOGY_ANSWERS = Counter(
    "zonewise_dns_topology_answers",
    "Answers of Services with a rule: near if the rule or preference was kept, far if all endpoints were given",
    ["reach"],
)
ELSEWHERE = Counter("zonewise_dns_handed_over", "Queries over UDP left to the process that knows more, and asks others")
LIMITED = Counter("zonewise_dns_limited", "Queries of clients over their limit, sent to TCP")
DROPPED = Counter("zonewise_dns_dropped", "Queries or replies that found no room")
ERRORS = Counter("zonewise_dns_errors", "Packets that we failed on: each is a bug")
NAMES = Gauge("zonewise_dns_names", "Names in the cluster's domain")
RESTARTS = Counter("zonewise_dns_process_restarts", "Serving processes that ended and were started again")

_BUCKETS: Final = tuple(2**power / 4 for power in range(24))
"""Microseconds, as the serving processes count."""


class DnsLatency(Collector):
    """One query in 64 is timed, from its receipt to its reply."""

    def __init__(self) -> None:
        self._counts = [0] * len(_BUCKETS)
        self._sum_seconds = 0.0

    def add(self, counts: list[int]) -> None:
        for index, count in enumerate(counts):
            self._counts[index] += count
            self._sum_seconds += count * _BUCKETS[index] * 0.75e-6  # the middle of the bucket

    def collect(self) -> Iterator[HistogramMetricFamily]:
        total, buckets = 0, []
        for bound, count in zip(_BUCKETS, self._counts, strict=True):
            total += count
            buckets.append((repr(bound / 1e6), total))
        family = HistogramMetricFamily("zonewise_dns_duration_seconds", "How long an answer takes us, sampled")
        family.add_metric([], [*buckets, ("+Inf", total)], self._sum_seconds)
        yield family


LATENCY = DnsLatency()
REGISTRY.register(LATENCY)


def take(report: Mapping[str, Any], zones: Mapping[str, str]) -> None:
    """A serving process's report; `zones` by node."""
    for node, count in report["queries"].items():
        QUERIES.labels(zones.get(node, "")).inc(count)
    for kind in ("nxdomain", "nodata"):
        DENIALS.labels(kind).inc(report[kind])
    for reach in ("near", "far"):
        TOPOLOGY_ANSWERS.labels(reach).inc(report[reach])
    for counter, name in ((ELSEWHERE, "elsewhere"), (LIMITED, "limited"), (DROPPED, "dropped"), (ERRORS, "errors")):
        counter.inc(report[name])
    LATENCY.add(report["latency"])
