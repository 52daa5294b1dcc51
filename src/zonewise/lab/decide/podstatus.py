"""Pod status as a kubelet would report it, from the pod and its containers. Pure."""

from __future__ import annotations

import datetime as dt
from typing import Any

from zonewise.lab.decide import probe_results
from zonewise.lab.decide.addresses import Addresses
from zonewise.lab.decide.pod_lifecycle import (
    FINAL_PHASES,
    ContainerExit,
    ContainerState,
    States,
    finished,
    restart_at,
    restarts,
    state_of,
    succeeded,
    unrunnable,
)
from zonewise.lab.decide.podspec import RunContainer, RunPod

Json = dict[str, Any]


def timestamp(moment: float) -> str:
    return dt.datetime.fromtimestamp(moment, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def report(
    pod: RunPod, states: States, *, host: Addresses, addresses: Addresses | None, since: float, now: float
) -> Json:
    """The fields of `status` that belong to the node; `since` is when the node first saw the pod."""
    status: Json = {
        "phase": phase(pod, states),
        "conditions": _conditions(pod, states, addresses, now),
        "hostIP": str(host.v4),
        "hostIPs": [{"ip": str(address)} for address in host],
        "startTime": pod.status.start_time or timestamp(since),
        "containerStatuses": [_container_status(pod, c, states, now) for c in pod.spec.containers],
    }
    if pod.spec.init_containers:
        status["initContainerStatuses"] = [_container_status(pod, c, states, now) for c in pod.spec.init_containers]
    if addresses is not None:
        status |= {"podIP": str(addresses.v4), "podIPs": [{"ip": str(address)} for address in addresses]}
    return status


def phase(pod: RunPod, states: States) -> str:
    if pod.status.phase in FINAL_PHASES:
        return pod.status.phase
    if not _initialized(pod, states):
        return "Failed" if finished(pod, states) else "Pending"
    own = [state_of(states, container) for container in pod.spec.containers]
    if finished(pod, states):
        return "Succeeded" if all(succeeded(state) for state in own) else "Failed"
    return "Running" if any(state.running or state.ended for state in own) else "Pending"


def is_ready(container: RunContainer, state: ContainerState) -> bool:
    return state.running and probe_results.ready(container, state.tallies)


def _initialized(pod: RunPod, states: States) -> bool:
    return all(succeeded(state_of(states, init)) for init in pod.spec.init_containers)


def _conditions(pod: RunPod, states: States, addresses: Addresses | None, now: float) -> list[Json]:
    unready = [c.name for c in pod.spec.containers if not is_ready(c, state_of(states, c))]
    gates = {condition.type: condition.status for condition in pod.status.conditions}
    closed = [gate.condition_type for gate in pod.spec.readiness_gates if gates.get(gate.condition_type) != "True"]
    over = finished(pod, states)
    why_containers = (
        ("PodCompleted", "")
        if over
        else ("ContainersNotReady", f"containers with unready status: {', '.join(unready)}")
    )
    why_pod = (
        why_containers if unready else ("ReadinessGatesNotReady", f"readiness gates not true: {', '.join(closed)}")
    )
    return [
        _condition(pod, "PodScheduled", True, ("", ""), now),
        _condition(pod, "PodReadyToStartContainers", addresses is not None, ("", ""), now),
        _condition(pod, "Initialized", _initialized(pod, states), ("ContainersNotInitialized", ""), now),
        _condition(pod, "ContainersReady", not unready, why_containers, now),
        _condition(pod, "Ready", not unready and not closed, why_pod, now),
    ]


def _condition(pod: RunPod, kind: str, holds: bool, why_not: tuple[str, str], now: float) -> Json:
    status = "True" if holds else "False"
    known = next((c for c in pod.status.conditions if c.type == kind and c.status == status), None)
    reason, message = ("", "") if holds else why_not
    return {
        "type": kind,
        "status": status,
        # null takes a reason away that the last report had: the API merges conditions by type.
        "reason": reason or None,
        "message": message or None,
        "lastTransitionTime": known.last_transition_time if known else timestamp(now),
    }


def _container_status(pod: RunPod, container: RunContainer, states: States, now: float) -> Json:
    state = state_of(states, container)
    status: Json = {
        "name": container.name,
        "image": container.image,
        "imageID": "",
        "restartCount": state.restarts,
        "ready": succeeded(state) if container in pod.spec.init_containers else is_ready(container, state),
        "started": state.running and probe_results.started(container, state.tallies),
        "state": _state(pod, container, states, now),
    }
    if state.running or state.ended:
        status["containerID"] = f"process://{pod.metadata.uid}/{container.name}/{state.restarts}"
    if state.ended and "terminated" not in status["state"]:
        status["lastState"] = {"terminated": _terminated(state.ended)}
    return status


def _state(pod: RunPod, container: RunContainer, states: States, now: float) -> Json:
    state = state_of(states, container)
    if state.started_at is not None:
        return {"running": {"startedAt": timestamp(state.started_at)}}
    problem = state.problem or unrunnable(pod, container)
    if problem is not None:
        return _waiting(problem.reason, problem.message)
    if state.ended is None:
        initializing = container in pod.spec.containers and not _initialized(pod, states)
        return _waiting("PodInitializing" if initializing else "ContainerCreating", "")
    if restarts(pod, container, state) and now < restart_at(state):
        wait = restart_at(state) - state.ended.finished_at
        return _waiting(
            "CrashLoopBackOff", f"back-off {wait:.0f}s restarting failed container={container.name} pod={pod}"
        )
    return {"terminated": _terminated(state.ended)}


def _waiting(reason: str, message: str) -> Json:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def _terminated(ended: ContainerExit) -> Json:
    terminated: Json = {
        "exitCode": ended.exit_code,
        "reason": "Completed" if ended.exit_code == 0 else "Error",
        "startedAt": timestamp(ended.started_at),
        "finishedAt": timestamp(ended.finished_at),
    }
    if ended.exit_code > 128:
        terminated["signal"] = ended.exit_code - 128
    if ended.unseen:
        terminated |= {"reason": "ContainerStatusUnknown", "message": "it ended while the node's agent was away"}
    return terminated


def tells_news(pod: RunPod, last: Json | None, new: Json) -> bool:
    """Whether a report must be sent: it differs from the last one, or another program has changed a condition since.

    The controller manager does, when the node's heartbeat is overdue.
    """
    if last is None or _without_moments(last) != _without_moments(new):
        return True
    known = {condition.type: condition.status for condition in pod.status.conditions}
    return any(known.get(condition["type"]) != condition["status"] for condition in new["conditions"])


def _without_moments(status: Json) -> Json:
    return {**status, "conditions": [{**c, "lastTransitionTime": None} for c in status["conditions"]]}
