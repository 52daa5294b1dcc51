"""Views of the workloads whose pods are counted, updated and scaled: apps, replication controllers, any scale."""

from __future__ import annotations

from typing import Any

import msgspec

from zonewise.objects.meta import Metadata, View
from zonewise.objects.resource import Resource

_GROUP = "apps"


class RollingUpdate(View, frozen=True):
    """The union of what the three kinds write here; amounts are numbers or percentages."""

    max_unavailable: int | str | None = None
    max_surge: int | str | None = None
    partition: int = 0


class UpdateStrategy(View, frozen=True):
    type: str = "RollingUpdate"
    rolling_update: RollingUpdate | None = None


class TemplatePodSpec(View, frozen=True):
    service_account_name: str = ""


class PodTemplate(View, frozen=True):
    spec: TemplatePodSpec = TemplatePodSpec()


class DeploymentSpec(View, frozen=True):
    replicas: int = 1
    strategy: UpdateStrategy = UpdateStrategy()
    template: PodTemplate = PodTemplate()


class DeploymentStatus(View, frozen=True):
    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0


class Deployment(View, frozen=True):
    metadata: Metadata = Metadata()
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class ReplicaSetSpec(View, frozen=True):
    replicas: int = 1


class ReplicaSetStatus(View, frozen=True):
    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0


class ReplicaSet(View, frozen=True):
    """Also read as a ReplicationController, which says the same in the same fields."""

    metadata: Metadata = Metadata()
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class Ordinals(View, frozen=True):
    start: int = 0


class StatefulSetSpec(View, frozen=True):
    replicas: int = 1
    pod_management_policy: str = "OrderedReady"
    update_strategy: UpdateStrategy = UpdateStrategy()
    ordinals: Ordinals | None = None


class StatefulSetStatus(View, frozen=True):
    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""


class StatefulSet(View, frozen=True):
    metadata: Metadata = Metadata()
    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()


class NodeAffinity(View, frozen=True):
    required: dict[str, Any] | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(View, frozen=True):
    node_affinity: NodeAffinity | None = None


class DaemonContainer(View, frozen=True):
    """How it was started."""

    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()


class DaemonPodSpec(View, frozen=True):
    """What says on which nodes a DaemonSet's pods belong, and what runs in them."""

    node_selector: dict[str, str] = {}
    affinity: Affinity | None = None
    containers: tuple[DaemonContainer, ...] = ()
    service_account_name: str = ""


class DaemonPodTemplate(View, frozen=True):
    spec: DaemonPodSpec = DaemonPodSpec()


class DaemonSetSpec(View, frozen=True):
    update_strategy: UpdateStrategy = UpdateStrategy()
    template: DaemonPodTemplate = DaemonPodTemplate()


class DaemonSetStatus(View, frozen=True):
    observed_generation: int = 0
    desired_number_scheduled: int = 0
    updated_number_scheduled: int = 0
    number_ready: int = 0


class DaemonSet(View, frozen=True):
    metadata: Metadata = Metadata()
    spec: DaemonSetSpec = DaemonSetSpec()
    status: DaemonSetStatus = DaemonSetStatus()


class ControllerRevision(View, frozen=True):
    metadata: Metadata = Metadata()
    revision: int = 0


CONTROLLER_REVISIONS = Resource(
    view=ControllerRevision, kind="ControllerRevision", plural="controllerrevisions", group=_GROUP
)
DAEMON_SETS = Resource(view=DaemonSet, kind="DaemonSet", plural="daemonsets", group=_GROUP)
DEPLOYMENTS = Resource(view=Deployment, kind="Deployment", plural="deployments", group=_GROUP)
REPLICA_SETS = Resource(view=ReplicaSet, kind="ReplicaSet", plural="replicasets", group=_GROUP)
REPLICATION_CONTROLLERS = Resource(view=ReplicaSet, kind="ReplicationController", plural="replicationcontrollers")
STATEFUL_SETS = Resource(view=StatefulSet, kind="StatefulSet", plural="statefulsets", group=_GROUP)
