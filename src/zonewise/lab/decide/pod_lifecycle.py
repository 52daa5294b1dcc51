"""Pod lifecycle on a namespace node: the next actions, from the pod, its containers' states and the time. Pure.

`decide` returns actions and the next moment worth asking again; `pods` performs them and records in `ContainerState` what
happened. Level, not edge: asking twice gives the same answer until something was done or time has passed. Order,
restarts, back-off and grace periods are the kubelet's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from zonewise.lab.decide import probe_results
from zonewise.lab.decide.podspec import RunContainer, RunPod
from zonewise.lab.decide.probe_results import ProbeKind, ProbeTally

FIRST_BACKOFF_SECONDS = 10.0
MOST_BACKOFF_SECONDS = 300.0
FORGIVEN_AFTER_SECONDS = 600.0  # a run this long clears the back-off
CONFIG_RETRY_SECONDS = 5.0
FINAL_PHASES = frozenset({"Succeeded", "Failed"})  # the API server allows no way back from them
UNKNOWN_EXIT_CODE = 137  # what the kubelet reports of a container that ended while no agent ran


class ContainerExit(msgspec.Struct, frozen=True):
    exit_code: int
    started_at: float
    finished_at: float
    unseen: bool = False


class StartProblem(msgspec.Struct, frozen=True):
    """Why a container does not start, as its waiting state says it; `retry_at` is None when only a new pod can help."""

    reason: str
    message: str
    retry_at: float | None = None


class ContainerState(msgspec.Struct, frozen=True):
    """One container: `started_at` is of the present run and None between runs, `ended` is how the last run ended."""

    started_at: float | None = None
    ended: ContainerExit | None = None
    restarts: int = 0
    crashes: int = 0
    problem: StartProblem | None = None
    stop_asked_at: float | None = None
    hook_done: bool = False
    terminated: bool = False
    killed: bool = False
    tallies: dict[ProbeKind, ProbeTally] = {}

    @property
    def running(self) -> bool:
        return self.started_at is not None

    def started(self, now: float) -> ContainerState:
        restarts = self.restarts + 1 if self.ended is not None else 0
        return ContainerState(started_at=now, ended=self.ended, restarts=restarts, crashes=self.crashes)

    def exited(self, exit_code: int, now: float, *, unseen: bool = False) -> ContainerState:
        assert self.started_at is not None
        long_run = now - self.started_at >= FORGIVEN_AFTER_SECONDS
        return ContainerState(
            ended=ContainerExit(exit_code, self.started_at, now, unseen),
            restarts=self.restarts,
            crashes=1 if long_run else self.crashes + 1,
        )

    def probed(self, container: RunContainer, kind: ProbeKind, success: bool, now: float) -> ContainerState:
        probe = probe_results.probe_of(container, kind)
        assert probe is not None
        tally = self.tallies.get(kind, ProbeTally()).record(probe, success, now)
        return msgspec.structs.replace(self, tallies={**self.tallies, kind: tally})


States = Mapping[str, ContainerState]


class LifecycleStep(StrEnum):
    START = "start"
    RUN_HOOK = "run hook"
    TERMINATE = "terminate"
    KILL = "kill"


@dataclass(frozen=True, slots=True)
class LifecycleAction:
    """One thing to do with one container."""

    kind: LifecycleStep
    container: RunContainer


@dataclass(frozen=True, slots=True)
class Probing:
    container: RunContainer
    kind: ProbeKind


@dataclass(frozen=True, slots=True)
class LifecycleDecision:
    """`over` says that nothing of the pod runs or will run: release what it holds, and if it is being deleted, delete it."""

    actions: tuple[LifecycleAction | Probing, ...] = ()
    wake_at: float | None = None
    over: bool = False


def state_of(states: States, container: RunContainer) -> ContainerState:
    return states.get(container.name, ContainerState())


def unrunnable(pod: RunPod, container: RunContainer) -> StartProblem | None:
    """Why the lab can't run the container, shown in its waiting state."""
    if not container.command:
        return StartProblem(
            "NoCommand", "the lab pulls no images and runs processes of this machine: give the container a command"
        )
    if container in pod.spec.init_containers and container.restart_policy:
        return StartProblem("Unsupported", "the lab runs no sidecars: leave restartPolicy out of the init container")
    return None


def backoff_seconds(crashes: int) -> float:
    """After the first crash none, then 10 s, doubling."""
    if crashes <= 1:
        return 0.0
    return min(MOST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(crashes - 2, 16))


def restarts(pod: RunPod, container: RunContainer, state: ContainerState) -> bool:
    """Whether a container that ended will be started again."""
    if state.ended is None or pod.terminating:
        return False
    is_init = container in pod.spec.init_containers
    match pod.spec.restart_policy:
        case "Never":
            return False
        case "Always" if not is_init:
            return True
        case _:
            return state.ended.exit_code != 0


def restart_at(state: ContainerState) -> float:
    assert state.ended is not None
    return state.ended.finished_at + backoff_seconds(state.crashes)


def admitted(pod: RunPod, states: States) -> tuple[RunContainer, ...]:
    """The containers whose turn has come: init containers one after the other, then all the others."""
    for init in pod.spec.init_containers:
        if not succeeded(state_of(states, init)):
            return (init,)
    return pod.spec.containers


def succeeded(state: ContainerState) -> bool:
    return not state.running and state.ended is not None and state.ended.exit_code == 0


def finished(pod: RunPod, states: States) -> bool:
    """Whether the pod has run to its end: none of the containers whose turn it is runs or will run again."""
    return pod.status.phase in FINAL_PHASES or all(
        not state.running and state.ended is not None and not restarts(pod, container, state)
        for container in admitted(pod, states)
        for state in [state_of(states, container)]
    )


def decide(pod: RunPod, states: States, now: float, *, gone: bool = False) -> LifecycleDecision:
    """`gone` says that the object is deleted already: what still runs has no grace left."""
    if pod.terminating or gone or pod.status.phase in FINAL_PHASES:
        grace = 0 if gone else _deletion_grace(pod)
        steps = [_stopping(container, state_of(states, container), grace, now) for container in pod.all_containers]
        still = any(state_of(states, container).running for container in pod.all_containers)
        return _merge(steps, over=not still)
    steps = [_upkeep(pod, container, state_of(states, container), now) for container in admitted(pod, states)]
    return _merge(steps, over=finished(pod, states))


def _deletion_grace(pod: RunPod) -> int:
    given = pod.metadata.deletion_grace_period_seconds
    return pod.spec.termination_grace_period_seconds if given is None else given


def _upkeep(pod: RunPod, container: RunContainer, state: ContainerState, now: float) -> LifecycleDecision:
    if state.running:
        return _running(pod, container, state, now)
    if state.problem is not None:
        return _at(state.problem.retry_at, LifecycleAction(LifecycleStep.START, container), now)
    if unrunnable(pod, container) is not None:
        return LifecycleDecision()
    if state.ended is None:
        return LifecycleDecision((LifecycleAction(LifecycleStep.START, container),))
    if restarts(pod, container, state):
        return _at(restart_at(state), LifecycleAction(LifecycleStep.START, container), now)
    return LifecycleDecision()


def _running(pod: RunPod, container: RunContainer, state: ContainerState, now: float) -> LifecycleDecision:
    kind = probe_results.failed(state.tallies)
    if kind is not None:
        probe = probe_results.probe_of(container, kind)
        own = probe.termination_grace_period_seconds if probe else None
        return _stop(container, state, pod.spec.termination_grace_period_seconds if own is None else own, now)
    return _probes(container, state, now, terminating=False)


def _stopping(container: RunContainer, state: ContainerState, grace: int, now: float) -> LifecycleDecision:
    if not state.running:
        return LifecycleDecision()
    return _merge([_stop(container, state, grace, now), _probes(container, state, now, terminating=True)], over=False)


def _stop(container: RunContainer, state: ContainerState, grace: int, now: float) -> LifecycleDecision:
    """Hook, SIGTERM, and SIGKILL when the grace period, which began with the hook, is over."""
    hook = container.lifecycle.pre_stop
    asked_at = state.stop_asked_at
    if asked_at is None and hook is not None and grace > 0:
        return LifecycleDecision((LifecycleAction(LifecycleStep.RUN_HOOK, container),), now + grace)
    deadline = (now if asked_at is None else asked_at) + grace
    if now >= deadline:
        return (
            LifecycleDecision()
            if state.killed
            else LifecycleDecision((LifecycleAction(LifecycleStep.KILL, container),))
        )
    if not state.terminated and (hook is None or state.hook_done):
        return LifecycleDecision((LifecycleAction(LifecycleStep.TERMINATE, container),), deadline)
    return LifecycleDecision(wake_at=deadline)


def _probes(container: RunContainer, state: ContainerState, now: float, *, terminating: bool) -> LifecycleDecision:
    assert state.started_at is not None
    times = probe_results.due(container, state.tallies, state.started_at, terminating=terminating)
    return _merge([_at(at, Probing(container, kind), now) for kind, at in times.items()], over=False)


def _at(moment: float | None, action: LifecycleAction | Probing, now: float) -> LifecycleDecision:
    if moment is None:
        return LifecycleDecision()
    return LifecycleDecision((action,)) if now >= moment else LifecycleDecision(wake_at=moment)


def _merge(parts: list[LifecycleDecision], *, over: bool) -> LifecycleDecision:
    times = [part.wake_at for part in parts if part.wake_at is not None]
    return LifecycleDecision(tuple(action for part in parts for action in part.actions), min(times, default=None), over)
