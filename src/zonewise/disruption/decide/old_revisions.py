"""Which pods of a StatefulSet or DaemonSet that is updated by eviction are still of an old revision. Pure.

Stock keeps the history and makes the pods: with the strategy OnDelete it waits for somebody to remove the old ones.
`rollouts` does that, in waves, for workloads that say `zonewise.dev/update: Evict`.
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
    """What a workload says about its update can't be read."""


@dataclass(frozen=True, slots=True)
class WorkloadUpdate:
    """`old` are the pods to remove; `desired` is how many pods the workload wants, `available` how many it has."""

    revision: str
    old: tuple[PodFacts, ...]
    desired: int
    available: int
    kept: int = 0
    """Pods of an older revision that a partition keeps."""
    early: int = 0
    """Old pods of a DaemonSet that surges whose successors, beside them on their nodes, are not ready yet."""
    most: int | None = None
    """How many may go at once by the workload's own strategy."""

    @property
    def is_whole(self) -> bool:
        return self.available >= self.desired


def is_evicting(workload: StatefulSet | DaemonSet) -> bool:
    metadata = workload.metadata
    asked = metadata.annotations.get(UPDATE) == EVICT
    return asked and workload.spec.update_strategy.type == _ON_DELETE and metadata.deletion_timestamp is None


def updates_itself(workload: DaemonSet) -> bool:
    return workload.spec.update_strategy.type == _ROLLING and workload.metadata.deletion_timestamp is None


def is_observed(workload: StatefulSet | DaemonSet) -> bool:
    """Whether stock has looked at the spec as it is: before that nobody knows the new revision."""
    return workload.status.observed_generation >= workload.metadata.generation


def of_stateful_set(workload: StatefulSet, pods: Iterable[PodFacts]) -> WorkloadUpdate:
    """Raises UpdateError. Pods beyond the replicas are the scale-down's."""
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
    """The label its new pods carry; a DaemonSet's status does not tell. A rollback renumbers the revision it returns to."""
    own = [
        revision
        for revision in revisions
        if any(owner.uid == workload.metadata.uid for owner in revision.metadata.owner_references)
    ]
    newest = max(own, key=lambda revision: revision.revision, default=None)
    return newest.metadata.labels.get("controller-revision-hash", "") if newest else ""


def is_complete(workload: StatefulSet, update: WorkloadUpdate) -> bool:
    """All pods are of the new revision and there, but the status still names the old one as current.

    Stock of 1.36 and older never says so by itself with OnDelete.
    """
    status = workload.status
    done = not update.old and not update.kept and update.is_whole
    return done and bool(status.update_revision) and status.current_revision != status.update_revision


def partition_of(metadata: Metadata) -> int:
    written = metadata.annotations.get(PARTITION, "0")
    if not (written.isascii() and written.isdigit()):
        raise UpdateError(
            f"{PARTITION} of StatefulSet {metadata.namespace}/{metadata.name} is {written!r}: write the first ordinal"
            " to update, such as '3', or remove it; nothing is updated until then"
        )
    return int(written)


def _is_stale(pod: PodFacts, revision: str) -> bool:
    return bool(revision) and pod.revision != revision and not pod.terminating and pod.stage is not PodStage.ENDED


def _surges(workload: DaemonSet, desired: int) -> bool:
    """Whether stock makes the new pod of a node first: then the old one goes for it, and none is away meanwhile."""
    strategy = workload.spec.update_strategy
    written = strategy.rolling_update.max_surge if strategy.type == _ROLLING and strategy.rolling_update else None
    return written is not None and Amount.parse(written).of(desired) > 0


def _most(workload: DaemonSet, desired: int, available: int) -> int | None:
    """As the stock controller bounds its own update, which rounds up and takes at least one."""
    strategy = workload.spec.update_strategy
    if strategy.type != _ROLLING:
        return None
    written = strategy.rolling_update.max_unavailable if strategy.rolling_update else None
    unavailable = Amount.parse(1 if written is None else written).of(desired)
    return max(0, max(1, unavailable) - (desired - available))


def _available(pods: Iterable[PodFacts]) -> int:
    return sum(pod.ready and not pod.terminating for pod in pods)


def ranks(pods: Iterable[PodFacts], cordoned: Mapping[str, bool]) -> dict[str, tuple[int, ...]]:
    """By uid: the highest ordinal first; on cordoned nodes last, for a drain will take them anyway."""
    return {pod.uid: (int(cordoned.get(pod.node, False)), -ordinal(pod.name)) for pod in pods}
