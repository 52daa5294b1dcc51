"""Metrics of the DNS server: sums of the workers' reports, by the client's zone where it matters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client import Counter, Gauge
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import REGISTRY, Collector

from zonewise.dns.wire.ipc import WorkerReport

QUERIES: Final = Counter(
    "zonewise_dns_queries", "Queries, by the zone of the client's node; empty where unknown", ["zone"]
)
DENIALS: Final = Counter("zonewise_dns_denials", "Answers without records: NXDOMAIN or NODATA", ["kind"])
TOPOLOGY_ANSWERS: Final = Counter(
    "zonewise_dns_topology_answers",
    "Answers of Services with a rule: near if the rule or preference was met, far if all endpoints were returned",
    ["reach"],
)
HANDED_OVER: Final = Counter("zonewise_dns_handed_over", "UDP queries passed to the TCP and forwarding worker")
LIMITED: Final = Counter("zonewise_dns_limited", "Queries over one of the client's rate limits, redirected to TCP")
FORWARDS_REFUSED: Final = Counter(
    "zonewise_dns_forwards_refused",
    "Queries not forwarded because the client has its share under way, and older ones given up for newer ones",
    ["reason"],
)
DROPPED: Final = Counter("zonewise_dns_dropped", "Queries or replies dropped because a queue was full")
ERRORS: Final = Counter("zonewise_dns_errors", "Packets whose handling failed: each is a bug")
NAMES: Final = Gauge("zonewise_dns_names", "Names in the cluster's domain")
RESTARTS: Final = Counter("zonewise_dns_process_restarts", "Workers that exited and were restarted")

_BUCKETS: Final = tuple(2**power / 4 for power in range(24))
"""Microseconds, as in `worker.LATENCY_BUCKETS`."""


class DnsLatency(Collector):
    """One query in 64 is timed, from receipt to reply."""

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
        family = HistogramMetricFamily("zonewise_dns_duration_seconds", "Time to answer a query, sampled")
        family.add_metric([], [*buckets, ("+Inf", total)], self._sum_seconds)
        yield family


LATENCY: Final = DnsLatency()
REGISTRY.register(LATENCY)


def add_report(report: WorkerReport, zones: Mapping[str, str]) -> None:
    """`zones` by node."""
    for node, count in report.queries.items():
        QUERIES.labels(zones.get(node, "")).inc(count)
    for kind in ("nxdomain", "nodata"):
        DENIALS.labels(kind).inc(report.answers[kind])
    for reach in ("near", "far"):
        TOPOLOGY_ANSWERS.labels(reach).inc(report.answers[reach])
    for kind, reason in (("refused", "share"), ("given_up", "expired")):
        FORWARDS_REFUSED.labels(reason).inc(report.answers[kind])
    HANDED_OVER.inc(report.answers["handed_over"])
    LIMITED.inc(report.limited)
    DROPPED.inc(report.dropped)
    ERRORS.inc(report.errors)
    LATENCY.add(report.latency)
