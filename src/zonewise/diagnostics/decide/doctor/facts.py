"""What the doctor looks at, as plain values: `examination` reads them from a cluster, a dump has some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from zonewise.diagnostics.decide.status.assemble import ClusterSnapshot
from zonewise.install.decide.rights import Right
from zonewise.objects import Lease
from zonewise.objects.admissionregistration import WebhookConfiguration
from zonewise.objects.apps import DaemonSet


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFacts:
    """None stands for what could not be found out.

    `ahead_seconds` is how far this machine's clock is ahead of the API server's. `reached` has a line per webhook: empty
    where the API server reaches it, None where nobody may try. `allowed` are rights of whoever asks, `running` those of
    components by name.
    """

    seen: ClusterSnapshot
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
