"""Rollout controller: updates StatefulSets and DaemonSets by eviction, in waves over domains.

It handles workloads with the strategy OnDelete and the annotation `zonewise.dev/update: Evict`, and DaemonSets with
RollingUpdate whose own controller a budget holds. `old_revisions` finds the old pods, `wave` those that may go together
now. They are charged to all ledgers, one write per budget, and only then evicted. All state is in the cluster: the next
leader continues the same wave.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Counter

from zonewise.api.names import RESERVED, UPDATE
from zonewise.disruption.controller.planner import UNCOUNTED_SECONDS
from zonewise.disruption.controller.workload_controller import WorkloadController, WorkloadProgress
from zonewise.disruption.decide.backoff import STUCK_SECONDS, RolloutBackoff
from zonewise.disruption.decide.budget import Budget, DisruptionKind
from zonewise.disruption.decide.ledger import ChargeSource
from zonewise.disruption.decide.old_revisions import (
    EVICT,
    UpdateError,
    WorkloadUpdate,
    is_complete,
    is_evicting,
    is_observed,
    newest_revision,
    of_daemon_set,
    of_stateful_set,
    ranks,
    updates_itself,
)
from zonewise.disruption.decide.wave import Wave, WavePick, next_wave
from zonewise.disruption.watch.informers import WorkloadKey
from zonewise.disruption.webhook.registration import EVICTION_WEBHOOK
from zonewise.kube.controller.workqueue import Backoff
from zonewise.kube.wire.errors import ApiError, NotFound, ServerError, TooManyRequests
from zonewise.kube.wire.patch import JsonPatch
from zonewise.objects import Key
from zonewise.objects.apps import CONTROLLER_REVISIONS, DAEMON_SETS, STATEFUL_SETS, DaemonSet, StatefulSet

_WAVES: Final = Counter("zonewise_rollout_waves", "Waves of pods evicted to update their workload", ("kind",))
_EVICTIONS: Final = Counter("zonewise_rollout_evictions", "Evictions by updates", ("kind", "result"))

Evicting = StatefulSet | DaemonSet


@dataclass(slots=True)
class _Progress(WorkloadProgress):
    """`evicted`: uids of evicted pods that the cache may still have."""

    evicted: set[str] = field(default_factory=set)
    uncertain: bool = False
    """A server error in the last wave: whether the pod goes is unknown, so its charge has to expire."""
    waves: int = 0
    target: str = ""
    """The revision of the update: with another one, all refused pods are tried again."""
    generation: int = -1
    revision: str = ""
    completed_version: int = 0
    """Version of the StatefulSet after we completed its update; the stock controller may overwrite that from its cache."""


class RolloutController(WorkloadController[Evicting, _Progress]):
    _NAME = "rollouts"
    _KINDS = (STATEFUL_SETS.kind, DAEMON_SETS.kind)
    _RETRY = Backoff(first_seconds=1.0, longest_seconds=30.0)

    def _new_progress(self, uid: str) -> _Progress:
        return _Progress(uid)

    async def _reconcile(self, key: WorkloadKey) -> float | None:
        workload = self._find(key)
        if workload is None or not (is_evicting(workload) or self._is_held(workload)):
            self._stop(key, workload)
            return None
        progress = self._progress_of(key, workload)
        if not is_observed(workload):
            return None
        try:
            update = await self._update(workload, progress)
        except UpdateError as error:
            self._events.warn(workload, "InvalidUpdate", str(error))
            return None
        if progress.target != update.revision:
            progress.target, progress.backoff = update.revision, RolloutBackoff()
        if not update.old:
            return await self._finish(key, workload, update, progress)
        return await self._continue(key, workload, update, progress)

    def _is_held(self, workload: Evicting) -> bool:
        """A DaemonSet's own update picks pods at random, so a guard that lets few of them go would stall it."""
        if not isinstance(workload, DaemonSet) or not updates_itself(workload):
            return False
        return self._planner.is_guarded(self._informers.pods_of(workload.metadata.uid))

    async def _update(self, workload: Evicting, progress: _Progress) -> WorkloadUpdate:
        pods = self._informers.pods_of(workload.metadata.uid)
        progress.evicted &= {pod.uid for pod in pods}
        staying = [pod for pod in pods if pod.uid not in progress.evicted]
        if isinstance(workload, StatefulSet):
            return of_stateful_set(workload, staying)
        return of_daemon_set(workload, staying, await self._revision(workload, progress))

    async def _revision(self, workload: DaemonSet, progress: _Progress) -> str:
        """Read once for each version of the spec: a watch of all revisions would be far more data."""
        if progress.generation != workload.metadata.generation:
            revisions = await self._client.list(CONTROLLER_REVISIONS, workload.metadata.namespace)
            progress.revision = newest_revision(workload, revisions.items)
            progress.generation = workload.metadata.generation
        return progress.revision

    async def _continue(
        self, key: WorkloadKey, workload: Evicting, update: WorkloadUpdate, progress: _Progress
    ) -> float | None:
        budgets = self._planner.budgets(update.old)
        self._hold(key, budgets.keys())
        wave = self._plan(update, budgets, progress)
        if wave is None:
            return UNCOUNTED_SECONDS
        if not wave.picks:
            return self._wait(key, workload, update, wave, progress)
        now = self._clock()
        if update.is_whole:
            progress.backoff.ended()
        elif seconds := progress.backoff.seconds_to_gather(now):
            return seconds
        await self._act(key, wave, progress)
        return self._seconds_until_next(wave, progress)

    def _seconds_until_next(self, wave: Wave, progress: _Progress) -> float:
        domains = {pick.candidate.domain for pick in wave.picks if pick.candidate.uid not in progress.evicted}
        return progress.backoff.seconds_until_retry(domains, self._clock())

    def _plan(self, update: WorkloadUpdate, budgets: dict[Key, Budget], progress: _Progress) -> Wave | None:
        selecting = list(budgets.values())
        wave_budget = self._planner.wave_budget(
            selecting, DisruptionKind.EVICTIONS, ChargeSource.ROLLOUT, 1 if update.is_whole else 0
        )
        if wave_budget is None:
            return None
        ranked = ranks(update.old, self._planner.cordoned(update.old))
        candidates = self._planner.candidates(update.old, selecting, ranked, wave_budget, progress.backoff)
        limits = progress.backoff.wave_limits(update.most, self._clock())
        return next_wave(candidates, wave_budget, limits=limits)

    def _wait(
        self, key: WorkloadKey, workload: Evicting, update: WorkloadUpdate, wave: Wave, progress: _Progress
    ) -> float | None:
        """Waits for an event. Only refusals, whose end causes no event, are retried by time."""
        domains = {held.candidate.domain for held in wave.held}
        now = self._clock()
        if update.is_whole or progress.backoff.is_stuck(now):
            self._release(key)
            self._events.held(workload, "UpdateHeld", wave)
            return progress.backoff.seconds_until_open(domains, now)
        return progress.backoff.seconds_until_retry(domains, now)

    async def _act(self, key: WorkloadKey, wave: Wave, progress: _Progress) -> None:
        if progress.backoff.is_doubtful and not await self._evict(wave.picks[0], progress, key.kind, dry_run=True):
            return
        picks = await self._planner.reserve(wave, str(key))
        progress.backoff.started(self._clock())
        progress.waves += 1
        _WAVES.labels(key.kind).inc()
        await self._evict_all(picks, progress, key.kind)

    async def _evict_all(self, picks: list[WavePick], progress: _Progress, kind: str) -> None:
        """One by one until the first goes, then all others together: what refuses one would refuse them all.

        The charges of pods that stay, refused or not tried, are given back.
        """
        progress.uncertain = False
        waiting = list(picks)
        while waiting:
            pick = waiting.pop(0)
            if self._is_open(pick, progress) and await self._evict(pick, progress, kind):
                break
        open_picks = [pick for pick in waiting if self._is_open(pick, progress)]
        ended = await asyncio.gather(
            *(self._evict(pick, progress, kind) for pick in open_picks), return_exceptions=True
        )
        for error in ended:
            if isinstance(error, BaseException):
                raise error
        staying = {pick.candidate.uid for pick in picks} - progress.evicted
        if staying and not progress.uncertain:
            self._reservations.give_back(staying)

    def _is_open(self, pick: WavePick, progress: _Progress) -> bool:
        return not progress.backoff.is_closed(pick.candidate.domain, self._clock())

    async def _evict(self, pick: WavePick, progress: _Progress, kind: str, *, dry_run: bool = False) -> bool:
        """A dry run costs no write, and shows whether one is worth it."""
        pod, annotations = pick.candidate.pod, None if dry_run else _reserved(pick)
        try:
            await self._client.evict(pod.name, pod.namespace, uid=pod.uid, dry_run=dry_run, annotations=annotations)
        except NotFound:
            result = "gone"
        except ApiError as error:
            if not error.status:
                raise  # no answer
            self._refused(pick, progress, error, tried=not dry_run)
            _EVICTIONS.labels(kind, "refused").inc()
            return False
        else:
            result = "evicted"
        if not dry_run:
            _EVICTIONS.labels(kind, result).inc()
            progress.backoff.went(pick.candidate.domain)
            progress.evicted.add(pod.uid)
        return True

    def _refused(self, pick: WavePick, progress: _Progress, error: ApiError, *, tried: bool) -> None:
        """By a budget, a policy or a webhook; or by a server error, which is no verdict on this pod or domain."""
        server_failed, backoff = isinstance(error, ServerError), progress.backoff
        progress.uncertain |= server_failed and tried
        note_failure = backoff.refused
        if server_failed:
            note_failure = backoff.failed
        elif not tried and _is_our_own(error):
            note_failure = backoff.lost_race
        note_failure(pick.candidate.domain, pick.candidate.uid, self._clock(), error.retry_after_seconds)
        self._events.refused(pick.candidate.pod, error)

    async def _finish(
        self, key: WorkloadKey, workload: Evicting, update: WorkloadUpdate, progress: _Progress
    ) -> float | None:
        if not update.is_whole:  # the last wave is not complete
            if progress.backoff.is_stuck(self._clock()):
                self._release(key)
            return STUCK_SECONDS if self._holding.get(key) else None
        if update.early:  # the next ready successor causes an event
            self._release(key)
            return None
        completed = progress.completed_version
        if isinstance(workload, StatefulSet) and is_complete(workload, update) and _version(workload) >= completed:
            completed = _version(await self._complete(workload))
        if progress.waves:
            note = f"all {update.desired} pods are of revision {update.revision}, after {progress.waves} waves"
            self._events.forget(progress.uid)
            self._events.note(workload, "Updated", note)
        self._release(key)
        self._progress[key] = _Progress(
            progress.uid,
            generation=progress.generation,
            revision=progress.revision,
            completed_version=completed,
        )
        return None

    async def _complete(self, workload: StatefulSet) -> StatefulSet:
        """As the stock controller does since 1.37: `kubectl rollout` and the next rollback use it."""
        metadata, revision = workload.metadata, workload.status.update_revision
        change = JsonPatch(
            [  # fails if another update has begun meanwhile
                {"op": "test", "path": "/status/updateRevision", "value": revision},
                {"op": "replace", "path": "/status/currentRevision", "value": revision},
            ]
        )
        return await self._client.patch(STATEFUL_SETS, metadata.name, change, metadata.namespace, subresource="status")

    def _stop(self, key: WorkloadKey, workload: Evicting | None) -> None:
        evicts = workload is not None and workload.metadata.annotations.get(UPDATE) == EVICT
        if workload is not None and evicts and workload.metadata.deletion_timestamp is None:
            note = f"{UPDATE}: {EVICT} needs spec.updateStrategy.type OnDelete, or stock deletes pods beside it"
            self._events.warn(workload, "InvalidUpdate", note)
        self._release(key)
        self._progress.pop(key, None)


def _reserved(pick: WavePick) -> dict[str, str]:
    """Shows webhooks that the charge in the ledger is this one. They renew an older one, so that it does not expire."""
    times = [entry.time for entry in pick.charge.charges.values()]  # all of one plan, so all the same
    return {RESERVED: times[0]} if times else {}


def _is_our_own(error: ApiError) -> bool:
    """Whether our budgets refused: the API server names the webhook."""
    return isinstance(error, TooManyRequests) and EVICTION_WEBHOOK in error.message


def _version(workload: StatefulSet) -> int:
    return int(workload.metadata.resource_version)
