"""What the doctor looks at, as plain values: `examination` reads them from a cluster, a dump has some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from zonewise.objects import Lease
from zonewise.objects.admissionregistration import WebhookConfiguration
from zonewise.objects.apps import DaemonSet
from zonewise.seeing.status import Seen


class Need(NamedTuple):
    """A right: this verb on these objects, in a namespace or anywhere."""

    verb: str
    group: str
    resource: str
    namespace: str = ""

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {kind}{f' in {self.namespace}' if self.namespace else ''}"


_SLICES: Final = "discovery.k8s.io"
INSTALLING: Final = (
    Need("create", "", "namespaces"),
    Need("create", "apps", "deployments", "zonewise-system"),
    Need("create", "apps", "daemonsets", "zonewise-system"),
    Need("create", "rbac.authorization.k8s.io", "clusterroles"),
    Need("create", "rbac.authorization.k8s.io", "clusterrolebindings"),
    Need("create", "admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    Need("create", "apiextensions.k8s.io", "customresourcedefinitions"),
)
"""What whoever installs Zonewise must be allowed to do."""

RUNNING: Final[Mapping[str, tuple[Need, ...]]] = {
    "zonewise-controller": (
        Need("watch", "", "nodes"),
        Need("patch", "", "services"),
        Need("watch", _SLICES, "endpointslices"),
        Need("patch", _SLICES, "endpointslices"),
    ),
    "zonewise-webhook": (
        Need("watch", "", "nodes"),
        Need("get", "", "services"),
        Need("watch", _SLICES, "endpointslices"),
    ),
    "zonewise-disruption": (
        Need("watch", "", "pods"),
        Need("patch", "zonewise.dev", "topologydisruptionbudgets/status"),
    ),
    "zonewise-guard": (Need("watch", "zonewise.dev", "topologydisruptionbudgets"), Need("watch", "", "pods")),
    "zonewise-proxy": (
        Need("get", "", "nodes"),
        Need("watch", "", "services"),
        Need("watch", _SLICES, "endpointslices"),
    ),
    "zonewise-dns": (
        Need("watch", "", "nodes"),
        Need("watch", "", "services"),
        Need("watch", _SLICES, "endpointslices"),
    ),
}
"""The rights without which a component does nothing, by its name, which is its service account's too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """None stands for what could not be found out.

    `ahead_seconds` is how far this machine's clock is ahead of the API server's. `reached` has a line per webhook: empty
    where the API server reaches it, None where nobody may try. `allowed` are rights of whoever asks, `running` those of
    components by name.
    """

    seen: Seen
    live: bool = True
    ahead_seconds: float | None = None
    user: str = ""
    daemon_sets: Sequence[DaemonSet] = ()
    kube_proxy_config: str | None = None
    cilium_config: Mapping[str, str] | None = None
    other_webhooks: Sequence[WebhookConfiguration] = ()
    node_leases: Sequence[Lease] = ()
    reached: Mapping[str, str | None] = field(default_factory=dict)
    allowed: Mapping[Need, bool] = field(default_factory=dict)
    running: Mapping[str, Mapping[Need, bool]] = field(default_factory=dict)
    budgets_known: bool | None = None
