"""Events and log lines about updates and scale-downs of workloads: held, refused, finished; each once."""

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
    """Records an event only if it is new for its workload: a workload that stays held gets one."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._recorded: dict[tuple[str, str], object] = {}

    def warn(self, workload: Workload, reason: str, note: str) -> None:
        self._record(workload, Severity.WARNING, reason, note, note)

    def held(self, workload: Workload, reason: str, wave: Wave) -> None:
        reasons = {held_by.code: held_by for held in wave.held for held_by in held.reasons}
        sentences = "; ".join(str(held_by) for held_by in list(reasons.values())[:_SENTENCES])
        note = f"{len(wave.held)} pods wait: {sentences}"
        self._record(workload, Severity.WARNING, reason, note, frozenset(reasons))

    def refused(self, pod: PodFacts, error: ApiError) -> None:
        _log.warning("eviction refused, another pod is tried later", pod=str(pod.key), error=error.message)

    def stripped(self, pod: PodFacts) -> None:
        _log.warning(
            "grant removed by another client, another pod is tried later", pod=str(pod.key), annotation=GRANTED
        )

    def note(self, workload: Workload, reason: str, note: str) -> None:
        self._record(workload, Severity.NORMAL, reason, note, note)

    def forget(self, uid: str) -> None:
        """Report the same again if it comes back."""
        for subject in [subject for subject in self._recorded if subject[0] == uid]:
            del self._recorded[subject]

    def _record(self, workload: Workload, severity: Severity, reason: str, note: str, news: object) -> None:
        subject = (workload.metadata.uid, reason)
        if self._recorded.get(subject) == news:
            return
        self._recorded[subject] = news
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
