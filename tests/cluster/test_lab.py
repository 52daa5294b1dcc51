"""`zonewise lab` through its command line: state while running, and leftovers afterwards."""

import json
import os
import re
import signal
import time
from pathlib import Path

import msgspec
import pytest

from support.lab.machine import Machine, until
from zonewise.lab.status import LabHealth, LabStatus

CONTROL_PLANE = {"etcd", "kube-apiserver", "kube-controller-manager"}


def test_up_status_kubectl_and_logs(machine: Machine) -> None:
    arguments = ("up", "--name", "one", "--zones", "2", "--nodes", "0", "--kwok-nodes", "5", "-o", "json")
    shown = msgspec.json.decode(
        machine.run(*arguments, "--controllers", "*,-endpointslice-controller"), type=LabStatus, strict=True
    )
    assert shown.health is LabHealth.READY
    assert {process.name for process in shown.processes} == CONTROL_PLANE | {"kube-scheduler", "kwok"}
    assert all(process.running and process.memory_bytes for process in shown.processes)
    assert [(zone.name, zone.kwok_nodes, zone.ready_nodes) for zone in shown.zones] == [
        ("zone-a", 3, 3),
        ("zone-b", 2, 2),
    ]

    assert machine.run(*arguments, "--controllers", "*,-endpointslice-controller"), "a second up changes nothing"
    assert machine.status("one").processes[0].pid == shown.processes[0].pid
    assert (
        "running with other options: --zones 2, not 1; --controllers *,-endpointslice-controller, not *: end it first"
        in machine.run(*arguments, "--zones", "1", code=1)
    )

    path = machine.run("kubeconfig", "--name", "one").strip()
    assert path == shown.kubeconfig
    assert Path(path).stat().st_mode & 0o077 == 0
    nodes = json.loads(machine.run("kubectl", "--name", "one", "--", "get", "nodes", "-l", "type=kwok", "-o", "json"))
    assert len(nodes["items"]) == 5
    assert "NotFound" in machine.run("kubectl", "--name", "one", "get", "pod", "none", code=1)
    assert machine.run("list") == "one\n"
    assert "has no network between zones" in machine.run("cut", "--name", "one", "zone-a", code=2)

    assert "kube-controller-manager" in machine.run("logs", "--name", "one").splitlines()
    log = machine.run("logs", "--name", "one", "kube-controller-manager")
    assert re.search(r'controller is disabled.*"?endpointslice-controller', log)
    assert "it has etcd, kube-apiserver" in machine.run("logs", "--name", "one", "nothing", code=1)


def test_two_labs_start_at_once_and_stay_independent(machine: Machine) -> None:
    ups = [machine.start("up", "--name", name, "--zones", "0", "--no-scheduler") for name in ("left", "right")]
    for up in ups:
        with up:
            assert up.communicate(timeout=240)
            assert up.returncode == 0
    left, right = machine.status("left"), machine.status("right")
    assert left.server != right.server
    assert {process.name for process in left.processes} == CONTROL_PLANE
    machine.run("kubectl", "--name", "left", "--", "create", "namespace", "only-left")
    assert "only-left" not in machine.run("kubectl", "--name", "right", "--", "get", "namespaces")
    machine.run("down", "--name", "left")
    assert machine.status("right").health is LabHealth.READY


def test_ended_process_is_reported_and_the_lab_is_kept(machine: Machine) -> None:
    machine.run("up", "--name", "hurt", "--zones", "0", "--no-scheduler")
    victim = next(process for process in machine.status("hurt").processes if process.name == "kube-controller-manager")
    os.kill(victim.pid, signal.SIGKILL)
    until(lambda: machine.status("hurt", code=1).problem == "kube-controller-manager ended")
    messages = machine.run("up", "--name", "hurt", "--zones", "0", "--no-scheduler", code=1)
    assert "lab 'hurt' is broken (kube-controller-manager ended): end it first" in messages


def test_interrupted_up_removes_what_it_started(machine: Machine) -> None:
    with machine.start("up", "--name", "short", "--zones", "0") as up:
        until(lambda: any("kube-apiserver" in command for command in machine.processes()))
        up.send_signal(signal.SIGSTOP)  # keep it from finishing during the check
        assert machine.status("short", code=1).health is LabHealth.STARTING
        up.send_signal(signal.SIGINT)
        up.send_signal(signal.SIGCONT)
        up.communicate(timeout=60)
    assert up.returncode == 1
    machine.assert_untouched()


def test_down_after_a_killed_up_leaves_nothing(machine: Machine) -> None:
    for moment in (0.3, 0.6, 0.9, 1.5, 3.0):
        with machine.start("up", "--name", "crash", "--zones", "0") as up:
            time.sleep(moment)
            up.kill()
            up.communicate()
        machine.run("down", "--name", "crash")
        machine.assert_untouched()


def test_up_after_a_crash_starts_a_new_lab(machine: Machine) -> None:
    with machine.start("up", "--name", "again", "--zones", "0") as up:
        until(lambda: any("kube-apiserver" in command for command in machine.processes()))
        up.kill()
        up.communicate()
    crashed = machine.status("again", code=1)
    assert (crashed.health, crashed.problem) == (LabHealth.BROKEN, "its start failed or was killed")
    assert "no lab 'again' is running" in machine.run("kubeconfig", "--name", "again", code=1)
    machine.run("up", "--name", "again", "--zones", "0")
    status = machine.status("again")
    assert status.health is LabHealth.READY
    assert len(machine.processes()) == len(status.processes)


def test_failed_up_names_the_program_and_keeps_its_log(machine: Machine) -> None:
    messages = machine.run("up", "--name", "bad", "--zones", "0", "--controllers", "no-such-controller", code=1)
    assert re.search(r"kube-controller-manager ended: .*no-such-controller", messages)
    assert len(messages.strip().splitlines()[-1].split("zonewise: ")) == 2
    assert machine.processes() == []
    assert "lab bad is broken: Kubernetes v1.36.3, no nodes" in machine.output("status", "--name", "bad", code=1)
    assert "no-such-controller" in machine.run("logs", "--name", "bad", "kube-controller-manager")


USAGE = {
    "kwok nodes need a zone": (["up", "--zones", "0", "--kwok-nodes", "3"], "at least one with --zones"),
    "kube-proxy needs nodes": (["up", "--nodes", "0", "--kube-proxy"], "kube-proxy runs on nodes"),
    "malformed version": (["up", "--kube-version", "1.36"], "has the form v1.36.3"),
    "malformed name": (["status", "--name", "Big"], "lower-case letters"),
    "too many zones": (["up", "--zones", "30"], "26"),
}


@pytest.mark.parametrize(("arguments", "message"), USAGE.values(), ids=USAGE.keys())
def test_usage_error_is_one_line_and_exit_code_2(machine: Machine, arguments: list[str], message: str) -> None:
    assert message in machine.run(*arguments, code=2)


@pytest.mark.parametrize(
    "command", [["logs"], ["kubeconfig"], ["status"], ["cut", "zone-a"]], ids=lambda command: command[0]
)
def test_commands_without_a_lab_tell_how_to_start_one(machine: Machine, command: list[str]) -> None:
    message = machine.run(*command, "--name", "nope", code=1)
    assert message == "zonewise: no lab 'nope' is running: start 'nope' with `zonewise lab up --name nope`\n"


def test_down_without_a_lab_succeeds(machine: Machine) -> None:
    machine.run("down", "--name", "never")
