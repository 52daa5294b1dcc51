"""Pod status as the kubelet reports it: phases, conditions, and container states."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from zonewise.lab.decide import podstatus
from zonewise.lab.decide.addresses import plan
from zonewise.lab.decide.pod_lifecycle import ContainerExit, ContainerState, StartProblem
from zonewise.lab.decide.podspec import RunPod
from zonewise.lab.decide.podstatus import Json
from zonewise.lab.decide.probe_results import ProbeKind, ProbeTally

NODE = plan("lab", 0, ("a",), 1).nodes[0]
POD = NODE.pods.address(7)
NOW = 1_700_000_000.0
RUNNING = ContainerState(started_at=NOW - 60)
SUCCEEDED = ContainerState(ended=ContainerExit(0, NOW - 60, NOW - 1), crashes=1)
BROKEN = ContainerState(ended=ContainerExit(3, NOW - 60, NOW - 1), crashes=2, restarts=1)
INIT = [{"name": "i", "command": ["x"]}]


def pod(
    *, conditions: tuple[dict[str, str], ...] = (), phase: str = "Pending", container: Json | None = None, **spec: Any
) -> RunPod:
    container_spec = {"name": "c", "image": "none", "command": ["x"], **(container or {})}
    metadata = {"name": "p", "namespace": "default", "uid": "u"}
    status = {"phase": phase, "conditions": conditions}
    return msgspec.convert(
        {"metadata": metadata, "spec": {"containers": [container_spec], **spec}, "status": status}, RunPod
    )


def report(run_pod: RunPod, **states: ContainerState) -> Json:
    return podstatus.report(run_pod, states, host=NODE.address, addresses=POD, since=NOW - 90, now=NOW)


def conditions(status: Json) -> dict[str, str]:
    return {condition["type"]: condition["status"] for condition in status["conditions"]}


PHASES: dict[str, tuple[RunPod, dict[str, ContainerState], str]] = {
    "before anything runs": (pod(), {}, "Pending"),
    "while it initializes": (pod(initContainers=INIT), {"i": RUNNING}, "Pending"),
    "while it runs": (pod(), {"c": RUNNING}, "Running"),
    "between restarts": (pod(), {"c": BROKEN}, "Running"),
    "done well": (pod(restartPolicy="Never"), {"c": SUCCEEDED}, "Succeeded"),
    "done badly": (pod(restartPolicy="Never"), {"c": BROKEN}, "Failed"),
    "initialized badly": (pod(initContainers=INIT, restartPolicy="Never"), {"i": BROKEN}, "Failed"),
    "a final phase stays": (pod(phase="Failed"), {"c": RUNNING}, "Failed"),
}


@pytest.mark.parametrize(("run_pod", "states", "phase"), PHASES.values(), ids=PHASES)
def test_phase_of_the_pod(run_pod: RunPod, states: dict[str, ContainerState], phase: str) -> None:
    assert report(run_pod, **states)["phase"] == phase


STATES: dict[str, tuple[RunPod, dict[str, ContainerState], Json]] = {
    "not started": (pod(), {}, {"waiting": {"reason": "ContainerCreating"}}),
    "behind an init container": (pod(initContainers=INIT), {"i": RUNNING}, {"waiting": {"reason": "PodInitializing"}}),
    "running": (pod(), {"c": RUNNING}, {"running": {"startedAt": podstatus.timestamp(NOW - 60)}}),
    "misconfigured": (
        pod(),
        {"c": ContainerState(problem=StartProblem("CreateContainerConfigError", "no key"))},
        {"waiting": {"reason": "CreateContainerConfigError", "message": "no key"}},
    ),
    "crashing": (
        pod(),
        {"c": BROKEN},
        {
            "waiting": {
                "reason": "CrashLoopBackOff",
                "message": "back-off 10s restarting failed container=c pod=default/p",
            }
        },
    ),
    "over": (
        pod(restartPolicy="Never"),
        {"c": SUCCEEDED},
        {
            "terminated": {
                "exitCode": 0,
                "reason": "Completed",
                "startedAt": podstatus.timestamp(NOW - 60),
                "finishedAt": podstatus.timestamp(NOW - 1),
            }
        },
    ),
}


@pytest.mark.parametrize(("run_pod", "states", "state"), STATES.values(), ids=STATES)
def test_state_of_the_container(run_pod: RunPod, states: dict[str, ContainerState], state: Json) -> None:
    assert report(run_pod, **states)["containerStatuses"][0]["state"] == state


def test_container_without_a_command_tells_what_to_do() -> None:
    waiting = report(pod(container={"command": []}))["containerStatuses"][0]["state"]["waiting"]
    assert waiting["reason"] == "NoCommand"
    assert "give the container a command" in waiting["message"]


def test_last_state_is_kept_after_a_restart() -> None:
    status = report(
        pod(), c=ContainerState(started_at=NOW, ended=ContainerExit(137, NOW - 9, NOW - 5, unseen=True), restarts=4)
    )
    (container,) = status["containerStatuses"]
    assert container["restartCount"] == 4
    assert container["lastState"]["terminated"]["reason"] == "ContainerStatusUnknown"
    assert container["lastState"]["terminated"]["signal"] == 9


def test_readiness_needs_containers_and_readiness_gates() -> None:
    probed = pod(container={"readinessProbe": {"tcpSocket": {"port": 1}}})
    ready = ContainerState(started_at=NOW, tallies={ProbeKind.READINESS: ProbeTally(passing=True)})
    assert conditions(report(probed, c=RUNNING)) == {
        "PodScheduled": "True",
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "ContainersReady": "False",
        "Ready": "False",
    }
    assert conditions(report(probed, c=ready))["Ready"] == "True"
    gate = [{"conditionType": "example.com/in"}]
    assert conditions(report(pod(readinessGates=gate), c=RUNNING))["Ready"] == "False"
    opened = pod(readinessGates=gate, conditions=({"type": "example.com/in", "status": "True"},))
    assert conditions(report(opened, c=RUNNING))["Ready"] == "True"


def test_transition_time_is_kept_until_the_status_changes() -> None:
    previous = ({"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"},)
    (unchanged,) = [c for c in report(pod(conditions=previous), c=RUNNING)["conditions"] if c["type"] == "Ready"]
    (changed,) = [c for c in report(pod(conditions=previous), c=BROKEN)["conditions"] if c["type"] == "Ready"]
    assert unchanged["lastTransitionTime"] == "2020-01-01T00:00:00Z"
    assert changed["lastTransitionTime"] == podstatus.timestamp(NOW)


def test_addresses_are_reported_in_both_families() -> None:
    status = report(pod(), c=RUNNING)
    assert (status["hostIP"], status["podIP"]) == ("100.64.128.10", "100.64.129.7")
    assert status["podIPs"] == [{"ip": "100.64.129.7"}, {"ip": "fd7a:6f6e:6500:101::7"}]


def test_only_changed_status_is_sent() -> None:
    status = report(pod(), c=RUNNING)
    reported = pod(conditions=tuple({"type": c["type"], "status": c["status"]} for c in status["conditions"]))
    later = podstatus.report(reported, {"c": RUNNING}, host=NODE.address, addresses=POD, since=NOW - 90, now=NOW + 9)
    assert podstatus.tells_news(reported, None, status)
    assert not podstatus.tells_news(reported, status, later)
    assert podstatus.tells_news(reported, status, report(reported, c=BROKEN))
    declared_unready = pod(conditions=({"type": "Ready", "status": "False"},))
    assert podstatus.tells_news(declared_unready, status, status), "the controller manager has declared the pod unready"
