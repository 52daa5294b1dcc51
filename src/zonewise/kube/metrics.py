"""Metrics of control loops: work queues, reconciles, leases and events.

Names that client-go has made customary (`workqueue_*`, `leader_election_master_status`) are kept, so that existing
dashboards and alerts read ours too.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import Counter, Gauge, Histogram

_QUEUE_BUCKETS = (1e-5, 1e-4, 1e-3, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60)
_RECONCILE_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60)

_QUEUE_DEPTH = Gauge("workqueue_depth", "Keys that wait for a worker", ["name"])
_QUEUE_ADDS = Counter("workqueue_adds", "Keys added; one that already waits is not counted again", ["name"])
_QUEUE_RETRIES = Counter("workqueue_retries", "Keys added again after a failure", ["name"])
_QUEUE_SECONDS = Histogram(
    "workqueue_queue_duration_seconds", "How long a key waits for a worker", ["name"], buckets=_QUEUE_BUCKETS
)
_WORK_SECONDS = Histogram(
    "workqueue_work_duration_seconds", "How long a worker holds a key", ["name"], buckets=_QUEUE_BUCKETS
)
_UNFINISHED_SECONDS = Gauge(
    "workqueue_unfinished_work_seconds", "How long the workers have held their present keys, in sum", ["name"]
)
_LONGEST_RUNNING_SECONDS = Gauge(
    "workqueue_longest_running_processor_seconds", "How long the slowest worker has held its present key", ["name"]
)

RECONCILES = Counter("zonewise_reconcile", "Reconciles by how they ended", ["controller", "result"])
RECONCILE_SECONDS = Histogram(
    "zonewise_reconcile_seconds", "How long a reconcile takes", ["controller"], buckets=_RECONCILE_BUCKETS
)

LEADING = Gauge("leader_election_master_status", "1 while this process leads", ["name"])
LEADERSHIP_CHANGES = Counter("zonewise_leadership_changes", "Leadership gained, lost or released", ["name", "change"])
LEASE_ERRORS = Counter("zonewise_lease_errors", "Failed calls for a lease; one alone does no harm", ["name"])

EVENTS = Counter("zonewise_events", "Events by what became of them", ["outcome"])


class QueueMetrics:
    """The metrics of one queue; what is a state, not a count, is asked for when it is scraped."""

    def __init__(
        self,
        name: str,
        *,
        depth: Callable[[], float],
        unfinished_seconds: Callable[[], float],
        longest_running_seconds: Callable[[], float],
    ) -> None:
        self.adds = _QUEUE_ADDS.labels(name)
        self.retries = _QUEUE_RETRIES.labels(name)
        self.queue_seconds = _QUEUE_SECONDS.labels(name)
        self.work_seconds = _WORK_SECONDS.labels(name)
        _QUEUE_DEPTH.labels(name).set_function(depth)
        _UNFINISHED_SECONDS.labels(name).set_function(unfinished_seconds)
        _LONGEST_RUNNING_SECONDS.labels(name).set_function(longest_running_seconds)
