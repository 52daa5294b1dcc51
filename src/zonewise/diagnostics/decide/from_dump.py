"""A cluster snapshot built from a dump, for `status` and `doctor`. Pure.

Leases and traffic are left out: a dump is of an earlier time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from zonewise.api.names import APP_NAME_LABEL
from zonewise.diagnostics.decide.status.assemble import COMPONENTS, WEBHOOK_CONFIGURATIONS, ClusterSnapshot
from zonewise.diagnostics.decide.status.traffic import MeasuredTraffic
from zonewise.objects import View
from zonewise.objects.admissionregistration import WebhookConfiguration
from zonewise.objects.apps import DaemonSet, Deployment
from zonewise.objects.policy import TopologyDisruptionBudget
from zonewise.objects.storage import PersistentVolume
from zonewise.planning.snapshot import PLANNING_KINDS, DumpObjects, require_kinds

STATUS_KINDS: Final[Mapping[str, type[View]]] = {
    **PLANNING_KINDS,
    "MutatingWebhookConfiguration": WebhookConfiguration,
    "ValidatingWebhookConfiguration": WebhookConfiguration,
    "TopologyDisruptionBudget": TopologyDisruptionBudget,
    "PersistentVolume": PersistentVolume,
}


def snapshot_from_dump(objects: DumpObjects, source: str) -> ClusterSnapshot:
    require_kinds(objects, source, "Node")
    webhooks = [*objects["MutatingWebhookConfiguration"], *objects["ValidatingWebhookConfiguration"]]
    return ClusterSnapshot(
        server=source,
        nodes=objects["Node"],
        namespaces=objects["Namespace"],
        services=objects["Service"],
        slices=objects["EndpointSlice"],
        deployments=[workload for workload in objects["Deployment"] if _is_ours(workload)],
        daemon_sets=[workload for workload in objects["DaemonSet"] if _is_ours(workload)],
        webhooks=[webhook for webhook in webhooks if webhook.metadata.name in WEBHOOK_CONFIGURATIONS],
        budgets=objects["TopologyDisruptionBudget"],
        volumes=objects["PersistentVolume"],
        traffic=MeasuredTraffic(problem="a dump has none"),
    )


def _is_ours(workload: Deployment | DaemonSet) -> bool:
    return workload.metadata.labels.get(APP_NAME_LABEL) in COMPONENTS
