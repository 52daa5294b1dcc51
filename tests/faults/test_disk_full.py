"""The CSI node plugin on a full disk: nothing is half done, and what is staged can be used and unstaged."""

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from support.ceph import driver as csi_driver
from support.ceph.driver import RpcFailed
from support.ceph.node import NodeProcess, Volume, capability, running
from support.fault_report import Report
from zonewise.ceph.node import mounts
from zonewise.lab.ceph.cluster import LabCeph

pytestmark = [pytest.mark.xdist_group("disk-full"), pytest.mark.timeout(900)]

LONG = os.environ.get("ZONEWISE_FAULTS") == "long"
ROUNDS = 5 if LONG else 1
SIZE = "1m"


class SmallDisk:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        with self._filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        assert shutil.disk_usage(self.path).free == 0

    def free(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    path = tmp_path / "small"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", path], check=True)
    yield SmallDisk(path)
    subprocess.run(["umount", path], check=True)


@pytest.fixture
def node(ceph_cluster: LabCeph, disk: SmallDisk, tmp_path: Path) -> Iterator[NodeProcess]:
    config = csi_driver.config_file(tmp_path, ceph_cluster)
    with running(NodeProcess(tmp_path, config, ceph_cluster, disk=disk.path)) as process:
        yield process


def create(node: NodeProcess, directory: Path, kind: str) -> Volume:
    created = node.driver.create(f"pvc-{uuid.uuid4().hex[:12]}", preferred=["zone-a"], parameters={"type": kind})
    return Volume(node, created, directory, capability())


@pytest.mark.parametrize("kind", ["rbd", *(["cephfs"] if LONG else [])])
def test_full_state_directory_stops_new_volumes_only(
    node: NodeProcess, disk: SmallDisk, tmp_path: Path, report: Report, kind: str
) -> None:
    for _ in range(ROUNDS):
        before, staged, late = (create(node, tmp_path, kind) for _ in range(3))
        before.stage_and_publish()
        staged.stage()
        disk.fill()
        for refused in (late.stage, staged.publish):
            with pytest.raises(RpcFailed, match=r"RESOURCE_EXHAUSTED: .*state directory .* is full"):
                refused()
        assert mounts.at(str(late.staging)) is None
        assert mounts.at(str(staged.target)) is None
        assert len(list(node.state.iterdir())) == 2
        before.stage()  # kubelet repeats it after its restart
        (before.target / "data").write_bytes(b"written")
        assert (before.target / "data").read_bytes() == b"written"
        node.restart()  # also a successor of the plugin
        before.unpublish_and_unstage()
        assert mounts.at(str(before.staging)) is None
        late.unstage()
        disk.free()
        staged.publish()
        late.stage_and_publish()
        before.stage_and_publish()
        assert (before.target / "data").read_bytes() == b"written"
        for volume in (before, staged, late):
            volume.unpublish_and_unstage()
            node.driver.delete(volume.id)
    row = {"component": "csi node", "fault": "state directory full: new volumes are refused"}
    report(**row, rounds=ROUNDS, requests=node.client.calls, what="calls")
