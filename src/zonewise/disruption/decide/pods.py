"""Pods, controllers and nodes, stripped to the facts that counts and verdicts need. Pure.

Caches turn each Pod into `PodFacts` once. A `Workload` has the number of pods that a controller's owner wants.
`NodeDomains` maps a pod to its domain under a budget.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from zonewise.api.names import DELETION_COST, GRANTED
from zonewise.disruption.decide.budget import Budget, BudgetDomainKey
from zonewise.objects import Key, Pod
from zonewise.topology import HOSTNAME, REGION, ZONE

REVISION: Final = "controller-revision-hash"

_CHOOSING_KINDS: Final = frozenset({"ReplicaSet", "ReplicationController"})
_INT32: Final = range(-(2**31), 2**31)


class PodStage(StrEnum):
    PENDING = "Pending"
    RUNNING = "Running"
    ENDED = "Ended"


class ControllerRef(NamedTuple):
    """The direct controller of a pod, from its owner reference."""

    kind: str
    name: str
    uid: str
    api_version: str = ""

    @property
    def chooses(self) -> bool:
        """Whether it chooses which of its pods leave; other kinds have a fixed order."""
        return self.kind in _CHOOSING_KINDS


class Owner(NamedTuple):
    """The top-level controller of a pod: the Deployment of its ReplicaSet, or its direct controller."""

    kind: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Workload(NamedTuple):
    """`own`: the replicas of the direct controller, if its owner sets them, as for a Deployment's ReplicaSet.

    `ordinals`: those of a StatefulSet, which recreates a pod of these whatever happens to the others.
    """

    owner: Owner
    desired: int
    own: int | None = None
    ordinals: range | None = None


Workloads = Mapping[str, Workload]
"""By the uid of the direct controller, and of the owner itself: a ReplicaSet and its Deployment have the same owner.

The pods of a controller that is missing here count as unmanaged.
"""


class PodFacts(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`leaving`: about to be deleted, by an eviction in progress or by a grant, and not terminating yet."""

    uid: str
    name: str = ""
    namespace: str = ""
    node: str = ""
    controller: ControllerRef | None = None
    stage: PodStage = PodStage.RUNNING
    ready: bool = False
    terminating: bool = False
    disruption_target: bool = False
    granted: bool = False
    deletion_cost: int = 0
    labels: Mapping[str, str] = {}

    @classmethod
    def of(cls, pod: Pod) -> PodFacts:
        metadata = pod.metadata
        return cls(
            uid=metadata.uid,
            name=metadata.name,
            namespace=metadata.namespace,
            node=pod.spec.node_name,
            controller=_controller(pod),
            stage=_stage(pod.status.phase),
            ready=_holds(pod, "Ready"),
            terminating=metadata.deletion_timestamp is not None,
            disruption_target=_holds(pod, "DisruptionTarget"),
            granted=bool(metadata.uid) and metadata.annotations.get(GRANTED) == metadata.uid,
            deletion_cost=_deletion_cost(metadata.annotations.get(DELETION_COST, "")),
            labels=metadata.labels,
        )

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)

    @property
    def pending(self) -> bool:
        return self.stage is PodStage.PENDING

    @property
    def active(self) -> bool:
        """Fills a slot: scheduled, and neither ended nor terminating."""
        return bool(self.node) and self.stays

    @property
    def stays(self) -> bool:
        """Counts for its controller, scheduled or not: neither ended nor terminating."""
        return not self.terminating and self.stage is not PodStage.ENDED

    @property
    def leaving(self) -> bool:
        return self.disruption_target or self.granted

    @property
    def controller_uid(self) -> str:
        return self.controller.uid if self.controller else ""

    @property
    def replica_set(self) -> str:
        """The uid of its ReplicaSet or ReplicationController, or empty."""
        return self.controller.uid if self.controller and self.controller.chooses else ""

    @property
    def revision(self) -> str:
        """Of a StatefulSet's or DaemonSet's pod."""
        return self.labels.get(REVISION, "")


def owner_of(pod: PodFacts, workloads: Workloads) -> str:
    """The uid of the pod's top-level controller; empty if unknown."""
    workload = workloads.get(pod.controller_uid)
    return workload.owner.uid if workload else ""


def gives_up(staying: int, replicas: int | None) -> bool:
    """Whether a ReplicaSet with `staying` pods has more than its `replicas`, if these are known.

    Otherwise it replaces what is evicted. Then no other pod can go instead, and the slot stays: while a surge of the
    Deployment never gets ready, its old ReplicaSet gives nothing up, although there are too many pods.
    """
    return replicas is None or staying > replicas


def ordinal(name: str) -> int:
    """-1 for a name without an ordinal."""
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else -1


def staying(peers: Iterable[PodFacts], charged: Container[str]) -> int:
    """How many pods a ReplicaSet has once the charged ones (by uid) are gone."""
    return sum(peer.stays and not (peer.active and peer.uid in charged) for peer in peers)


def comes_back(name: str, ordinals: range | None) -> bool:
    """Whether a StatefulSet with these ordinals recreates the pod of this name."""
    return ordinals is not None and ordinal(name) in ordinals


def is_beyond(name: str, ordinals: range | None) -> bool:
    """Whether a StatefulSet with these ordinals gives up the pod of this name for good."""
    return ordinals is not None and ordinal(name) >= 0 and ordinal(name) not in ordinals


class NodeDomains:
    """The domain of each pod, from the labels of the nodes that exist; results are cached.

    A missing node is taken to be gone: a review of a request first reads the Node to make sure. Make a new instance when
    a node changes.
    """

    def __init__(self, nodes: Mapping[str, Mapping[str, str]]) -> None:
        self._nodes = nodes
        self._cache: dict[Key, tuple[Budget, dict[str, BudgetDomainKey]]] = {}

    def has(self, node: str) -> bool:
        return node in self._nodes

    def domain_key(self, budget: Budget, pod: PodFacts) -> BudgetDomainKey:
        """The domain of a pod whose node is gone comes from the topology labels that Kubernetes copied to the pod at binding."""
        labels = self._nodes.get(pod.node)
        if labels is None:
            return budget.domain_key(_copied_labels(pod), pod.node)
        condition = self._domain_keys(budget)
        if (domain_key := condition.get(pod.node)) is None:
            domain_key = condition[pod.node] = budget.domain_key(labels, pod.node)
        return domain_key

    def _domain_keys(self, budget: Budget) -> dict[str, BudgetDomainKey]:
        cached = self._cache.get(budget.key)
        if cached is None or cached[0] is not budget:
            cached = self._cache[budget.key] = (budget, {})
        return cached[1]


def _copied_labels(pod: PodFacts) -> dict[str, str]:
    copied = {key: pod.labels[key] for key in (ZONE, REGION) if key in pod.labels}
    return {**copied, HOSTNAME: pod.node} if pod.node else copied


def _controller(pod: Pod) -> ControllerRef | None:
    for reference in pod.metadata.owner_references:
        if reference.controller:
            return ControllerRef(reference.kind, reference.name, reference.uid, reference.api_version)
    return None


def _stage(phase: str) -> PodStage:
    match phase:
        case "Succeeded" | "Failed":
            return PodStage.ENDED
        case "Pending" | "":
            return PodStage.PENDING
        case _:
            return PodStage.RUNNING


def _holds(pod: Pod, condition_type: str) -> bool:
    return any(condition.type == condition_type and condition.status == "True" for condition in pod.status.conditions)


def _deletion_cost(annotation: str) -> int:
    """As the ReplicaSet controller parses it: an int32, otherwise ignored."""
    try:
        cost = int(annotation)
    except ValueError:
        return 0
    return cost if cost in _INT32 else 0
