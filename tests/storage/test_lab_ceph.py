"""`zonewise lab up --ceph`: a Ceph with the lab's zones, found by its configuration, gone with the lab."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.lab.machine import ZONEWISE, Machine
from zonewise.lab.ceph import cluster as ceph


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "state")
    yield machine
    machine.run("down", "--all")
    machine.assert_untouched()


def test_a_lab_with_ceph(machine: Machine) -> None:
    arguments = ("up", "--zones", "2", "--nodes", "0", "--no-scheduler", "--ceph", "-o", "json")
    shown = json.loads(machine.run(*arguments))
    assert {"mon", "mgr", "mds", "osd0", "osd1"} <= {process["name"] for process in shown["processes"]}
    cluster = ceph.attach(Path(shown["directory"]) / "ceph")
    assert cluster.zones == ("zone-a", "zone-b")
    empty = subprocess.run(
        [ZONEWISE, "csi", "doctor", "--config", cluster.csi_file],
        capture_output=True,
        text=True,
        check=True,
    )
    assert empty.stdout == "nothing is wrong\n"
    assert "--ceph on, not off" in machine.run(*arguments[:-3], "-o", "json", code=1)
    machine.run("down")
    machine.assert_untouched()
