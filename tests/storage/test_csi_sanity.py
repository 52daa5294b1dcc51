"""csi-sanity, the conformance test of CSI drivers, against the whole driver on a real Ceph. What it skips is listed with the reason."""

import json
import os
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.ceph import driver
from support.ceph.node import NodeProcess, running
from zonewise.lab.build import csi_sanity
from zonewise.lab.ceph.cluster import LabCeph

# Its own Ceph, since it counts all volumes of a cluster; one worker, so that both kinds share that.
pytestmark = [pytest.mark.xdist_group("csi-sanity"), pytest.mark.timeout(900)]

SPECS_RUN = 73
SKIPPED = {
    "ControllerModifyVolume not supported": "no parameter of a volume can be changed later",
    "Modify volume not supported": "the same, when it is created",
    "Modify Volume not supported": "the same, when it is created",
    "ControllerPublishVolume not supported": "nodes attach volumes by themselves: the controller has no part in it",
    "ControllerUnpublishVolume not supported": "the same, when it is taken away",
    "Controller Publish, UnpublishVolume not supported": "the same, all of it in a row",
    "GroupControllerService not supported": "snapshots of several volumes at once are not offered",
    "ControllerGetVolumeHealth not supported": "alpha; nodes report a volume's health, which they see",
    "ControllerListVolumeHealth not supported": "alpha, the same",
    "NodeGetStorageHealth not supported": "alpha; Ceph's own health is not a node's to tell",
    "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported": "alpha; a snapshot stays in the domain of its volume",
    "pending": "switched off in csi-sanity itself",
}
SECRETS = (
    *("CreateVolume", "DeleteVolume", "ControllerValidateVolumeCapabilities", "NodeStageVolume", "NodePublishVolume"),
    *("CreateSnapshot", "DeleteSnapshot", "ControllerExpandVolume", "ListSnapshots", "GetSnapshot"),
)
# Raw block volumes take the way of mounted ones but for the last step, which has tests of its own.
KINDS = [("rbd", "mount"), ("cephfs", "mount")]
if os.environ.get("ZONEWISE_FAULTS") == "long":
    KINDS.append(("rbd", "block"))


@pytest.fixture
def node(breakable_ceph: LabCeph, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One for each kind: csi-sanity waits for ever for a driver that died with the kind before."""
    directory = tmp_path_factory.mktemp("sanity")
    config = driver.config_file(directory, breakable_ceph)
    with running(NodeProcess(directory, config, breakable_ceph)) as process:
        yield process


@pytest.mark.parametrize(("kind", "access"), KINDS)
def test_the_driver_conforms(node: NodeProcess, tmp_path: Path, kind: str, access: str) -> None:
    secrets, parameters, report = tmp_path / "secrets", tmp_path / "parameters", tmp_path / "report.xml"
    secrets.write_text(json.dumps({f"{each}Secret": node.secrets for each in SECRETS}))
    parameters.write_text(json.dumps({"type": kind, "clusterID": "lab"}))
    ran = subprocess.run(
        [
            csi_sanity.ensure(),
            f"--csi.endpoint=unix://{node.socket}",
            f"--csi.secrets={secrets}",
            f"--csi.testvolumeparameters={parameters}",
            f"--csi.testvolumeaccesstype={access}",
            f"--csi.mountdir={tmp_path / node.node}-mounts",
            f"--csi.stagingdir={tmp_path / node.node}-staging",
            f"--csi.junitfile={report}",
            "--ginkgo.no-color",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-6000:]
    cases = list(ET.parse(report).getroot().iter("testcase"))
    skipped = {case.get("name"): case.find("skipped") for case in cases if case.find("skipped") is not None}
    reasons = {
        name: (why.get("message") or "").removeprefix("skipped - ") for name, why in skipped.items() if why is not None
    }
    assert {name: reason for name, reason in reasons.items() if reason not in SKIPPED} == {}
    assert sum(case.get("status") == "passed" for case in cases) == SPECS_RUN
