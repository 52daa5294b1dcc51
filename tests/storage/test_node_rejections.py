"""Requests that the node service rejects: wrong paths, keys and parameters, failed stages, hanging file systems."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from support.ceph.driver import MIB, RpcFailed
from support.ceph.node import MakeVolume, NodeProcess, Volume, capability
from support.waiting import eventually
from zonewise.ceph.node import daemons, mounts
from zonewise.ceph.node.stage_records import StageRecords

pytestmark = pytest.mark.xdist_group("csi-node")  # one driver for all


def test_invalid_stages_are_rejected_with_the_reason(make_volume: MakeVolume, node: NodeProcess) -> None:
    volume = make_volume(filesystem="ext4")
    for invalid, code, message in (
        (capability(filesystem="btrfs"), "INVALID_ARGUMENT", "use ext4 or xfs"),
        (capability(mode="MULTI_NODE_MULTI_WRITER"), "INVALID_ARGUMENT", "use CephFS"),
        (capability(mode="MULTI_NODE_READER_ONLY"), "FAILED_PRECONDITION", "has no file system"),
    ):
        second = Volume(node, volume.volume, volume.staging.parent, invalid)
        with pytest.raises(RpcFailed, match=message) as error:
            second.stage()
        assert error.value.code == code
    volume.stage_and_publish()  # without an unstage of the failed attempts
    with pytest.raises(RpcFailed, match="unstage it first"):
        Volume(node, volume.volume, volume.staging.parent, volume.capability).stage()
    gone = volume.id[:-4] + "ffff"
    with pytest.raises(RpcFailed, match="does not exist") as error:
        node.client.NodeStageVolume(
            volume_id=gone,
            staging_target_path=str(volume.staging.parent / "x"),
            volume_capability=volume.capability,
            secrets=node.secrets,
        )
    assert error.value.code == "NOT_FOUND"
    node.client.NodeUnstageVolume(volume_id=gone, staging_target_path=str(volume.staging.parent / "x"))


def test_staged_block_volume_counts_as_in_use(make_volume: MakeVolume, node: NodeProcess) -> None:
    volume = make_volume(block=True)
    volume.stage()
    with pytest.raises(RpcFailed, match="unstage it first") as error:
        Volume(node, volume.volume, volume.staging.parent, volume.capability).stage()
    assert error.value.code == "ALREADY_EXISTS"


def test_foreign_paths_and_mounts_are_left_alone(make_volume: MakeVolume, node: NodeProcess, tmp_path: Path) -> None:
    known = make_volume().id
    file, directory, mounted = tmp_path / "file", tmp_path / "directory", tmp_path / "mounted"
    file.touch()
    for path in (directory, mounted):
        path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(mounted)], check=True)
    try:
        for volume in ("x", known):
            for path in (file, directory):
                node.client.NodeUnpublishVolume(volume_id=volume, target_path=str(path))
                node.client.NodeUnstageVolume(volume_id=volume, staging_target_path=str(path))
                assert path.exists()
            with pytest.raises(RpcFailed, match="it is left alone"):
                node.client.NodeUnpublishVolume(volume_id=volume, target_path=str(mounted))
            with pytest.raises(RpcFailed, match="it is left alone"):
                node.client.NodeUnstageVolume(volume_id=volume, staging_target_path=str(mounted))
            assert mounts.at(str(mounted)) is not None
    finally:
        subprocess.run(["umount", str(mounted)], check=True)
    for path in ("here", f"{tmp_path}/../file"):
        with pytest.raises(RpcFailed, match=r"INVALID_ARGUMENT: target_path must be an absolute path without '\.\.'"):
            node.client.NodeUnpublishVolume(volume_id=known, target_path=path)
        with pytest.raises(RpcFailed, match="INVALID_ARGUMENT: staging_target_path must be"):
            node.client.NodeUnstageVolume(volume_id=known, staging_target_path=path)


@pytest.mark.parametrize("block", [False, True])
def test_data_under_a_target_path_is_left_alone(make_volume: MakeVolume, block: bool) -> None:
    """Nothing is mounted there, and the content is not of the driver."""
    volume = make_volume(block=block).stage_and_publish()
    mounts.unmount(str(volume.target))
    file = volume.target if block else volume.target / "file"
    file.write_text("precious")
    with pytest.raises(RpcFailed, match=r"left alone|not empty"):
        volume.unpublish()
    assert file.read_text() == "precious"
    file.unlink()
    volume.unpublish()


def test_wrong_keys_are_rejected_before_staging(make_volume: MakeVolume, node: NodeProcess) -> None:
    volume = make_volume()
    for secrets, message in (
        ({"userID": "admin", "userKey": "AQDAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAA=="}, "refuses this user or key"),
        ({"userID": "admin", "userKey": "no-key"}, "is not a Ceph key"),
    ):
        with pytest.raises(RpcFailed, match=message) as error:
            node.client.NodeStageVolume(
                volume_id=volume.id,
                staging_target_path=str(volume.staging),
                volume_capability=volume.capability,
                volume_context=volume.volume.volume_context,
                secrets=secrets,
            )
        assert error.value.code == "UNAUTHENTICATED"
        assert secrets["userKey"] not in error.value.message
    assert StageRecords(node.state).get(volume.id) is None


async def test_hanging_file_system_is_reported_and_recovers(make_volume: MakeVolume, node: NodeProcess) -> None:
    """A direct statvfs would hang, too."""
    volume = make_volume(kind="cephfs").stage_and_publish()
    daemon = daemons.pid(StageRecords(node.state).directory(volume.id))
    assert daemon is not None
    os.kill(daemon, signal.SIGSTOP)
    try:
        assert volume.health() == ["NoAnswer"]
        with pytest.raises(RpcFailed, match="UNAVAILABLE"):
            volume.stats()
    finally:
        os.kill(daemon, signal.SIGCONT)
    await eventually(lambda: not volume.health(), "the file system answers")
    assert volume.stats()["BYTES"].total == 64 * MIB


@pytest.mark.parametrize(
    ("kind", "parameters", "message"),
    [
        ("rbd", {"mkfsOptions": "-L 'open"}, "mkfsOptions: No closing quotation"),
        ("rbd", {"mounter": "fuse"}, "'fuse' is unknown, use one of krbd, rbd-nbd, storage-daemon"),
        ("cephfs", {"mounter": "krbd"}, "'krbd' is unknown, use kernel or fuse"),
    ],
)
def test_invalid_node_parameters_are_rejected(
    node: NodeProcess, name: Callable[[str], str], tmp_path: Path, kind: str, parameters: dict[str, str], message: str
) -> None:
    created = node.driver.create(name("v"), parameters={"type": kind, **parameters})
    volume = Volume(node, created, tmp_path, capability())
    with pytest.raises(RpcFailed, match=message) as error:
        volume.stage()
    assert error.value.code == "INVALID_ARGUMENT"
    volume.unstage()
    node.driver.delete(volume.id)
