"""`zonewise lab up --ceph`: a Ceph cluster with the zones of the lab, removed with the lab."""

import json
import subprocess
from pathlib import Path

from support.lab.machine import ZONEWISE, Machine
from zonewise.lab.ceph import cluster as ceph


def test_lab_with_ceph_starts_and_is_removed(machine: Machine) -> None:
    arguments = ("up", "--zones", "2", "--nodes", "0", "--no-scheduler", "--ceph", "-o", "json")
    lab = json.loads(machine.run(*arguments))
    assert {"mon", "mgr", "mds", "osd0", "osd1"} <= {process["name"] for process in lab["processes"]}
    cluster = ceph.attach(Path(lab["directory"]) / "ceph")
    assert cluster.zones == ("zone-a", "zone-b")
    result = subprocess.run(
        [ZONEWISE, "csi", "doctor", "--config", cluster.csi_file],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == "nothing is wrong\n"
    assert "--ceph on, not off" in machine.run(*arguments[:-3], "-o", "json", code=1)
    machine.run("down")
    machine.assert_untouched()
