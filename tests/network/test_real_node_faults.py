"""Faults of real nodes: killed programs are replaced under running containers, and `down` leaves nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.lab.kubectl import Kubectl
from support.lab.machine import Machine, until
from support.lab.pods import Pods, eventually, main_status
from zonewise.lab import processes, status
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.decide.cgroup_hierarchies import lab_cgroup
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import cgroups, real_nodes
from zonewise.lab.state import Lab
from zonewise.lab.status import LabHealth

NODE = "zone-a-1"
NAME = f"real-crash-{os.getpid()}"
UP = ("up", "--name", NAME, "--zones", "1", "--nodes", "1", "--node-kind", "real", "--no-scheduler")
SLEEPER = {"image": "busybox:1", "command": ["sleep", "3600"]}


@pytest.fixture
def real_machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "state")
    yield machine
    machine.run("down", "--all")
    machine.assert_untouched()


def pid_of(directory: Path, unit: str) -> int:
    return real_nodes.units(directory, NODE, [unit])[0].pid


@pytest.mark.parametrize("unit", [*real_nodes.UNITS, real_nodes.KUBE_PROXY])
async def test_killed_program_is_replaced_and_its_pods_go_on(real_pods: Pods, unit: str) -> None:
    lab = real_pods.lab
    await real_pods.create("sleeper", NODE, SLEEPER)
    before = main_status(await real_pods.ready("sleeper"))
    killed = pid_of(lab.directory, unit)
    os.kill(killed, signal.SIGKILL)

    async def replaced() -> bool:
        return pid_of(lab.directory, unit) not in (0, killed)

    assert await eventually(replaced, f"{unit} runs again")

    async def answers() -> bool:
        return Kubectl(lab, real_pods.namespace).succeeds("exec", "sleeper", "--", "true")

    assert await eventually(answers, "exec works again")
    await real_pods.create("next", NODE, SLEEPER)
    await real_pods.ready("next")
    after = main_status(await real_pods.ready("sleeper"))
    assert (after["containerID"], after["restartCount"]) == (before["containerID"], 0)

    async def ready() -> bool:
        return status.of(lab).health is LabHealth.READY

    assert await eventually(ready, "the lab is ready again")


def made_cgroups(_directory: Path) -> object:
    return any((hierarchy.path / lab_cgroup(NAME)).exists() for hierarchy in cgroups.known())


def log_exists(unit: str) -> Callable[[Path], object]:
    return lambda directory: (directory / "log" / f"{unit}-{NODE}.log").exists()


MOMENTS: dict[str, Callable[[Path], object]] = {
    "its cgroups are made": made_cgroups,
    "its first process starts": log_exists("node"),
    "containerd starts": log_exists("containerd"),
    "the kubelet starts": log_exists("kubelet"),
}


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_down_after_an_up_killed_beside_real_nodes_leaves_nothing(
    real_machine: Machine, moment: Callable[[Path], object]
) -> None:
    with real_machine.start(*UP) as up:
        until(lambda: moment(real_machine.state / "labs" / NAME) or up.poll() is not None)
        up.kill()
        up.communicate()
    real_machine.run("down", "--name", NAME)
    real_machine.assert_untouched()


def run_pod(directory: Path) -> None:
    """A pod of whose processes and mounts only the node knows."""
    plane = ControlPlane.attach(directory)
    body = {"metadata": {"name": "p"}, "spec": {"nodeName": NODE, "containers": [{"name": "main", **SLEEPER}]}}
    plane.request("POST", "/api/v1/namespaces/default/pods", body)
    until(lambda: plane.request("GET", "/api/v1/namespaces/default/pods/p")["status"]["phase"] == "Running")


def parent_of(directory: Path) -> int:
    process = processes.find(directory, real_nodes.process_name(NODE))
    assert process is not None
    return process.pid


VICTIMS: dict[str, Callable[[Path], list[int]]] = {
    "nothing": lambda _directory: [],
    "containerd and kubelet": lambda directory: [pid_of(directory, unit) for unit in real_nodes.UNITS],
    "what started the first process": lambda directory: [parent_of(directory)],
}


@pytest.mark.parametrize("victims", VICTIMS.values(), ids=VICTIMS)
def test_down_leaves_nothing_of_a_real_node_after_a_kill(
    real_machine: Machine, real_lab: Lab, victims: Callable[[Path], list[int]]
) -> None:
    directory = real_machine.state / "labs" / NAME
    real_machine.run(*UP)
    run_pod(directory)
    assert real_machine.mounts() != []
    assert real_machine.cgroups() != []
    for pid in victims(directory):
        os.kill(pid, signal.SIGKILL)
    real_machine.run("down", "--name", NAME)
    real_machine.assert_untouched()
    assert status.of(real_lab).health is LabHealth.READY
    assert namespaces.of_lab(real_lab.name)
