"""The health of a node's proxy, as kube-proxy's `/healthz` and `/livez` state it.

Load balancers of clouds ask `/healthz` whether a node may get new connections, so a node that an autoscaler is about to
remove is not eligible. `/livez` leaves that out.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from zonewise.objects import Node

LATE: Final = timedelta(seconds=60)
"""Two of kube-proxy's sync periods: changes that wait for longer are stuck."""
_REMOVED_SOON: Final = "ToBeDeletedByClusterAutoscaler"


@dataclass(frozen=True, slots=True)
class SyncState:
    """`waiting_since`: of the oldest change that is not in the kernel, None if there is none."""

    last_sync: datetime | None = None
    waiting_since: datetime | None = None

    def healthy_at(self, now: datetime) -> bool:
        in_time = self.waiting_since is None or now - self.waiting_since < LATE
        return self.last_sync is not None and in_time


@dataclass(frozen=True, slots=True)
class NodeHealth:
    now: datetime
    last_updated: datetime | None
    healthy: bool
    eligible: bool

    @classmethod
    def of(cls, state: SyncState, node: Node, now: datetime) -> NodeHealth:
        healthy = state.healthy_at(now)
        return cls(now, now if healthy else state.last_sync, healthy, is_eligible(node))

    @property
    def body(self) -> dict[str, Any]:
        last = self.last_updated.isoformat() if self.last_updated else ""
        return {"lastUpdated": last, "currentTime": self.now.isoformat(), "nodeEligible": self.eligible}


def is_eligible(node: Node) -> bool:
    """For new connections from load balancers."""
    leaving = node.metadata.deletion_timestamp is not None
    return not leaving and all(taint.key != _REMOVED_SOON for taint in node.spec.taints)
