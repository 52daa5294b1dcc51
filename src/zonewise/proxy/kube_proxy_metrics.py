"""Metrics of kube-proxy, under its names, labels and buckets: dashboards and clusterloader2 read ours as they read its.

They are counted in either mode. Beside a kube-proxy on the same node, which skips Services with our label and their
slices, each change counts in one of the two; so the sum over both is that of the node.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from prometheus_client import Histogram

from zonewise.proxy.decide.programming_latency import TriggerTime

PROGRAMMING_BUCKETS: Final = (0, 0.25, 0.5, *range(1, 60), *range(60, 120, 5), *range(120, 301, 30))
"""The first one is an accident of kube-proxy's. It counts latencies by clocks that are behind."""
SYNC_BUCKETS: Final = tuple(0.001 * 2**power for power in range(15))

PROGRAMMING_SECONDS = Histogram(
    "kubeproxy_network_programming_duration_seconds",
    "From the change that an EndpointSlice states to this node's rules",
    ["ip_family"],
    buckets=PROGRAMMING_BUCKETS,
)
SYNC_SECONDS = Histogram(
    "kubeproxy_sync_proxy_rules_duration_seconds",
    "Duration of a sync of an address family's rules, failed ones included",
    ["ip_family"],
    buckets=SYNC_BUCKETS,
)


def count_programmed(triggers: Iterable[TriggerTime], now: datetime) -> None:
    for trigger in triggers:
        PROGRAMMING_SECONDS.labels(trigger.family).observe(trigger.latency_seconds(now))


def count_sync(families: Iterable[str], seconds: float) -> None:
    for family in families:
        SYNC_SECONDS.labels(family).observe(seconds)
