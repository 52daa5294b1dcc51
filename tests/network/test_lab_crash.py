"""Crashes of a lab with namespace nodes: `down` removes its namespaces, links and processes."""

import errno
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.lab.machine import Machine, until
from zonewise.kube.wire.errors import ConfigError
from zonewise.lab import labs, state
from zonewise.lab.decide.addresses import link_of
from zonewise.lab.network import namespaces
from zonewise.lab.state import LabOptions

NAME = f"crash-{os.getpid()}"
UP = ("up", "--name", NAME, "--zones", "2", "--nodes", "1")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "state")
    yield machine
    machine.run("down", "--all")
    machine.assert_untouched()


def links() -> set[str]:
    return {link["ifname"] for link in json.loads(subprocess.check_output(["ip", "-json", "link"]))}


def test_down_after_a_killed_up_leaves_nothing(machine: Machine) -> None:
    for moment in (0.4, 0.8, 1.2, 6.0):
        with machine.start(*UP) as up:
            time.sleep(moment)
            up.kill()
            up.communicate()
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
    shown = json.loads(machine.run(*UP, "-o", "json"))
    second = Machine(tmp_path / "other")
    assert f"a lab '{NAME}' runs already" in second.run(*UP, code=1)
    assert second.processes() == []
    assert machine.status(NAME).ready_nodes == 2
    assert link_of(shown["slot"]) in links()
    machine.run("down", "--name", NAME)
    assert link_of(shown["slot"]) not in links()


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
    assert "room for 63 namespace nodes" in machine.run("up", "--name", NAME, "--zones", "3", "--nodes", "500", code=2)
    machine.assert_untouched()
