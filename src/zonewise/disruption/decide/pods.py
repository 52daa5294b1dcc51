"""What counting and judging need of pods, their controllers and their nodes, stripped to plain facts. Pure.

Caches turn each Pod into `PodFacts` once; a `Workload` says how many pods a controller's owner wants; the `NodeDomains` says
where a pod stands under a budget.
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
        """Whether it picks which of its pods leave, so that another one can be had; others have a fixed order."""
        return self.kind in _CHOOSING_KINDS


class Owner(NamedTuple):
    """The top-level controller of a pod: the Deployment of its ReplicaSet, or its direct controller."""

    kind: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Workload(NamedTuple):
    """`own`: how many the direct controller itself wants, where that is for its owner to say: a Deployment's ReplicaSet.

    `ordinals`: those that a StatefulSet wants. It makes a pod of these again, whatever becomes of the others.
    """

    owner: Owner
    desired: int
    own: int | None = None
    ordinals: range | None = None


Workloads = Mapping[str, Workload]
"""By the uid of the direct controller, and of the owner itself: a ReplicaSet and its Deployment have the same owner.

A controller that is missing here wants an unknown number of pods; they count as unmanaged.
"""


_FRESH_NAMES: Final = frozenset({"ReplicaSet", "ReplicationController", "DaemonSet", "Job"})


class PodFacts(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`leaving`: chosen to be deleted though not yet terminating, by an eviction under way or by a grant."""

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
    def name_comes_back(self) -> bool:
        """Whether the next pod may have the same name: some controllers give every pod one of its own."""
        return self.controller is None or self.controller.kind not in _FRESH_NAMES

    @property
    def in_between(self) -> str:
        """Why whoever asks for it by its name may get another; empty where that can't be.

        An API server tries an eviction again for as long as the pod changes under it, and by then the next one may have the name.
        """
        if not self.name_comes_back:
            return ""
        if self.terminating:
            return f"pod {self.key} is leaving already, and the next one has its name"
        if self.pending and not self.node:
            return f"pod {self.key} has no node yet, and one before it had its name"
        return ""

    @property
    def pending(self) -> bool:
        return self.stage is PodStage.PENDING

    @property
    def active(self) -> bool:
        """Takes up a slot: scheduled, and neither ended nor on its way out."""
        return bool(self.node) and self.stays

    @property
    def stays(self) -> bool:
        """One of those that its controller has, wherever it is: neither ended nor on its way out."""
        return not self.terminating and self.stage is not PodStage.ENDED

    @property
    def leaving(self) -> bool:
        return self.disruption_target or self.granted

    @property
    def controller_uid(self) -> str:
        return self.controller.uid if self.controller else ""

    @property
    def replica_set(self) -> str:
        """The uid of the ReplicaSet or ReplicationController it belongs to, or nothing."""
        return self.controller.uid if self.controller and self.controller.chooses else ""

    @property
    def revision(self) -> str:
        """Of a StatefulSet's or DaemonSet's pod."""
        return self.labels.get(REVISION, "")


def owner_of(pod: PodFacts, workloads: Workloads) -> str:
    """The uid of the pod's top-level controller; empty where it has none that is known."""
    workload = workloads.get(pod.controller_uid)
    return workload.owner.uid if workload else ""


def gives_up(staying: int, replicas: int | None) -> bool:
    """Whether a ReplicaSet with so many pods that stay has more than the `replicas` it wants, if these are known.

    One that has not replaces what is evicted. Nothing can be taken in place of that, and its slot stays: while a surge
    of the Deployment never gets ready, its old ReplicaSet gives nothing up, though there are pods too many.
    """
    return replicas is None or staying > replicas


def ordinal(name: str) -> int:
    """-1 for a name that no StatefulSet gave."""
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else -1


def staying(peers: Iterable[PodFacts], charged: Container[str]) -> int:
    """How many of a ReplicaSet's pods it has once those that are charged (by uid) have gone."""
    return sum(peer.stays and not (peer.active and peer.uid in charged) for peer in peers)


def comes_back(name: str, ordinals: range | None) -> bool:
    """Whether a StatefulSet that wants these makes the pod of this name again: it is none of those it has too many."""
    return ordinals is not None and ordinal(name) in ordinals


def is_beyond(name: str, ordinals: range | None) -> bool:
    """Whether a StatefulSet that wants these gives up the pod of this name, and never makes it again."""
    return ordinals is not None and ordinal(name) >= 0 and ordinal(name) not in ordinals


class NodeDomains:
    """Where pods stand, from the labels of the nodes that exist; remembers what it worked out.

    A node that is missing is taken to be gone: who judges a request makes sure of that by reading the Node afresh.
    Make a new one when a node changes.
    """

    def __init__(self, nodes: Mapping[str, Mapping[str, str]]) -> None:
        self._nodes = nodes
        self._known: dict[Key, tuple[Budget, dict[str, BudgetDomainKey]]] = {}

    def has(self, node: str) -> bool:
        return node in self._nodes

    def place(self, budget: Budget, pod: PodFacts) -> BudgetDomainKey:
        """A pod whose node is gone stands where the labels say that stock copied to it when it was bound."""
        labels = self._nodes.get(pod.node)
        if labels is None:
            return budget.place(_copied_labels(pod), pod.node)
        known = self._places(budget)
        if (place := known.get(pod.node)) is None:
            place = known[pod.node] = budget.place(labels, pod.node)
        return place

    def _places(self, budget: Budget) -> dict[str, BudgetDomainKey]:
        held = self._known.get(budget.key)
        if held is None or held[0] is not budget:
            held = self._known[budget.key] = (budget, {})
        return held[1]


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
    return any(known.type == condition_type and known.status == "True" for known in pod.status.conditions)


def _deletion_cost(written: str) -> int:
    """As the ReplicaSet controller reads it: an int32, otherwise as if it were not there."""
    try:
        cost = int(written)
    except ValueError:
        return 0
    return cost if cost in _INT32 else 0
