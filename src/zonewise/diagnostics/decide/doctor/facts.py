"""Input of the doctor's checks, read from a live cluster or, in part, from a dump."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zonewise.diagnostics.decide.status.assemble import ClusterSnapshot
from zonewise.install.decide.right import Right
from zonewise.objects import Lease
from zonewise.objects.admissionregistration import WebhookConfiguration
from zonewise.objects.apps import DaemonSet


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFacts:
    """None stands for a fact that may not be read.

    `ahead_seconds`: how far this machine's clock is ahead of the API server's. `reached`, by webhook: empty if the API
    server reaches it, else why not; None if the probe is forbidden. `allowed`: rights of the caller. `running`: rights of
    the components by name.
    """

    snapshot: ClusterSnapshot
    live: bool = True
    ahead_seconds: float | None = None
    user: str = ""
    daemon_sets: Sequence[DaemonSet] = ()
    kube_proxy_config: str | None = None
    cilium_config: Mapping[str, str] | None = None
    other_webhooks: Sequence[WebhookConfiguration] = ()
    node_leases: Sequence[Lease] = ()
    reached: Mapping[str, str | None] = field(default_factory=dict)
    allowed: Mapping[Right, bool] = field(default_factory=dict)
    running: Mapping[str, Mapping[Right, bool]] = field(default_factory=dict)
    budgets_known: bool | None = None
