"""The state of a cluster that is known from a dump only: what `assemble` and the doctor ask for, picked from its objects. Pure.

Leases and traffic are of the moment, and no dump has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from zonewise.api.names import APP_NAME_LABEL
from zonewise.diagnostics.decide.status.assemble import COMPONENTS, CONFIGURATIONS, ClusterSnapshot
from zonewise.diagnostics.decide.status.traffic import MeasuredTraffic
from zonewise.objects import EndpointSlice, Namespace, Node, Service, View
from zonewise.objects.admissionregistration import WebhookConfiguration
from zonewise.objects.apps import DaemonSet, Deployment
from zonewise.objects.policy import TopologyDisruptionBudget
from zonewise.objects.storage import PersistentVolume
from zonewise.planning.snapshot import require

KINDS: Final[Mapping[str, type[View]]] = {
    "Node": Node,
    "Namespace": Namespace,
    "Service": Service,
    "EndpointSlice": EndpointSlice,
    "Deployment": Deployment,
    "DaemonSet": DaemonSet,
    "MutatingWebhookConfiguration": WebhookConfiguration,
    "ValidatingWebhookConfiguration": WebhookConfiguration,
    "TopologyDisruptionBudget": TopologyDisruptionBudget,
    "PersistentVolume": PersistentVolume,
}


def seen_in(objects: Mapping[str, Sequence[Any]], source: str) -> ClusterSnapshot:
    """`objects` by kind, as `dump.read` gives them."""
    require(objects, source, "Node")
    registered = [*objects["MutatingWebhookConfiguration"], *objects["ValidatingWebhookConfiguration"]]
    return ClusterSnapshot(
        server=source,
        nodes=objects["Node"],
        namespaces=objects["Namespace"],
        services=objects["Service"],
        slices=objects["EndpointSlice"],
        deployments=[each for each in objects["Deployment"] if _is_ours(each)],
        daemon_sets=[each for each in objects["DaemonSet"] if _is_ours(each)],
        webhooks=[each for each in registered if each.metadata.name in CONFIGURATIONS],
        budgets=objects["TopologyDisruptionBudget"],
        volumes=objects["PersistentVolume"],
        traffic=MeasuredTraffic(problem="a dump has none"),
    )


def _is_ours(workload: Deployment | DaemonSet) -> bool:
    return workload.metadata.labels.get(APP_NAME_LABEL) in COMPONENTS
