"""csi-sanity, the conformance test of CSI drivers, against the whole driver on a real Ceph cluster. Skipped specs are listed with a reason."""

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

# A cluster of its own, since it counts all volumes; one worker, so that both kinds share the cluster.
pytestmark = [pytest.mark.xdist_group("csi-sanity"), pytest.mark.timeout(900)]

SPECS_RUN = 73
SKIPPED = {
    "ControllerModifyVolume not supported": "parameters of a volume can't be changed",
    "Modify volume not supported": "the same, when it is created",
    "Modify Volume not supported": "the same, when it is created",
    "ControllerPublishVolume not supported": "nodes attach volumes by themselves",
    "ControllerUnpublishVolume not supported": "the same, for unpublish",
    "Controller Publish, UnpublishVolume not supported": "the same, as a sequence",
    "GroupControllerService not supported": "group snapshots are not supported",
    "ControllerGetVolumeHealth not supported": "alpha; nodes report the health of volumes",
    "ControllerListVolumeHealth not supported": "alpha, the same",
    "NodeGetStorageHealth not supported": "alpha; Ceph reports its own health",
    "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS not supported": "alpha; a snapshot stays in the domain of its volume",
    "pending": "disabled in csi-sanity",
}
SECRETS = (
    *("CreateVolume", "DeleteVolume", "ControllerValidateVolumeCapabilities", "NodeStageVolume", "NodePublishVolume"),
    *("CreateSnapshot", "DeleteSnapshot", "ControllerExpandVolume", "ListSnapshots", "GetSnapshot"),
)
# Block volumes differ from mounted ones in the last step only, which has its own tests.
KINDS = [("rbd", "mount"), ("cephfs", "mount")]
if os.environ.get("ZONEWISE_FAULTS") == "long":
    KINDS.append(("rbd", "block"))


@pytest.fixture
def node(breakable_ceph: LabCeph, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """One for each kind: csi-sanity waits for ever for a driver that died."""
    directory = tmp_path_factory.mktemp("sanity")
    config = driver.config_file(directory, breakable_ceph)
    with running(NodeProcess(directory, config, breakable_ceph)) as process:
        yield process


@pytest.mark.parametrize(("kind", "access"), KINDS)
def test_driver_passes_csi_sanity(node: NodeProcess, tmp_path: Path, kind: str, access: str) -> None:
    secrets, parameters, report = tmp_path / "secrets", tmp_path / "parameters", tmp_path / "report.xml"
    secrets.write_text(json.dumps({f"{rpc}Secret": node.secrets for rpc in SECRETS}))
    parameters.write_text(json.dumps({"type": kind, "clusterID": "lab"}))
    result = subprocess.run(
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
    assert result.returncode == 0, result.stdout[-6000:]
    cases = list(ET.parse(report).getroot().iter("testcase"))
    skipped = {case.get("name"): case.find("skipped") for case in cases if case.find("skipped") is not None}
    reasons = {
        name: (why.get("message") or "").removeprefix("skipped - ") for name, why in skipped.items() if why is not None
    }
    assert {name: reason for name, reason in reasons.items() if reason not in SKIPPED} == {}
    assert sum(case.get("status") == "passed" for case in cases) == SPECS_RUN
