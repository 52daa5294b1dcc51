"""Crashes of labs: `down` removes their namespaces, links, mounts, cgroups and processes, and leaves other labs alone."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.lab.machine import Machine, until
from support.lab.pods import IMAGE, SLEEPER
from zonewise.kube.wire.errors import ConfigError
from zonewise.lab import labs, processes, state, status
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.lab.decide.addresses import link_of
from zonewise.lab.decide.cgroup_hierarchies import lab_cgroup, node_cgroup
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import cgroups, node_programs
from zonewise.lab.state import Lab, LabOptions
from zonewise.lab.status import LabHealth

NAME = f"crash-{os.getpid()}"
NODE = "zone-a-1"
UP = ("up", "--name", NAME, "--zones", "1", "--nodes", "1", "--no-scheduler")


def links() -> set[str]:
    return {link["ifname"] for link in json.loads(subprocess.check_output(["ip", "-json", "link"]))}


def network_laid(_directory: Path) -> object:
    return namespaces.of_lab(NAME)


def cgroups_made(_directory: Path) -> object:
    return any((hierarchy.path / lab_cgroup(NAME)).exists() for hierarchy in cgroups.known())


def log_exists(name: str) -> Callable[[Path], object]:
    return lambda directory: processes.log_path(directory, name).exists()


MOMENTS: dict[str, Callable[[Path], object]] = {
    "its network is laid": network_laid,
    "the API server starts": log_exists(Program.APISERVER),
    "its cgroups are made": cgroups_made,
    "a node's first process starts": log_exists(node_programs.process_name(NODE)),
    "containerd starts": log_exists(node_programs.unit_name("containerd", NODE)),
    "the kubelet starts": log_exists(node_programs.unit_name("kubelet", NODE)),
}


@pytest.mark.parametrize("moment", MOMENTS.values(), ids=MOMENTS)
def test_down_after_a_killed_up_leaves_nothing(machine: Machine, moment: Callable[[Path], object]) -> None:
    with machine.start(*UP) as up:
        until(lambda: moment(machine.state / "labs" / NAME) or up.poll() is not None)
        up.kill()
        up.communicate()
    machine.run("down", "--name", NAME)
    machine.assert_untouched()


def run_pod(directory: Path) -> None:
    """A pod of whose processes and mounts only the node knows."""
    plane = ControlPlane.attach(directory)
    container = {"name": "main", "image": IMAGE, **SLEEPER}
    body = {"metadata": {"name": "p"}, "spec": {"nodeName": NODE, "containers": [container]}}
    plane.request("POST", "/api/v1/namespaces/default/pods", body)
    until(lambda: plane.request("GET", "/api/v1/namespaces/default/pods/p")["status"]["phase"] == "Running")


def kill(*pids: int) -> None:
    assert all(pids)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def kill_units(directory: Path, *names: str) -> None:
    kill(*(unit.pid for unit in node_programs.units(directory, NODE, names)))


def kill_recorded(directory: Path, *names: str) -> None:
    found = [processes.find(directory, name) for name in names]
    kill(*(process.pid for process in found if process is not None))


def node_cgroups() -> list[Path]:
    roots = (hierarchy.path / node_cgroup(NAME, NODE) for hierarchy in cgroups.known())
    return [Path(directory) for root in roots for directory, _, _ in os.walk(root)]


def kill_shims(_directory: Path) -> None:
    """They are in no record, and no parent of theirs waits for them."""
    pids = {int(pid) for cgroup in node_cgroups() for pid in (cgroup / "cgroup.procs").read_text().split()}
    kill(*(pid for pid in pids if Path(f"/proc/{pid}/comm").read_text().startswith("containerd-shim")))


def freeze_pods(_directory: Path) -> None:
    """As a runc leaves them that is killed while it kills."""
    for cgroup in node_cgroups():
        for file, frozen in (("freezer.state", "FROZEN"), ("cgroup.freeze", "1")):
            if "kubepods" in cgroup.parts and (cgroup / file).exists():
                (cgroup / file).write_text(frozen)


def tear_record(directory: Path) -> None:
    (directory / "lab.json").write_text("{")


DAMAGES: dict[str, Callable[[Path], None]] = {
    "none": lambda _directory: None,
    "containerd and kubelet killed": lambda directory: kill_units(directory, *node_programs.UNITS),
    "kube-proxy killed": lambda directory: kill_units(directory, node_programs.KUBE_PROXY),
    "shims killed": kill_shims,
    "node's first process killed": lambda directory: kill(node_programs.first_process(directory, NODE)),
    "what started it killed": lambda directory: kill_recorded(directory, node_programs.process_name(NODE)),
    "etcd and API server killed": lambda directory: kill_recorded(directory, Program.ETCD, Program.APISERVER),
    "containers frozen": freeze_pods,
    "record torn": tear_record,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_down_of_a_damaged_lab_leaves_nothing_but_the_other_lab(
    machine: Machine, small_lab: Lab, damage: Callable[[Path], None]
) -> None:
    directory = machine.state / "labs" / NAME
    shown = json.loads(machine.run(*UP, "--kube-proxy", "-o", "json"))
    run_pod(directory)
    assert machine.mounts() != []
    assert machine.cgroups() != []
    assert {link_of(shown["slot"]), link_of(small_lab.slot)} <= links()
    damage(directory)
    machine.run("down", "--name", NAME)
    machine.assert_untouched()
    assert link_of(shown["slot"]) not in links()
    assert status.of(small_lab).health is LabHealth.READY
    assert namespaces.of_lab(small_lab.name)


HALFWAY: dict[str, Callable[[Path], bool]] = {
    "at once": lambda _directory: True,
    "its namespaces are gone": lambda _directory: not namespaces.of_lab(NAME),
    "its cgroups are gone": lambda directory: not cgroups_made(directory),
    "its record is gone": lambda directory: not (directory / "lab.json").exists(),
    "its directory is gone": lambda directory: not directory.exists(),
}


@pytest.mark.parametrize("moment", HALFWAY.values(), ids=HALFWAY)
def test_second_down_finishes_one_that_was_killed(machine: Machine, moment: Callable[[Path], bool]) -> None:
    directory = machine.state / "labs" / NAME
    machine.run(*UP)
    with machine.start("down", "--name", NAME) as down:
        until(lambda: moment(directory) or down.poll() is not None)
        down.kill()
        down.communicate()
    machine.run("down", "--name", NAME)
    machine.assert_untouched()


def test_tool_that_outlives_a_killed_up_does_nothing(machine: Machine, tmp_path: Path) -> None:
    slow = tmp_path / "ip"
    slow.write_text(f'#!/bin/sh\nfor i in $(seq 50); do sleep 0.1; done\nexec {shutil.which("ip")} "$@"\n')
    slow.chmod(0o755)
    quick = machine.environ
    machine.environ = {**quick, "PATH": f"{tmp_path}:{quick['PATH']}"}
    with machine.start(*UP) as up:
        until(lambda: any(str(slow) in command for command in machine.processes()))
        up.kill()
        up.communicate()
    machine.environ = quick
    machine.run("down", "--name", NAME)
    until(lambda: not machine.processes())
    machine.assert_untouched()


def test_lab_name_is_unique_on_the_machine(machine: Machine, tmp_path: Path) -> None:
    """With another state directory the namespaces are the same: the second lab must not remove the first one's."""
    machine.run(*UP)
    second = Machine(tmp_path / "other")
    assert f"a lab '{NAME}' runs already" in second.run(*UP, code=1)
    assert second.processes() == []
    assert machine.status(NAME).ready_nodes == 1


def test_lab_keeps_running_when_its_demo_fails(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZONEWISE_STATE", str(machine.state))
    machine.names.add(NAME)
    options = LabOptions(zones=("zone-a",), nodes_per_zone=1, kube_proxy=True, demo=True)
    kubeconfig = state.directory_of(NAME) / "admin.kubeconfig"

    def refuse(step: str) -> None:
        if "demo" in step:
            raise OSError(errno.ENOSPC, "no room left")

    def lose_kubeconfig(step: str) -> None:
        if "demo" in step:
            kubeconfig.rename(kubeconfig.with_suffix(".away"))

    with pytest.raises(OSError, match="no room"):
        labs.up(NAME, options, refuse)
    before = machine.status(NAME).processes
    with pytest.raises(ConfigError, match=r"admin\.kubeconfig"):
        labs.up(NAME, options, lose_kubeconfig)
    kubeconfig.with_suffix(".away").rename(kubeconfig)
    assert [process.pid for process in machine.status(NAME).processes] == [process.pid for process in before]


def test_interrupted_up_removes_its_network(machine: Machine) -> None:
    with machine.start(*UP) as up:
        until(lambda: namespaces.of_lab(NAME))
        up.terminate()
        up.communicate(timeout=60)
    assert up.returncode == 1
    machine.assert_untouched()


def test_more_nodes_than_addresses_is_refused_before_start(machine: Machine) -> None:
    assert "room for 63 " in machine.run("up", "--name", NAME, "--zones", "3", "--nodes", "500", code=2)
