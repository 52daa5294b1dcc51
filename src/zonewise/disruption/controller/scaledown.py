"""Lets stock controllers delete pods, as many as budgets allow and from where they keep the spread: plan, reserve, grant.

Covers every ReplicaSet, ReplicationController and StatefulSet whose pods a guarding budget selects: scaled down, by a
person or an autoscaler, or being replaced by the new ReplicaSet of its Deployment; and DaemonSets that leave nodes. The
guard lets their controllers delete a ready pod only if the pod carries our grant, its own uid in an annotation; one patch
writes that and the lowest deletion cost, which makes the controller take this very pod, and at once. Grants that nobody
needs any more are revoked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import Counter

from zonewise.api.names import DELETION_COST, DISRUPTION_FIELD_MANAGER, GRANTED
from zonewise.disruption.controller.planner import UNCOUNTED_SECONDS, Planner, Reservations
from zonewise.disruption.controller.workload_events import WorkloadEvents
from zonewise.disruption.controller.workqueue import TOGETHER_SECONDS, WorkloadQueue
from zonewise.disruption.decide.backoff import RolloutBackoff
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
from zonewise.disruption.decide.wave import Wave, WaveLimits, next_wave
from zonewise.disruption.watch.informers import DisruptionInformers, WorkloadKey
from zonewise.disruption.watch.replicas import WorkloadInformers
from zonewise.kube.client.client import Client
from zonewise.kube.controller.recorder import Recorder
from zonewise.kube.controller.workqueue import Backoff
from zonewise.kube.watch.cache import Cache
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

_BACKOFF: Final = Backoff(first_seconds=0.2, longest_seconds=30.0)
_STUCK_SECONDS: Final = 60.0
_GRANTS: Final = Counter("zonewise_grants", "Pods that their controllers were let delete, or no more", ("result",))

Shrinking = ReplicaSet | StatefulSet | DaemonSet


@dataclass(slots=True)
class _Progress:
    """`granted`: by us, and in which version of the pod; the cache may not have heard of it yet."""

    uid: str
    pace: RolloutBackoff = field(default_factory=RolloutBackoff)
    granted: dict[str, int] = field(default_factory=dict)


class ScaleDownController:
    """Made before `caches` run; `run` works until cancelled, and may be run again with every new leadership."""

    def __init__(
        self,
        client: Client,
        sources: DisruptionInformers,
        workloads: WorkloadInformers,
        reservations: Reservations,
        recorder: Recorder,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._sources = sources
        self._workloads = workloads
        self._planner = Planner(sources, reservations, workloads)
        self._reporter = WorkloadEvents(recorder)
        self._clock = clock
        caches: dict[str, Cache[Any]] = {
            REPLICA_SETS.kind: sources.replica_sets,
            STATEFUL_SETS.kind: workloads.stateful_sets,
            DAEMON_SETS.kind: workloads.daemon_sets,
            REPLICATION_CONTROLLERS.kind: workloads.replication_controllers,
        }
        self._progress: dict[WorkloadKey, _Progress] = {}
        self._queue: WorkloadQueue[Shrinking] = WorkloadQueue(
            "scaledown", caches, reservations, self._reconcile, _BACKOFF
        )
        self._queue.follow(sources, workloads)

    async def run(self) -> None:
        """Others may have led since the last time: what was remembered then is not true any more."""
        self._progress.clear()
        await self._queue.run()

    async def _reconcile(self, key: WorkloadKey) -> float | None:
        workload = self._queue.find(key)
        if workload is None or workload.metadata.deletion_timestamp is not None:
            self._forget(key)
            return None
        pods = self._sources.pods_of(workload.metadata.uid)
        if not self._planner.is_guarded(pods):
            await self._withdraw(key, workload, pods)
            return None
        demand = self._demand(workload, pods)
        if not demand.revoked and not demand.most:
            return self._rest(key, workload)
        budgets = self._planner.budgets(pods)
        progress = self._progress_of(key, workload)
        self._queue.hold(key, budgets.keys())
        self._hear_of_grants(progress, pods, list(budgets.values()))
        await asyncio.gather(*(self._revoke(pod, progress) for pod in demand.revoked))
        return await self._go_on(key, workload, demand, budgets, progress) if demand.most else None

    async def _withdraw(self, key: WorkloadKey, workload: Shrinking, pods: list[PodFacts]) -> None:
        """Nobody needs a grant any more; what was granted would count as about to leave, and stay charged, for ever."""
        granted = [pod for pod in pods if pod.granted and not pod.terminating]
        if granted:
            progress = self._progress_of(key, workload)
            await asyncio.gather(*(self._revoke(pod, progress) for pod in granted))
        self._forget(key)

    def _rest(self, key: WorkloadKey, workload: Shrinking) -> float | None:
        """A ReplicaSet whose Deployment rolls out will shrink on soon, and its next wave carries the new numbers."""
        owner = self._workloads.wanted.get(workload.metadata.uid)
        moves = isinstance(workload, ReplicaSet) and owner is not None and workload.spec.replicas != owner.desired
        progress = self._progress.get(key)
        if moves and progress is not None and not progress.pace.is_stuck(self._clock(), _STUCK_SECONDS):
            return _STUCK_SECONDS
        self._forget(key)
        return None

    def _demand(self, workload: Shrinking, pods: list[PodFacts]) -> GrantDemand:
        if isinstance(workload, StatefulSet):
            return of_stateful_set(workload, pods)
        if isinstance(workload, DaemonSet):
            return of_daemon_set(workload, pods, self._planner.node_labels(pods))
        if sum(not pod.terminating for pod in pods) <= workload.spec.replicas and not any(pod.granted for pod in pods):
            return GrantDemand((), PodOrder.FULLEST_FIRST, 0)  # the usual case costs nothing more
        return of_replica_set(workload, pods, self._domains(pods, list(self._planner.budgets(pods).values())))

    def _domains(self, pods: list[PodFacts], budgets: list[Budget]) -> dict[str, str]:
        return {pod.uid: self._planner.domain(pod, budgets) for pod in pods}

    async def _go_on(
        self,
        key: WorkloadKey,
        workload: Shrinking,
        demand: GrantDemand,
        budgets: dict[Key, Budget],
        progress: _Progress,
    ) -> float | None:
        if progress.granted.keys() & {pod.uid for pod in demand.pods}:
            return TOGETHER_SECONDS * 10  # what we wrote has not been heard of yet
        wave = self._plan(demand, budgets, progress.pace)
        if wave is None:
            return UNCOUNTED_SECONDS
        if not wave.picks:
            return self._wait(key, workload, demand, wave, progress)
        if not demand.waiting and self._is_whole(workload):
            progress.pace.ended()
        elif seconds := progress.pace.seconds_to_gather(self._clock()):
            return seconds
        await self._act(key, wave, progress)
        return _STUCK_SECONDS

    def _plan(self, demand: GrantDemand, budgets: dict[Key, Budget], pace: RolloutBackoff) -> Wave | None:
        selecting = list(budgets.values())
        purse = self._planner.purse(selecting, DisruptionKind.CONTROLLER_DELETES, ChargeSource.SCALE_DOWN, None)
        if purse is None:
            return None
        cordoned = self._planner.cordoned(demand.pods)
        candidates = [
            self._planner.candidate(
                pod, selecting, rank(pod, cordoned=cordoned[pod.node]), purse, pace.turn_of_pod(pod.uid)
            )
            for pod in demand.pods
        ]
        peers, now = self._peers(demand.pods[0], selecting), self._clock()
        return next_wave(
            candidates,
            purse,
            demand.order,
            levels=levels(peers, self._domains(peers, selecting), demand.unasked),
            limits=WaveLimits(demand.most, lambda domain: pace.is_closed(domain, now), pace.is_probing, pace.turn),
        )

    def _peers(self, pod: PodFacts, budgets: list[Budget]) -> list[PodFacts]:
        """All pods of its owner, those of other ReplicaSets included, as far as a budget knows them."""
        wanted = self._workloads.wanted
        owner = owner_of(pod, wanted)
        known = {peer.uid: peer for budget in budgets for peer in self._sources.pods_selected_by(budget.key)}
        return [peer for peer in known.values() if owner and owner_of(peer, wanted) == owner]

    def _is_whole(self, workload: Shrinking) -> bool:
        """Whether nothing of the owner is on its way: then there is nothing to wait for."""
        owner = self._workloads.wanted.get(workload.metadata.uid)
        pods = self._sources.pods_of(workload.metadata.uid)
        if owner is None or not pods:
            return True
        peers = self._peers(pods[0], list(self._planner.budgets(pods[:1]).values()))
        return sum(pod.ready and not pod.terminating and not pod.leaving for pod in peers) >= owner.desired

    def _wait(
        self, key: WorkloadKey, workload: Shrinking, demand: GrantDemand, wave: Wave, progress: _Progress
    ) -> float:
        quiet = not demand.waiting and self._is_whole(workload)
        if quiet or progress.pace.is_stuck(self._clock(), _STUCK_SECONDS):
            self._queue.release(key)
            self._reporter.held(workload, "ScaleDownHeld", wave)
        domains = {held.candidate.domain for held in wave.held}
        return min(progress.pace.seconds_until_open(domains, self._clock()) or _STUCK_SECONDS, _STUCK_SECONDS)

    async def _act(self, key: WorkloadKey, wave: Wave, progress: _Progress) -> None:
        picks = await self._planner.reserve(wave, str(key))
        progress.pace.started(self._clock())
        await asyncio.gather(*(self._grant(pick.candidate.pod, progress) for pick in picks))

    async def _grant(self, pod: PodFacts, progress: _Progress) -> None:
        annotations = {GRANTED: pod.uid, DELETION_COST: str(LEAVES_FIRST)}
        try:
            written = await self._annotate(pod, annotations)
        except NotFound:
            _GRANTS.labels("gone").inc()
            return
        except Conflict:
            # Somebody else owns its cost, which then decides when it goes; or it is gone and its name given again.
            written = await self._annotate(pod, {GRANTED: pod.uid})
        progress.granted[pod.uid] = int(written.metadata.resource_version)
        _GRANTS.labels("granted").inc()

    async def _revoke(self, pod: PodFacts, progress: _Progress) -> None:
        """Its charge stays until it is seen without the grant, and then runs out."""
        try:
            await self._annotate(pod, {})
        except (NotFound, Conflict):
            return
        progress.granted.pop(pod.uid, None)
        _GRANTS.labels("revoked").inc()

    async def _annotate(self, pod: PodFacts, annotations: dict[str, str]) -> Pod:
        """All that we say about the pod: what is not named any more goes. The uid makes sure that it is this one."""
        body = {"metadata": {"uid": pod.uid, "annotations": annotations}}
        return await self._client.patch(PODS, pod.name, Apply(body, DISRUPTION_FIELD_MANAGER), pod.namespace)

    def _progress_of(self, key: WorkloadKey, workload: Shrinking) -> _Progress:
        progress = self._progress.get(key)
        if progress is None or progress.uid != workload.metadata.uid:
            self._forget(key)
            progress = self._progress[key] = _Progress(workload.metadata.uid)
        return progress

    def _hear_of_grants(self, progress: _Progress, pods: list[PodFacts], budgets: list[Budget]) -> None:
        """Where a grant is gone that was written, somebody takes it away: another is tried, and ever more rarely."""
        present = {pod.uid: pod for pod in pods}
        progress.granted = {uid: version for uid, version in progress.granted.items() if uid in present}
        for uid, version in list(progress.granted.items()):
            pod = present[uid]
            cached = self._sources.pods.get(pod.key)
            if not pod.granted and (cached is None or int(cached.metadata.resource_version) < version):
                continue
            del progress.granted[uid]
            if not pod.granted and pod.ready and not pod.leaving and not pod.terminating:
                progress.pace.refused(self._planner.domain(pod, budgets), uid, self._clock())
                self._reporter.stripped(pod)

    def _forget(self, key: WorkloadKey) -> None:
        progress = self._progress.pop(key, None)
        self._queue.release(key)
        if progress is not None:
            self._reporter.forget(progress.uid)
