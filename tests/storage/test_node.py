"""Volumes on a node: data is read back, is in the pool of its domain, and outlives the node plugin."""

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.ceph.driver import GIB, MIB, RpcFailed
from support.ceph.node import MakeVolume, NodeProcess, Volume, capability, command_lines, objects, running
from support.waiting import eventually
from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.node import mounts
from zonewise.ceph.node.stage_records import StageRecords
from zonewise.lab.ceph.cluster import LabCeph

pytestmark = pytest.mark.xdist_group("csi-node")  # one driver for them all
CEPHFS = {"type": "cephfs"}


@pytest.fixture(scope="module")
def other_node(
    ceph_cluster: LabCeph, csi_config: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NodeProcess]:
    with running(NodeProcess(tmp_path_factory.mktemp("node"), csi_config, ceph_cluster, "node-2")) as process:
        yield process


@pytest.mark.parametrize(("kind", "filesystem"), [("rbd", "ext4"), ("rbd", "xfs"), ("cephfs", "")])
def test_written_data_is_in_the_pool_of_the_domain(
    make_volume: MakeVolume, ceph_cluster: LabCeph, ceph_admin: CephCluster, kind: str, filesystem: str
) -> None:
    volume = make_volume(kind=kind, filesystem=filesystem).stage_and_publish()
    content = os.urandom(8 * MIB)
    (volume.target / "data").write_bytes(content)
    inode = (volume.target / "data").stat().st_ino
    assert not volume.health()
    volume.unpublish_and_unstage()

    pools = {
        zone: ceph_cluster.pool(zone) if kind == "rbd" else ceph_cluster.data_pool(zone) for zone in ceph_cluster.zones
    }
    counts = objects(ceph_admin, pools, _prefix(ceph_admin, volume) if kind == "rbd" else f"{inode:x}.")
    assert counts["zone-b"] >= 2
    assert (counts["zone-a"], counts["zone-c"]) == (0, 0)

    volume.stage_and_publish()
    assert (volume.target / "data").read_bytes() == content


def _prefix(cluster: CephCluster, volume: Volume) -> str:
    import rbd  # noqa: PLC0415 - a system package

    context = volume.volume.volume_context
    with rbd.Image(cluster.ioctx(context["pool"]), context["image"], read_only=True) as image:
        return str(image.stat()["block_name_prefix"])


def test_read_only_block_volume_rejects_writes(make_volume: MakeVolume) -> None:
    volume = make_volume(block=True).stage_and_publish()
    content = os.urandom(MIB)
    with volume.target.open("r+b", buffering=0) as device:
        device.write(content)
        os.fsync(device.fileno())
    assert volume.stats()["BYTES"].total == 64 * MIB
    volume.unpublish_and_unstage()
    volume.stage()
    volume.publish(readonly=True)
    with volume.target.open("rb", buffering=0) as device:
        assert device.read(MIB) == content
    with pytest.raises(PermissionError), volume.target.open("r+b", buffering=0) as device:
        device.write(content)


def test_mounted_volume_expands(make_volume: MakeVolume) -> None:
    volume = make_volume(filesystem="xfs").stage_and_publish()
    (volume.target / "data").write_bytes(b"before")
    before = volume.stats()["BYTES"].total
    assert volume.expand(GIB) == GIB
    assert volume.stats()["BYTES"].total > before + 512 * MIB
    assert (volume.target / "data").read_bytes() == b"before"


def test_volume_expanded_while_unstaged_grows_when_staged(make_volume: MakeVolume, node: NodeProcess) -> None:
    volume = make_volume(filesystem="ext4").stage_and_publish()
    (volume.target / "data").write_bytes(b"before")
    before = volume.stats()["BYTES"].total
    volume.unpublish_and_unstage()
    node.driver.expand(volume.id, 256 * MIB)
    volume.stage_and_publish()
    assert volume.stats()["BYTES"].total > before + 128 * MIB
    assert (volume.target / "data").read_bytes() == b"before"


def test_cephfs_volume_has_the_size_of_its_quota(make_volume: MakeVolume) -> None:
    volume = make_volume(kind="cephfs").stage_and_publish()
    assert volume.stats()["BYTES"].total == 64 * MIB
    volume.expand(128 * MIB)
    volume.unpublish_and_unstage()  # a mounted client notices a new quota late
    volume.stage_and_publish()
    assert volume.stats()["BYTES"].total == 128 * MIB


def test_volumes_outlive_a_killed_plugin(make_volume: MakeVolume, node: NodeProcess) -> None:
    volumes = [make_volume(filesystem="ext4").stage_and_publish(), make_volume(kind="cephfs").stage_and_publish()]
    block_volume = make_volume(block=True).stage_and_publish()
    node.kill()
    for volume in volumes:
        (volume.target / "data").write_bytes(b"without the plugin")
        assert (volume.target / "data").read_bytes() == b"without the plugin"
    with block_volume.target.open("r+b", buffering=0) as device:
        device.write(b"x" * 4096)
        os.fsync(device.fileno())
    node.restart()
    for volume in [*volumes, block_volume]:
        volume.stage_and_publish()  # kubelet repeats its calls after a restart
        assert not volume.health()
        assert volume.stats()["BYTES"].total > 0
        volume.unpublish_and_unstage()
    for volume in volumes:
        volume.stage_and_publish()
        assert (volume.target / "data").read_bytes() == b"without the plugin"


def test_data_is_flushed_despite_a_copied_mount(make_volume: MakeVolume) -> None:
    """A container started meanwhile may have one: the client keeps running for it, and is told to flush and exit."""
    volume = make_volume(kind="cephfs").stage_and_publish()
    content = os.urandom(6 * MIB)
    (volume.target / "data").write_bytes(content)
    elsewhere = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", "echo; cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with elsewhere:
        assert elsewhere.stdout is not None
        elsewhere.stdout.readline()
        volume.unpublish_and_unstage()
    volume.stage_and_publish()
    assert (volume.target / "data").read_bytes() == content


def test_single_node_volume_is_rejected_on_a_second_node(
    make_volume: MakeVolume, other_node: NodeProcess, tmp_path: Path
) -> None:
    volume = make_volume().stage_and_publish()
    (volume.target / "data").write_bytes(b"first")
    second = Volume(other_node, volume.volume, tmp_path, volume.capability)
    with pytest.raises(RpcFailed, match="open on another node") as error:
        second.stage()
    assert error.value.code == "FAILED_PRECONDITION"
    volume.unpublish_and_unstage()
    second.stage_and_publish()
    assert (second.target / "data").read_bytes() == b"first"
    second.unpublish_and_unstage()


async def test_concurrent_stage_succeeds_on_at_most_one_node(
    make_volume: MakeVolume, other_node: NodeProcess, tmp_path: Path
) -> None:
    """Both see that it is not open before either opens it: only the driver keeps two nodes apart."""
    volume = make_volume()
    both = [volume, Volume(other_node, volume.volume, tmp_path, volume.capability)]

    def staged(candidate: Volume) -> bool:
        try:
            candidate.stage()
        except RpcFailed as error:
            if error.code != "FAILED_PRECONDITION":
                raise
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        winners = [candidate for candidate, is_staged in zip(both, pool.map(staged, both), strict=True) if is_staged]
    assert len(winners) < 2
    winner = (
        winners[0] if winners else await eventually(lambda: volume if staged(volume) else None, "one node stages it")
    )
    winner.publish()
    (winner.target / "data").write_bytes(b"one writer")
    for candidate in both:
        candidate.unpublish_and_unstage()
    volume.stage_and_publish()
    assert (volume.target / "data").read_bytes() == b"one writer"


def test_cephfs_volume_is_shared_by_nodes(make_volume: MakeVolume, other_node: NodeProcess, tmp_path: Path) -> None:
    volume = make_volume(kind="cephfs", mode="MULTI_NODE_MULTI_WRITER").stage_and_publish()
    reader = Volume(other_node, volume.volume, tmp_path, capability(mode="MULTI_NODE_READER_ONLY")).stage_and_publish()
    (volume.target / "data").write_bytes(b"shared")
    assert (reader.target / "data").read_bytes() == b"shared"
    with pytest.raises(OSError, match="Read-only"):
        (reader.target / "more").write_bytes(b"")
    reader.unpublish_and_unstage()


def test_read_only_volume_is_staged_on_many_nodes(
    make_volume: MakeVolume, other_node: NodeProcess, tmp_path: Path
) -> None:
    volume = make_volume(filesystem="xfs").stage_and_publish()
    (volume.target / "data").write_bytes(b"once")
    volume.unpublish_and_unstage()
    many = capability(filesystem="xfs", mode="MULTI_NODE_READER_ONLY")
    readers = [
        Volume(process, volume.volume, tmp_path, many).stage_and_publish() for process in (volume.process, other_node)
    ]
    for reader in readers:
        assert (reader.target / "data").read_bytes() == b"once"
        with pytest.raises(OSError, match="Read-only"):
            (reader.target / "more").write_bytes(b"")
    for reader in readers:
        reader.unpublish_and_unstage()


def test_repeated_and_conflicting_publishes(make_volume: MakeVolume, tmp_path: Path) -> None:
    volume = make_volume(mode="SINGLE_NODE_SINGLE_WRITER").stage_and_publish()
    volume.publish()
    with pytest.raises(RpcFailed, match="one path only"):
        volume.publish(tmp_path / "second")
    with pytest.raises(RpcFailed, match="still published"):
        volume.unstage()
    with pytest.raises(RpcFailed, match="read-only flag"):
        volume.publish(readonly=True)
    volume.unpublish()
    volume.publish(tmp_path / "second", readonly=True)
    with pytest.raises(OSError, match="Read-only"):
        (tmp_path / "second" / "data").write_bytes(b"")
    volume.unpublish(tmp_path / "second")
    assert not (tmp_path / "second").exists()
    volume.unpublish(tmp_path / "second")


def test_keys_are_in_no_file_log_or_command_line(make_volume: MakeVolume, node: NodeProcess) -> None:
    make_volume().stage_and_publish()
    make_volume(kind="cephfs").stage_and_publish()
    key = node.secrets["userKey"]
    assert key not in command_lines()
    assert key not in node.log.read_text()
    files = [file for file in node.state.glob("*/*") if file.is_file() and file.name != "image"]
    assert files
    assert not [file for file in files if key.encode() in file.read_bytes()]
    assert node.state.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(("kind", "block"), [("rbd", False), ("rbd", True), ("cephfs", False)])
def test_volume_without_a_record_is_unmounted(
    make_volume: MakeVolume, node: NodeProcess, kind: str, block: bool
) -> None:
    volume = make_volume(kind=kind, block=block).stage_and_publish()
    record = StageRecords(node.state).directory(volume.id) / "stage.json"
    aside = record.with_name("aside")
    record.rename(aside)
    volume.unpublish()
    assert not volume.target.exists()
    volume.unstage()
    assert mounts.at(str(volume.staging)) is None
    aside.rename(record)  # it has the only reference to daemon and device


def test_node_info_has_mapper_and_client(node: NodeProcess) -> None:
    from zonewise.ceph.spec import csi_pb2 as csi  # noqa: PLC0415 - needed here only

    send = node.client.channel.unary_unary(
        "/csi.v1.Node/NodeGetInfo", lambda message: message.SerializeToString(), csi.NodeGetInfoResponse.FromString
    )
    response, call = send.with_call(csi.NodeGetInfoRequest())
    metadata = dict(call.initial_metadata())
    assert response.accessible_topology.segments == {"topology.ceph.zonewise.dev/zone": "zone-a"}
    assert metadata["zonewise-rbd-mapper"] in {"krbd", "rbd-nbd", "storage-daemon"}
    assert metadata["zonewise-cephfs-client"] in {"kernel", "fuse"}
    assert f'"mapper": "{metadata["zonewise-rbd-mapper"]}"' in node.log.read_text()
    assert mounts.at(str(node.state)) is None
