"""Scale-down controller: grants stock controllers the deletion of pods, as many as budgets allow.

It handles every ReplicaSet, ReplicationController and StatefulSet whose pods a guarding budget selects: scaled down by a
person or an autoscaler, or being replaced by the new ReplicaSet of its Deployment; and DaemonSets that leave nodes. The
guard lets their controllers delete a ready pod only if the pod has a grant, its own uid in an annotation. One patch writes
the grant and the lowest deletion cost, which makes the controller take exactly this pod. Pods are chosen so that the
spread is kept. Grants that are not needed any more are revoked.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Counter

from zonewise.api.names import DELETION_COST, DISRUPTION_FIELD_MANAGER, GRANTED
from zonewise.disruption.controller.planner import UNCOUNTED_SECONDS
from zonewise.disruption.controller.workload_controller import BATCH_SECONDS, WorkloadController, WorkloadProgress
from zonewise.disruption.decide.backoff import STUCK_SECONDS, RolloutBackoff
from zonewise.disruption.decide.budget import Budget, DisruptionKind
from zonewise.disruption.decide.ledger import ChargeSource
from zonewise.disruption.decide.pod_order import LEAVES_FIRST, PodOrder
from zonewise.disruption.decide.pods import PodFacts, owner_of
from zonewise.disruption.decide.scaledown_grants import (
    GrantDemand,
    levels,
    of_daemon_set,
    of_replica_set,
    of_stateful_set,
    rank,
)
from zonewise.disruption.decide.wave import Wave, next_wave
from zonewise.disruption.watch.informers import WorkloadKey
from zonewise.kube.controller.workqueue import Backoff
from zonewise.kube.wire.errors import Conflict, NotFound
from zonewise.kube.wire.patch import Apply
from zonewise.objects import PODS, Key, Pod
from zonewise.objects.apps import (
    DAEMON_SETS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    STATEFUL_SETS,
    DaemonSet,
    ReplicaSet,
    StatefulSet,
)

_GRANTS: Final = Counter("zonewise_grants", "Grants of pod deletions to workload controllers, by result", ("result",))

Shrinking = ReplicaSet | StatefulSet | DaemonSet


@dataclass(slots=True)
class _Progress(WorkloadProgress):
    """`granted`: resource versions of the pods with our grants, which the cache may not have yet."""

    granted: dict[str, int] = field(default_factory=dict)


class ScaleDownController(WorkloadController[Shrinking, _Progress]):
    _NAME = "scaledown"
    _KINDS = (REPLICA_SETS.kind, STATEFUL_SETS.kind, DAEMON_SETS.kind, REPLICATION_CONTROLLERS.kind)
    _RETRY = Backoff(first_seconds=0.2, longest_seconds=30.0)

    def _new_progress(self, uid: str) -> _Progress:
        return _Progress(uid)

    async def _reconcile(self, key: WorkloadKey) -> float | None:
        workload = self._find(key)
        if workload is None or workload.metadata.deletion_timestamp is not None:
            self._forget(key)
            return None
        pods = self._informers.pods_of(workload.metadata.uid)
        if not self._planner.is_guarded(pods):
            await self._withdraw(key, workload, pods)
            return None
        demand = self._demand(workload, pods)
        if not demand.revoked and not demand.most:
            return self._wait_for_deployment(key, workload)
        budgets = self._planner.budgets(pods)
        progress = self._progress_of(key, workload)
        self._hold(key, budgets.keys())
        self._check_grants(progress, pods, list(budgets.values()))
        await asyncio.gather(*(self._revoke(pod, progress) for pod in demand.revoked))
        return await self._continue(key, workload, demand, budgets, progress) if demand.most else None

    async def _withdraw(self, key: WorkloadKey, workload: Shrinking, pods: list[PodFacts]) -> None:
        """Grants are not needed any more. A granted pod would count as leaving, and stay charged, for ever."""
        granted = [pod for pod in pods if pod.granted and not pod.terminating]
        if granted:
            progress = self._progress_of(key, workload)
            await asyncio.gather(*(self._revoke(pod, progress) for pod in granted))
        self._forget(key)

    def _wait_for_deployment(self, key: WorkloadKey, workload: Shrinking) -> float | None:
        """A ReplicaSet whose Deployment rolls out shrinks further soon, and its next wave carries the new numbers."""
        owner = self._workloads.desired.get(workload.metadata.uid)
        rolling_out = isinstance(workload, ReplicaSet) and owner is not None and workload.spec.replicas != owner.desired
        progress = self._progress.get(key)
        if rolling_out and progress is not None and not progress.backoff.is_stuck(self._clock()):
            return STUCK_SECONDS
        self._forget(key)
        return None

    def _demand(self, workload: Shrinking, pods: list[PodFacts]) -> GrantDemand:
        if isinstance(workload, StatefulSet):
            return of_stateful_set(workload, pods)
        if isinstance(workload, DaemonSet):
            return of_daemon_set(workload, pods, self._planner.node_labels(pods))
        if sum(not pod.terminating for pod in pods) <= workload.spec.replicas and not any(pod.granted for pod in pods):
            return GrantDemand((), PodOrder.FULLEST_FIRST, 0)  # the usual case, kept cheap
        return of_replica_set(workload, pods, self._domains(pods, list(self._planner.budgets(pods).values())))

    def _domains(self, pods: list[PodFacts], budgets: list[Budget]) -> dict[str, str]:
        return {pod.uid: self._planner.domain(pod, budgets) for pod in pods}

    async def _continue(
        self,
        key: WorkloadKey,
        workload: Shrinking,
        demand: GrantDemand,
        budgets: dict[Key, Budget],
        progress: _Progress,
    ) -> float | None:
        if progress.granted.keys() & {pod.uid for pod in demand.pods}:
            return BATCH_SECONDS * 10  # the cache does not have our grants yet
        wave = self._plan(demand, budgets, progress.backoff)
        if wave is None:
            return UNCOUNTED_SECONDS
        if not wave.picks:
            return self._wait(key, workload, demand, wave, progress)
        if not demand.waiting and self._is_whole(workload):
            progress.backoff.ended()
        elif seconds := progress.backoff.seconds_to_gather(self._clock()):
            return seconds
        await self._act(key, wave, progress)
        return STUCK_SECONDS

    def _plan(self, demand: GrantDemand, budgets: dict[Key, Budget], backoff: RolloutBackoff) -> Wave | None:
        selecting = list(budgets.values())
        wave_budget = self._planner.wave_budget(
            selecting, DisruptionKind.CONTROLLER_DELETES, ChargeSource.SCALE_DOWN, None
        )
        if wave_budget is None:
            return None
        cordoned = self._planner.cordoned(demand.pods)
        ranks = {pod.uid: rank(pod, cordoned=cordoned[pod.node]) for pod in demand.pods}
        peers = self._peers(demand.pods[0], selecting)
        return next_wave(
            self._planner.candidates(demand.pods, selecting, ranks, wave_budget, backoff),
            wave_budget,
            demand.order,
            levels=levels(peers, self._domains(peers, selecting), demand.unready),
            limits=backoff.wave_limits(demand.most, self._clock()),
        )

    def _peers(self, pod: PodFacts, budgets: list[Budget]) -> list[PodFacts]:
        """All pods of its owner that a budget selects, those of other ReplicaSets included."""
        desired = self._workloads.desired
        owner = owner_of(pod, desired)
        selected = {peer.uid: peer for budget in budgets for peer in self._informers.pods_selected_by(budget.key)}
        return [peer for peer in selected.values() if owner and owner_of(peer, desired) == owner]

    def _is_whole(self, workload: Shrinking) -> bool:
        """Whether the owner has all its pods, so that there is nothing to wait for."""
        owner = self._workloads.desired.get(workload.metadata.uid)
        pods = self._informers.pods_of(workload.metadata.uid)
        if owner is None or not pods:
            return True
        peers = self._peers(pods[0], list(self._planner.budgets(pods[:1]).values()))
        return sum(pod.ready and not pod.terminating and not pod.leaving for pod in peers) >= owner.desired

    def _wait(
        self, key: WorkloadKey, workload: Shrinking, demand: GrantDemand, wave: Wave, progress: _Progress
    ) -> float:
        quiet = not demand.waiting and self._is_whole(workload)
        if quiet or progress.backoff.is_stuck(self._clock()):
            self._release(key)
            self._events.held(workload, "ScaleDownHeld", wave)
        domains = {held.candidate.domain for held in wave.held}
        return progress.backoff.seconds_until_retry(domains, self._clock())

    async def _act(self, key: WorkloadKey, wave: Wave, progress: _Progress) -> None:
        picks = await self._planner.reserve(wave, str(key))
        progress.backoff.started(self._clock())
        await asyncio.gather(*(self._grant(pick.candidate.pod, progress) for pick in picks))

    async def _grant(self, pod: PodFacts, progress: _Progress) -> None:
        annotations = {GRANTED: pod.uid, DELETION_COST: str(LEAVES_FIRST)}
        try:
            annotated = await self._annotate(pod, annotations)
        except NotFound:
            _GRANTS.labels("gone").inc()
            return
        except Conflict:
            # Another field manager owns its deletion cost, which then decides when it goes; or the name is another pod's.
            annotated = await self._annotate(pod, {GRANTED: pod.uid})
        progress.granted[pod.uid] = int(annotated.metadata.resource_version)
        _GRANTS.labels("granted").inc()

    async def _revoke(self, pod: PodFacts, progress: _Progress) -> None:
        """Its charge lasts until the pod is seen without the grant, and then expires."""
        try:
            await self._annotate(pod, {})
        except (NotFound, Conflict):
            return
        progress.granted.pop(pod.uid, None)
        _GRANTS.labels("revoked").inc()

    async def _annotate(self, pod: PodFacts, annotations: dict[str, str]) -> Pod:
        """Applies all annotations we own: those not named are removed. The uid makes sure that it is this pod."""
        body = {"metadata": {"uid": pod.uid, "annotations": annotations}}
        return await self._client.patch(PODS, pod.name, Apply(body, DISRUPTION_FIELD_MANAGER), pod.namespace)

    def _check_grants(self, progress: _Progress, pods: list[PodFacts], budgets: list[Budget]) -> None:
        """A grant that disappeared was removed by another client: its domain backs off."""
        present = {pod.uid: pod for pod in pods}
        progress.granted = {uid: version for uid, version in progress.granted.items() if uid in present}
        for uid, version in list(progress.granted.items()):
            pod = present[uid]
            cached = self._informers.pods.get(pod.key)
            if not pod.granted and (cached is None or int(cached.metadata.resource_version) < version):
                continue
            del progress.granted[uid]
            if not pod.granted and pod.ready and not pod.leaving and not pod.terminating:
                progress.backoff.refused(self._planner.domain(pod, budgets), uid, self._clock())
                self._events.stripped(pod)
