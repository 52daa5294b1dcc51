"""Tells people, once, what becomes of a workload's update or scale-down: held by whom, refused, finished."""

from __future__ import annotations

from typing import Any, Final

from zonewise import log
from zonewise.api.names import GRANTED
from zonewise.disruption.decide.pods import PodFacts
from zonewise.disruption.decide.wave import Wave
from zonewise.kube.controller.recorder import Recorder, Severity, reference_to
from zonewise.kube.wire.errors import ApiError
from zonewise.objects import Resource, key_of
from zonewise.objects.apps import (
    DAEMON_SETS,
    REPLICA_SETS,
    STATEFUL_SETS,
    DaemonSet,
    ReplicaSet,
    StatefulSet,
)

_log = log.get_logger(__name__)

_SENTENCES: Final = 3

Workload = StatefulSet | DaemonSet | ReplicaSet


class WorkloadEvents:
    """An event is written when what it says is new for its workload: a workload that stays held is told once."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._told: dict[tuple[str, str], object] = {}

    def warn(self, workload: Workload, reason: str, note: str) -> None:
        self._tell(workload, Severity.WARNING, reason, note, note)

    def held(self, workload: Workload, reason: str, wave: Wave) -> None:
        reasons = {why.code: why for held in wave.held for why in held.reasons}
        said = "; ".join(str(why) for why in list(reasons.values())[:_SENTENCES])
        note = f"{len(wave.held)} pods wait: {said}"
        self._tell(workload, Severity.WARNING, reason, note, frozenset(reasons))

    def refused(self, pod: PodFacts, error: ApiError) -> None:
        _log.warning("eviction refused, another pod is tried later", pod=str(pod.key), error=error.message)

    def stripped(self, pod: PodFacts) -> None:
        told = "somebody takes our annotation off pods: their controller may not delete them, another is tried later"
        _log.warning(told, pod=str(pod.key), annotation=GRANTED)

    def note(self, workload: Workload, reason: str, note: str) -> None:
        self._tell(workload, Severity.NORMAL, reason, note, note)

    def forget(self, uid: str) -> None:
        """What was wrong is over: should it come again, it is news."""
        for known in [known for known in self._told if known[0] == uid]:
            del self._told[known]

    def _tell(self, workload: Workload, severity: Severity, reason: str, note: str, news: object) -> None:
        about = (workload.metadata.uid, reason)
        if self._told.get(about) == news:
            return
        self._told[about] = news
        _log.info(reason, workload=str(key_of(workload)), note=note)
        self._recorder.record(reference_to(_resource(workload), workload), severity, reason, note)


def _resource(workload: Workload) -> Resource[Any]:
    match workload:
        case StatefulSet():
            return STATEFUL_SETS
        case DaemonSet():
            return DAEMON_SETS
        case ReplicaSet():
            return REPLICA_SETS
