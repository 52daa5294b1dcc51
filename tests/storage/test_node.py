"""Volumes on a node: what a pod writes is read back, lies in the pool of its domain, and outlives the node plugin."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.ceph.driver import GIB, MIB, Refused
from support.ceph.node import NodeProcess, Volume, capability, command_lines, objects, running
from support.waiting import eventually
from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.node import daemons, mounts
from zonewise.ceph.node.stage_records import StageRecords
from zonewise.lab.ceph.cluster import LabCeph

pytestmark = pytest.mark.xdist_group("csi-node")  # one driver for them all
CEPHFS = {"type": "cephfs"}
Make = Callable[..., Volume]


@pytest.fixture(scope="module")
def node(ceph_cluster: LabCeph, csi_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running(NodeProcess(tmp_path_factory.mktemp("node"), csi_config, ceph_cluster)) as process:
        yield process


@pytest.fixture(scope="module")
def other_node(
    ceph_cluster: LabCeph, csi_config: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NodeProcess]:
    with running(NodeProcess(tmp_path_factory.mktemp("node"), csi_config, ceph_cluster, "node-2")) as process:
        yield process


@pytest.fixture
def make(node: NodeProcess, name: Callable[[str], str], tmp_path: Path) -> Iterator[Make]:
    """Volumes that are gone when the test ends, however it ends."""
    made: list[Volume] = []

    def volume(
        *, kind: str = "rbd", filesystem: str = "", block: bool = False, mode: str = "SINGLE_NODE_WRITER", size: int = 0
    ) -> Volume:
        how = capability(block=block, filesystem=filesystem, mode=mode)
        size = size or (320 * MIB if filesystem == "xfs" else 64 * MIB)
        created = node.driver.create(
            name(f"{len(made)}"),
            preferred=["zone-b"],
            requisite=["zone-a", "zone-b"],
            size=size,
            capability=how,
            parameters={"type": kind},
        )
        made.append(Volume(node, created, tmp_path, how))
        return made[-1]

    yield volume
    for each in made:
        each.take()
        node.driver.delete(each.id)


@pytest.mark.parametrize(("kind", "filesystem"), [("rbd", "ext4"), ("rbd", "xfs"), ("cephfs", "")])
def test_what_a_pod_writes_is_read_back_and_lies_in_the_pool_of_its_domain(
    make: Make, ceph_cluster: LabCeph, ceph_admin: CephCluster, kind: str, filesystem: str
) -> None:
    volume = make(kind=kind, filesystem=filesystem).bring()
    content = os.urandom(8 * MIB)
    (volume.target / "data").write_bytes(content)
    number = (volume.target / "data").stat().st_ino
    assert not volume.health()
    volume.take()

    pools = {
        zone: ceph_cluster.pool(zone) if kind == "rbd" else ceph_cluster.data_pool(zone) for zone in ceph_cluster.zones
    }
    counts = objects(ceph_admin, pools, _prefix(ceph_admin, volume) if kind == "rbd" else f"{number:x}.")
    assert counts["zone-b"] >= 2
    assert (counts["zone-a"], counts["zone-c"]) == (0, 0)

    volume.bring()
    assert (volume.target / "data").read_bytes() == content


def _prefix(cluster: CephCluster, volume: Volume) -> str:
    import rbd  # noqa: PLC0415 - a binding of the system's

    context = volume.volume.volume_context
    with rbd.Image(cluster.ioctx(context["pool"]), context["image"], read_only=True) as image:
        return str(image.stat()["block_name_prefix"])


def test_a_block_volume_is_read_back_and_kept_from_writers_where_it_is_read_only(make: Make) -> None:
    volume = make(block=True).bring()
    content = os.urandom(MIB)
    with volume.target.open("r+b", buffering=0) as device:
        device.write(content)
        os.fsync(device.fileno())
    assert volume.stats()["BYTES"].total == 64 * MIB
    volume.take()
    volume.stage()
    volume.publish(readonly=True)
    with volume.target.open("rb", buffering=0) as device:
        assert device.read(MIB) == content
    with pytest.raises(PermissionError), volume.target.open("r+b", buffering=0) as device:
        device.write(content)


def test_a_mounted_volume_grows(make: Make) -> None:
    volume = make(filesystem="xfs").bring()
    (volume.target / "data").write_bytes(b"before")
    before = volume.stats()["BYTES"].total
    assert volume.expand(GIB) == GIB
    assert volume.stats()["BYTES"].total > before + 512 * MIB
    assert (volume.target / "data").read_bytes() == b"before"


def test_a_volume_that_grew_while_nobody_had_it_is_grown_when_it_is_staged(make: Make, node: NodeProcess) -> None:
    volume = make(filesystem="ext4").bring()
    (volume.target / "data").write_bytes(b"before")
    before = volume.stats()["BYTES"].total
    volume.take()
    node.driver.expand(volume.id, 256 * MIB)
    volume.bring()
    assert volume.stats()["BYTES"].total > before + 128 * MIB
    assert (volume.target / "data").read_bytes() == b"before"


def test_a_file_system_in_ceph_has_the_size_of_its_quota(make: Make) -> None:
    volume = make(kind="cephfs").bring()
    assert volume.stats()["BYTES"].total == 64 * MIB
    volume.expand(128 * MIB)
    volume.take()  # a mounted client hears of a new quota in its own time
    volume.bring()
    assert volume.stats()["BYTES"].total == 128 * MIB


def test_volumes_outlive_the_plugin_and_its_successor_takes_them_away(make: Make, node: NodeProcess) -> None:
    volumes = [make(filesystem="ext4").bring(), make(kind="cephfs").bring()]
    raw = make(block=True).bring()
    node.kill()
    for volume in volumes:
        (volume.target / "data").write_bytes(b"nobody is there")
        assert (volume.target / "data").read_bytes() == b"nobody is there"
    with raw.target.open("r+b", buffering=0) as device:
        device.write(b"x" * 4096)
        os.fsync(device.fileno())
    node.again()
    for volume in [*volumes, raw]:
        volume.bring()  # kubelet asks again after a restart: nothing changes
        assert not volume.health()
        assert volume.stats()["BYTES"].total > 0
        volume.take()
    for volume in volumes:
        volume.bring()
        assert (volume.target / "data").read_bytes() == b"nobody is there"


def test_a_copy_of_the_mount_elsewhere_does_not_keep_what_was_written(make: Make) -> None:
    """A container that began meanwhile may have one: the client goes on for it, and is asked to write back and end."""
    volume = make(kind="cephfs").bring()
    content = os.urandom(6 * MIB)
    (volume.target / "data").write_bytes(content)
    elsewhere = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", "echo; cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with elsewhere:
        assert elsewhere.stdout is not None
        elsewhere.stdout.readline()
        volume.take()
    volume.bring()
    assert (volume.target / "data").read_bytes() == content


def test_a_volume_for_one_node_is_refused_on_a_second(make: Make, other_node: NodeProcess, tmp_path: Path) -> None:
    volume = make().bring()
    (volume.target / "data").write_bytes(b"first")
    second = Volume(other_node, volume.volume, tmp_path, volume.how)
    with pytest.raises(Refused, match="open elsewhere") as refused:
        second.stage()
    assert refused.value.code == "FAILED_PRECONDITION"
    volume.take()
    second.bring()
    assert (second.target / "data").read_bytes() == b"first"
    second.take()


async def test_of_two_nodes_that_stage_it_at_the_same_moment_one_has_it(
    make: Make, other_node: NodeProcess, tmp_path: Path
) -> None:
    """Both see that nobody has it open before either opens it: nothing but the driver keeps two nodes apart."""
    volume = make()
    both = [volume, Volume(other_node, volume.volume, tmp_path, volume.how)]

    def staged(each: Volume) -> bool:
        try:
            each.stage()
        except Refused as refused:
            if refused.code != "FAILED_PRECONDITION":
                raise
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        have = [each for each, has in zip(both, pool.map(staged, both), strict=True) if has]
    assert len(have) < 2
    winner = have[0] if have else await eventually(lambda: volume if staged(volume) else None, "it can be staged")
    winner.publish()
    (winner.target / "data").write_bytes(b"one writer")
    for each in both:
        each.take()
    volume.bring()
    assert (volume.target / "data").read_bytes() == b"one writer"


def test_a_file_system_in_ceph_is_shared_by_nodes(make: Make, other_node: NodeProcess, tmp_path: Path) -> None:
    volume = make(kind="cephfs", mode="MULTI_NODE_MULTI_WRITER").bring()
    reader = Volume(other_node, volume.volume, tmp_path, capability(mode="MULTI_NODE_READER_ONLY")).bring()
    (volume.target / "data").write_bytes(b"shared")
    assert (reader.target / "data").read_bytes() == b"shared"
    with pytest.raises(OSError, match="Read-only"):
        (reader.target / "more").write_bytes(b"")
    reader.take()


def test_a_volume_is_read_on_many_nodes_once_it_is_written(make: Make, other_node: NodeProcess, tmp_path: Path) -> None:
    volume = make(filesystem="xfs").bring()
    (volume.target / "data").write_bytes(b"once")
    volume.take()
    many = capability(filesystem="xfs", mode="MULTI_NODE_READER_ONLY")
    readers = [Volume(each, volume.volume, tmp_path, many).bring() for each in (volume.process, other_node)]
    for reader in readers:
        assert (reader.target / "data").read_bytes() == b"once"
        with pytest.raises(OSError, match="Read-only"):
            (reader.target / "more").write_bytes(b"")
    for reader in readers:
        reader.take()


def test_publishing_again_and_elsewhere(make: Make, tmp_path: Path) -> None:
    volume = make(mode="SINGLE_NODE_SINGLE_WRITER").bring()
    volume.publish()
    with pytest.raises(Refused, match="one path only"):
        volume.publish(tmp_path / "second")
    with pytest.raises(Refused, match="still published"):
        volume.unstage()
    with pytest.raises(Refused, match="read-only flag"):
        volume.publish(readonly=True)
    volume.unpublish()
    volume.publish(tmp_path / "second", readonly=True)
    with pytest.raises(OSError, match="Read-only"):
        (tmp_path / "second" / "data").write_bytes(b"")
    volume.unpublish(tmp_path / "second")
    assert not (tmp_path / "second").exists()
    volume.unpublish(tmp_path / "second")


def test_keys_are_nowhere_to_be_read(make: Make, node: NodeProcess) -> None:
    make().bring()
    make(kind="cephfs").bring()
    key = node.secrets["userKey"]
    assert key not in command_lines()
    assert key not in node.log.read_text()
    files = [file for file in node.state.glob("*/*") if file.is_file() and file.name != "image"]
    assert files
    assert not [file for file in files if key.encode() in file.read_bytes()]
    assert node.state.stat().st_mode & 0o077 == 0


def test_what_can_not_be_staged_is_refused_with_its_reason(make: Make, node: NodeProcess) -> None:
    volume = make(filesystem="ext4")
    for how, code, words in (
        (capability(filesystem="btrfs"), "INVALID_ARGUMENT", "none of ext4, xfs"),
        (capability(mode="MULTI_NODE_MULTI_WRITER"), "INVALID_ARGUMENT", "use CephFS"),
        (capability(mode="MULTI_NODE_READER_ONLY"), "FAILED_PRECONDITION", "blank"),
    ):
        asked = Volume(node, volume.volume, volume.staging.parent, how)
        with pytest.raises(Refused, match=words) as refused:
            asked.stage()
        assert refused.value.code == code
    volume.bring()  # although nobody unstaged what came to nothing
    with pytest.raises(Refused, match="unstage it first"):
        Volume(node, volume.volume, volume.staging.parent, volume.how).stage()
    gone = volume.id[:-4] + "ffff"
    with pytest.raises(Refused, match="has no image") as refused:
        node.client.NodeStageVolume(
            volume_id=gone,
            staging_target_path=str(volume.staging.parent / "x"),
            volume_capability=volume.how,
            secrets=node.secrets,
        )
    assert refused.value.code == "NOT_FOUND"
    node.client.NodeUnstageVolume(volume_id=gone, staging_target_path=str(volume.staging.parent / "x"))


def test_a_device_that_is_staged_and_not_published_is_in_use(make: Make, node: NodeProcess) -> None:
    volume = make(block=True)
    volume.stage()
    with pytest.raises(Refused, match="unstage it first") as refused:
        Volume(node, volume.volume, volume.staging.parent, volume.how).stage()
    assert refused.value.code == "ALREADY_EXISTS"


def test_what_is_not_the_volumes_is_left_where_it_is(make: Make, node: NodeProcess, tmp_path: Path) -> None:
    known = make().id
    file, directory, mounted = tmp_path / "file", tmp_path / "directory", tmp_path / "mounted"
    file.touch()
    for each in (directory, mounted):
        each.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(mounted)], check=True)
    try:
        for volume in ("x", known):
            for path in (file, directory):
                node.client.NodeUnpublishVolume(volume_id=volume, target_path=str(path))
                node.client.NodeUnstageVolume(volume_id=volume, staging_target_path=str(path))
                assert path.exists()
            with pytest.raises(Refused, match="it is left alone"):
                node.client.NodeUnpublishVolume(volume_id=volume, target_path=str(mounted))
            with pytest.raises(Refused, match="it is left alone"):
                node.client.NodeUnstageVolume(volume_id=volume, staging_target_path=str(mounted))
            assert mounts.at(str(mounted)) is not None
    finally:
        subprocess.run(["umount", str(mounted)], check=True)
    for path in ("here", f"{tmp_path}/../file"):
        with pytest.raises(Refused, match=r"INVALID_ARGUMENT: target_path must be an absolute path without '\.\.'"):
            node.client.NodeUnpublishVolume(volume_id=known, target_path=path)
        with pytest.raises(Refused, match="INVALID_ARGUMENT: staging_target_path must be"):
            node.client.NodeUnstageVolume(volume_id=known, staging_target_path=path)


@pytest.mark.parametrize("block", [False, True])
def test_what_somebody_wrote_under_a_target_is_left_there(make: Make, block: bool) -> None:
    """Nothing is mounted there any more, and what is there was not made by us."""
    volume = make(block=block).bring()
    mounts.unmount(str(volume.target))
    written = volume.target if block else volume.target / "file"
    written.write_text("precious")
    with pytest.raises(Refused, match=r"left alone|not empty"):
        volume.unpublish()
    assert written.read_text() == "precious"
    written.unlink()
    volume.unpublish()


@pytest.mark.parametrize(("kind", "block"), [("rbd", False), ("rbd", True), ("cephfs", False)])
def test_a_volume_whose_record_is_lost_is_known_by_its_mount(
    make: Make, node: NodeProcess, kind: str, block: bool
) -> None:
    volume = make(kind=kind, block=block).bring()
    record = StageRecords(node.state).directory(volume.id) / "stage.json"
    aside = record.with_name("aside")
    record.rename(aside)
    volume.unpublish()
    assert not volume.target.exists()
    volume.unstage()
    assert mounts.at(str(volume.staging)) is None
    aside.rename(record)  # its daemon and device are only known from there


def test_a_key_that_is_wrong_is_named_before_anything_is_done(make: Make, node: NodeProcess) -> None:
    volume = make()
    for secrets, words in (
        ({"userID": "admin", "userKey": "AQDAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAA=="}, "refuses this user or key"),
        ({"userID": "admin", "userKey": "no-key"}, "is no key of Ceph's"),
    ):
        with pytest.raises(Refused, match=words) as refused:
            node.client.NodeStageVolume(
                volume_id=volume.id,
                staging_target_path=str(volume.staging),
                volume_capability=volume.how,
                volume_context=volume.volume.volume_context,
                secrets=secrets,
            )
        assert refused.value.code == "UNAUTHENTICATED"
        assert secrets["userKey"] not in refused.value.message
    assert StageRecords(node.state).get(volume.id) is None


async def test_a_file_system_that_hangs_is_told_and_answers_when_it_is_back(make: Make, node: NodeProcess) -> None:
    """Whoever looks at it would hang, too."""
    volume = make(kind="cephfs").bring()
    carrier = daemons.pid(StageRecords(node.state).directory(volume.id))
    assert carrier is not None
    os.kill(carrier, signal.SIGSTOP)
    try:
        assert volume.health() == ["NoAnswer"]
        with pytest.raises(Refused, match="UNAVAILABLE"):
            volume.stats()
    finally:
        os.kill(carrier, signal.SIGCONT)
    await eventually(lambda: not volume.health(), "it answers")
    assert volume.stats()["BYTES"].total == 64 * MIB


def test_the_node_says_how_it_reaches_volumes(node: NodeProcess) -> None:
    from zonewise.ceph.spec import csi_pb2 as csi  # noqa: PLC0415 - only here

    send = node.client.channel.unary_unary(
        "/csi.v1.Node/NodeGetInfo", lambda message: message.SerializeToString(), csi.NodeGetInfoResponse.FromString
    )
    answer, call = send.with_call(csi.NodeGetInfoRequest())
    said = dict(call.initial_metadata())
    assert answer.accessible_topology.segments == {"topology.ceph.zonewise.dev/zone": "zone-a"}
    assert said["zonewise-rbd-mapper"] in {"krbd", "rbd-nbd", "storage-daemon"}
    assert said["zonewise-cephfs-client"] in {"kernel", "fuse"}
    assert f'"mapper": "{said["zonewise-rbd-mapper"]}"' in node.log.read_text()
    assert mounts.at(str(node.state)) is None


@pytest.mark.parametrize(
    ("kind", "parameters", "words"),
    [
        ("rbd", {"mkfsOptions": "-L 'open"}, "mkfsOptions: No closing quotation"),
        ("rbd", {"mounter": "fuse"}, "'fuse' is none of krbd, rbd-nbd, storage-daemon"),
        ("cephfs", {"mounter": "krbd"}, "'krbd' is none of kernel, fuse"),
    ],
)
def test_what_a_class_tells_the_node_wrong_is_named(
    node: NodeProcess, name: Callable[[str], str], tmp_path: Path, kind: str, parameters: dict[str, str], words: str
) -> None:
    created = node.driver.create(name("v"), parameters={"type": kind, **parameters})
    volume = Volume(node, created, tmp_path, capability())
    with pytest.raises(Refused, match=words) as refused:
        volume.stage()
    assert refused.value.code == "INVALID_ARGUMENT"
    volume.unstage()
    node.driver.delete(volume.id)
