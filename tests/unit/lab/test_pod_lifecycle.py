"""Pod lifecycle decisions: tables of situations with the exact actions, and invariants."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.lab.decide import pod_lifecycle
from zonewise.lab.decide.pod_lifecycle import (
    ContainerExit,
    ContainerState,
    LifecycleAction,
    LifecycleStep,
    Probing,
    StartProblem,
    decide,
)
from zonewise.lab.decide.podspec import RunContainer, RunPod
from zonewise.lab.decide.probe_results import ProbeKind, ProbeTally

NOW = 1000.0


def pod(*containers: dict[str, Any], **spec: Any) -> RunPod:
    """Pod as the API server sends it; `deletion` and `phase` are not part of its spec."""
    grace, phase = spec.pop("deletion", None), spec.pop("phase", "Pending")
    metadata: dict[str, Any] = {"name": "p", "namespace": "default", "uid": "u"}
    if grace is not None:
        metadata |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace}
    container_specs = [{"name": "c", "command": ["run"], **container} for container in containers or ({},)]
    body = {"metadata": metadata, "spec": {"containers": container_specs, **spec}, "status": {"phase": phase}}
    return msgspec.convert(body, RunPod)


def running(since: float = NOW - 100, **more: Any) -> ContainerState:
    return ContainerState(started_at=since, **more)


def ended(code: int, *, at: float = NOW - 1, crashes: int = 1, **more: Any) -> ContainerState:
    return ContainerState(ended=ContainerExit(code, at - 10, at), crashes=crashes, **more)


def actions(run_pod: RunPod, states: dict[str, ContainerState], **more: Any) -> list[str]:
    """Actions as text: "start c", "liveness c"."""
    decision = decide(run_pod, states, NOW, **more)
    return [f"{action.kind} {action.container.name}" for action in decision.actions]


PROBE = {"tcpSocket": {"port": 1}, "periodSeconds": 10, "initialDelaySeconds": 5}
HOOK = {"lifecycle": {"preStop": {"exec": {"command": ["x"]}}}}
INIT = [{"name": "i", "command": ["x"]}]
BAD = {ProbeKind.LIVENESS: ProbeTally(failures=3, passing=False, last_at=NOW)}

CASES: dict[str, tuple[RunPod, dict[str, ContainerState], list[str]]] = {
    "a new pod starts": (pod(), {}, ["start c"]),
    "containers start together": (pod({"name": "a"}, {"name": "b"}), {}, ["start a", "start b"]),
    "an init container goes first": (pod(initContainers=INIT), {}, ["start i"]),
    "others wait while it runs": (pod(initContainers=INIT), {"i": running()}, []),
    "and start when it has succeeded": (pod(initContainers=INIT), {"i": ended(0)}, ["start c"]),
    "an init container that failed is tried again": (pod(initContainers=INIT), {"i": ended(1)}, ["start i"]),
    "but not if nothing is ever restarted": (pod(initContainers=INIT, restartPolicy="Never"), {"i": ended(1)}, []),
    "without a command nothing starts": (pod({"command": []}), {}, []),
    "what runs is left alone": (pod(), {"c": running()}, []),
    "what ended is restarted at once the first time": (pod(), {"c": ended(1)}, ["start c"]),
    "and after a back-off the next": (pod(), {"c": ended(1, crashes=2)}, []),
    "which ends": (pod(), {"c": ended(1, at=NOW - 10, crashes=2)}, ["start c"]),
    "success is restarted too under Always": (pod(), {"c": ended(0)}, ["start c"]),
    "but not under OnFailure": (pod(restartPolicy="OnFailure"), {"c": ended(0)}, []),
    "failure is": (pod(restartPolicy="OnFailure"), {"c": ended(1)}, ["start c"]),
    "nothing is under Never": (pod(restartPolicy="Never"), {"c": ended(1)}, []),
    "a start that failed waits": (pod(), {"c": ContainerState(problem=StartProblem("R", "m", NOW + 1))}, []),
    "and is tried again": (pod(), {"c": ContainerState(problem=StartProblem("R", "m", NOW))}, ["start c"]),
    "a probe waits for its initial delay": (pod({"readinessProbe": PROBE}), {"c": running(NOW - 4)}, []),
    "and is due after it": (pod({"readinessProbe": PROBE}), {"c": running(NOW - 5)}, ["readiness c"]),
    "readiness and liveness wait for startup": (
        pod({"startupProbe": PROBE, "readinessProbe": PROBE, "livenessProbe": PROBE}),
        {"c": running()},
        ["startup c"],
    ),
    "a failed liveness probe stops the container": (
        pod({"livenessProbe": PROBE}),
        {"c": running(tallies=BAD)},
        ["terminate c"],
    ),
    "a terminating pod gets SIGTERM": (pod(deletion=30), {"c": running()}, ["terminate c"]),
    "once": (pod(deletion=30), {"c": running(stop_asked_at=NOW - 1, terminated=True)}, []),
    "and killed when its grace is over": (
        pod(deletion=30),
        {"c": running(stop_asked_at=NOW - 30, terminated=True)},
        ["kill c"],
    ),
    "once too": (pod(deletion=30), {"c": running(stop_asked_at=NOW - 31, terminated=True, killed=True)}, []),
    "a shorter grace asked for later counts": (
        pod(deletion=1),
        {"c": running(stop_asked_at=NOW - 2, terminated=True)},
        ["kill c"],
    ),
    "its hook comes first": (pod(HOOK, deletion=30), {"c": running()}, ["run hook c"]),
    "the signal waits for the hook": (pod(HOOK, deletion=30), {"c": running(stop_asked_at=NOW - 1)}, []),
    "and comes after it": (
        pod(HOOK, deletion=30),
        {"c": running(stop_asked_at=NOW - 1, hook_done=True)},
        ["terminate c"],
    ),
    "a hook that lasts too long ends in a kill": (
        pod(HOOK, deletion=30),
        {"c": running(stop_asked_at=NOW - 30)},
        ["kill c"],
    ),
    "without grace it is killed at once": (pod(HOOK, deletion=0), {"c": running()}, ["kill c"]),
    "while terminating only readiness is probed": (
        pod({"readinessProbe": PROBE, "livenessProbe": PROBE}, deletion=30),
        {"c": running(stop_asked_at=NOW - 1, terminated=True)},
        ["readiness c"],
    ),
    "a terminating pod starts nothing": (pod(deletion=30), {"c": ended(1)}, []),
    "a pod declared failed is stopped": (pod(phase="Failed"), {"c": running()}, ["terminate c"]),
    "and starts nothing": (pod(phase="Succeeded"), {}, []),
}


@pytest.mark.parametrize(("run_pod", "states", "expected"), CASES.values(), ids=CASES)
def test_situation_calls_for_exactly_these_actions(
    run_pod: RunPod, states: dict[str, ContainerState], expected: list[str]
) -> None:
    assert actions(run_pod, states) == expected


def test_pod_whose_object_is_gone_is_killed() -> None:
    assert actions(pod(), {"c": running()}, gone=True) == ["kill c"]


OVER = {
    "while something runs": (pod(deletion=30), {"c": running()}, False),
    "when all has ended": (pod(deletion=30), {"c": ended(0)}, True),
    "when nothing ever ran": (pod(deletion=30), {}, True),
    "when it has run to its end": (pod(restartPolicy="Never"), {"c": ended(1)}, True),
    "not when it will run again": (pod(), {"c": ended(1, crashes=9)}, False),
    "not when it can't start": (pod({"command": []}), {}, False),
    "not while one of two runs": (
        pod({"name": "a"}, {"name": "b"}, restartPolicy="Never"),
        {"a": ended(0), "b": running()},
        False,
    ),
}


@pytest.mark.parametrize(("run_pod", "states", "over"), OVER.values(), ids=OVER)
def test_pod_is_over_when_nothing_runs_or_restarts(
    run_pod: RunPod, states: dict[str, ContainerState], over: bool
) -> None:
    assert decide(run_pod, states, NOW).over is over


WAKES = {
    "at the end of a back-off": (pod(), {"c": ended(1, at=NOW - 4, crashes=2)}, NOW + 6),
    "when a probe is due": (pod({"readinessProbe": PROBE}), {"c": running(NOW - 2)}, NOW + 3),
    "when grace ends": (pod(deletion=30), {"c": running(stop_asked_at=NOW - 10, terminated=True)}, NOW + 20),
    "when a start is tried again": (pod(), {"c": ContainerState(problem=StartProblem("R", "m", NOW + 7))}, NOW + 7),
    "never, if nothing is due": (pod(), {"c": running()}, None),
}


@pytest.mark.parametrize(("run_pod", "states", "wake_at"), WAKES.values(), ids=WAKES)
def test_next_wake_up_time(run_pod: RunPod, states: dict[str, ContainerState], wake_at: float | None) -> None:
    assert decide(run_pod, states, NOW).wake_at == wake_at


def test_back_off_doubles_up_to_five_minutes() -> None:
    assert [pod_lifecycle.backoff_seconds(crashes) for crashes in range(9)] == [0, 0, 10, 20, 40, 80, 160, 300, 300]


def test_crashes_are_counted_and_reset_by_a_long_run() -> None:
    state = ContainerState().started(0)
    state = state.exited(1, 5).started(6).exited(2, 7).started(20)
    assert (state.restarts, state.crashes, state.ended) == (2, 2, ContainerExit(2, 6, 7))
    assert state.exited(0, 20 + pod_lifecycle.FORGIVEN_AFTER_SECONDS).crashes == 1
    assert state.tallies == {}


@given(
    deletion=st.none() | st.integers(0, 60),
    policy=st.sampled_from(["Always", "OnFailure", "Never"]),
    codes=st.lists(st.integers(0, 2), max_size=6),
    stops_on_request=st.booleans(),
)
def test_deleted_pod_gets_one_sigterm_and_ends_within_its_grace(
    deletion: int | None, policy: str, codes: list[int], stops_on_request: bool
) -> None:
    """Simulate the pod with its own clock: runs end with the given codes, then it is deleted."""
    now, state = 0.0, ContainerState()
    living = pod(restartPolicy=policy)
    for code in codes:
        if LifecycleAction(LifecycleStep.START, _only(living)) in decide(living, {"c": state}, now + 1000).actions:
            state = state.started(now).exited(code, now + 1)
        now += 1000
    state = state if state.running else state.started(now)
    dying = pod(restartPolicy=policy, deletion=deletion or 0)
    terminated_at, killed_at = [], []
    for moment in (now + second for second in range(62)):
        for action in decide(dying, {"c": state}, moment).actions:
            assert isinstance(action, LifecycleAction)
            if action.kind is LifecycleStep.TERMINATE:
                terminated_at.append(moment)
                state = msgspec.structs.replace(state, stop_asked_at=moment, terminated=True)
                state = state.exited(0, moment) if stops_on_request else state
            else:
                killed_at.append(moment)
                state = state.exited(137, moment)
        if not state.running:
            break
    assert not state.running
    assert len(terminated_at) <= 1
    assert killed_at in ([], [now + (deletion or 0)])
    assert decide(dying, {"c": state}, now + 100).over


def _only(run_pod: RunPod) -> RunContainer:
    (container,) = run_pod.spec.containers
    return container


def test_due_probe_is_returned_with_its_kind() -> None:
    run_pod = pod({"readinessProbe": PROBE})
    assert decide(run_pod, {"c": running()}, NOW).actions == (Probing(_only(run_pod), ProbeKind.READINESS),)
