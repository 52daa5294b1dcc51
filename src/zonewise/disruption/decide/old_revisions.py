"""Pods of an old revision in a StatefulSet or DaemonSet that is updated by eviction. Pure.

The stock controller keeps the history and makes the pods. With the strategy OnDelete it waits until the old ones are
deleted. `controller.rollout` evicts them in waves for workloads with the annotation `zonewise.dev/update: Evict`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from zonewise.api.names import PARTITION, UPDATE
from zonewise.disruption.decide.budget import Amount
from zonewise.disruption.decide.pods import PodFacts, PodStage, ordinal
from zonewise.errors import ZonewiseError
from zonewise.objects import Metadata
from zonewise.objects.apps import ControllerRevision, DaemonSet, StatefulSet

EVICT: Final = "Evict"

_ON_DELETE: Final = "OnDelete"
_ROLLING: Final = "RollingUpdate"


class UpdateError(ZonewiseError):
    """A workload's update annotations are invalid."""


@dataclass(frozen=True, slots=True)
class WorkloadUpdate:
    """`old`: the pods to evict. `desired`: how many pods the workload wants. `available`: how many serve."""

    revision: str
    old: tuple[PodFacts, ...]
    desired: int
    available: int
    kept: int = 0
    """Pods of an old revision that a partition keeps."""
    early: int = 0
    """Old pods of a surging DaemonSet whose successors on the same node are not ready yet."""
    most: int | None = None
    """How many may go at once by the workload's strategy."""

    @property
    def is_whole(self) -> bool:
        return self.available >= self.desired


def is_evicting(workload: StatefulSet | DaemonSet) -> bool:
    metadata = workload.metadata
    evicts = metadata.annotations.get(UPDATE) == EVICT
    return evicts and workload.spec.update_strategy.type == _ON_DELETE and metadata.deletion_timestamp is None


def updates_itself(workload: DaemonSet) -> bool:
    return workload.spec.update_strategy.type == _ROLLING and workload.metadata.deletion_timestamp is None


def is_observed(workload: StatefulSet | DaemonSet) -> bool:
    """Whether the stock controller has observed the spec: before that the new revision is unknown."""
    return workload.status.observed_generation >= workload.metadata.generation


def of_stateful_set(workload: StatefulSet, pods: Iterable[PodFacts]) -> WorkloadUpdate:
    """Raises UpdateError. Pods beyond the replicas belong to the scale-down."""
    first = workload.spec.ordinals.start if workload.spec.ordinals else 0
    end = first + workload.spec.replicas
    members = [pod for pod in pods if first <= ordinal(pod.name) < end]
    revision = workload.status.update_revision
    stale = [pod for pod in members if _is_stale(pod, revision)]
    partition = first + partition_of(workload.metadata)
    old = [pod for pod in stale if ordinal(pod.name) >= partition]
    return WorkloadUpdate(revision, tuple(old), workload.spec.replicas, _available(members), kept=len(stale) - len(old))


def of_daemon_set(workload: DaemonSet, pods: Iterable[PodFacts], revision: str) -> WorkloadUpdate:
    members = list(pods)
    stale = tuple(pod for pod in members if _is_stale(pod, revision))
    desired, available = workload.status.desired_number_scheduled, _available(members)
    if not _surges(workload, desired):
        return WorkloadUpdate(revision, stale, desired, available, most=_most(workload, desired, available))
    serving = [pod for pod in members if pod.ready and not pod.terminating]
    served = {pod.node for pod in serving if pod.revision == revision}
    old = tuple(pod for pod in stale if pod.node in served)
    return WorkloadUpdate(revision, old, desired, len({pod.node for pod in serving}), early=len(stale) - len(old))


def newest_revision(workload: DaemonSet, revisions: Iterable[ControllerRevision]) -> str:
    """The revision label of its new pods, which a DaemonSet's status lacks. A rollback renumbers the old revision."""
    own = [
        revision
        for revision in revisions
        if any(owner.uid == workload.metadata.uid for owner in revision.metadata.owner_references)
    ]
    newest = max(own, key=lambda revision: revision.revision, default=None)
    return newest.metadata.labels.get("controller-revision-hash", "") if newest else ""


def is_complete(workload: StatefulSet, update: WorkloadUpdate) -> bool:
    """All pods exist and are of the new revision, but the status still names the old one as current.

    With OnDelete the stock controller of 1.36 and older never updates it.
    """
    status = workload.status
    done = not update.old and not update.kept and update.is_whole
    return done and bool(status.update_revision) and status.current_revision != status.update_revision


def partition_of(metadata: Metadata) -> int:
    value = metadata.annotations.get(PARTITION, "0")
    if not (value.isascii() and value.isdigit()):
        raise UpdateError(
            f"{PARTITION} of StatefulSet {metadata.namespace}/{metadata.name} is {value!r}: write the first ordinal"
            " to update, such as '3', or remove it; nothing is updated until then"
        )
    return int(value)


def _is_stale(pod: PodFacts, revision: str) -> bool:
    return bool(revision) and pod.revision != revision and not pod.terminating and pod.stage is not PodStage.ENDED


def _surges(workload: DaemonSet, desired: int) -> bool:
    """Whether the stock controller makes the new pod of a node first, so that none is missing meanwhile."""
    strategy = workload.spec.update_strategy
    value = strategy.rolling_update.max_surge if strategy.type == _ROLLING and strategy.rolling_update else None
    return value is not None and Amount.parse(value).of(desired) > 0


def _most(workload: DaemonSet, desired: int, available: int) -> int | None:
    """As the stock controller limits its own update: rounded up, and at least one."""
    strategy = workload.spec.update_strategy
    if strategy.type != _ROLLING:
        return None
    value = strategy.rolling_update.max_unavailable if strategy.rolling_update else None
    unavailable = Amount.parse(1 if value is None else value).of(desired)
    return max(0, max(1, unavailable) - (desired - available))


def _available(pods: Iterable[PodFacts]) -> int:
    return sum(pod.ready and not pod.terminating for pod in pods)


def ranks(pods: Iterable[PodFacts], cordoned: Mapping[str, bool]) -> dict[str, tuple[int, ...]]:
    """By uid: the highest ordinal first; pods on cordoned nodes last, since a drain takes them anyway."""
    return {pod.uid: (int(cordoned.get(pod.node, False)), -ordinal(pod.name)) for pod in pods}
