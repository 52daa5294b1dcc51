"""Health of a node as kube-proxy states it: changes that wait too long, and nodes that are about to go."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from zonewise.objects import Metadata, Node
from zonewise.objects.core import NodeSpec, Taint
from zonewise.proxy.decide.node_health import NodeHealth, SyncState

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(seconds=59)
TOO_EARLY = NOW - timedelta(seconds=60)


@pytest.mark.parametrize(
    ("state", "healthy", "updated"),
    [
        (SyncState(), False, None),
        (SyncState(waiting_since=EARLIER), False, None),
        (SyncState(TOO_EARLY), True, NOW),
        (SyncState(TOO_EARLY, EARLIER), True, NOW),
        (SyncState(TOO_EARLY, TOO_EARLY), False, TOO_EARLY),
    ],
)
def test_proxy_is_healthy_while_no_change_waits_for_long(
    state: SyncState, *, healthy: bool, updated: datetime | None
) -> None:
    health = NodeHealth.of(state, Node(), NOW)
    assert (health.healthy, health.last_updated) == (healthy, updated)
    assert health.body["lastUpdated"] == (updated.isoformat() if updated else "")


@pytest.mark.parametrize(
    ("node", "eligible"),
    [
        (Node(), True),
        (Node(spec=NodeSpec(taints=(Taint("node.kubernetes.io/unschedulable"),), unschedulable=True)), True),
        (Node(spec=NodeSpec(taints=(Taint("ToBeDeletedByClusterAutoscaler"),))), False),
        (Node(Metadata(deletion_timestamp="2026-01-01T11:59:00Z")), False),
    ],
)
def test_node_that_is_about_to_go_gets_no_new_connections(node: Node, *, eligible: bool) -> None:
    assert NodeHealth.of(SyncState(NOW), node, NOW).body["nodeEligible"] is eligible
