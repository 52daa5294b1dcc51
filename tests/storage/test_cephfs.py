"""CephFS volumes by domain: where their data lies, snapshots that outlive them, copies into other domains."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.ceph import driver as csi_driver
from support.ceph.driver import MIB, PREFIX, Refused
from support.ceph.node import NodeProcess, Volume, capability, objects, running
from support.waiting import eventually
from zonewise.ceph.backend.cephfs import CephFsBackend
from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.controller import fsck, journal
from zonewise.ceph.decide import ids
from zonewise.ceph.decide.ids import VolumeKind
from zonewise.lab.ceph.cluster import FILESYSTEM, LabCeph

CEPHFS = {"type": "cephfs"}
REQUESTED = {**CEPHFS, "cloneDomain": "requested"}


@pytest.fixture(scope="module")
def node(ceph_cluster: LabCeph, csi_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running(NodeProcess(tmp_path_factory.mktemp("node"), csi_config, ceph_cluster)) as process:
        yield process


def written(volume: Volume, content: bytes) -> int:
    """The number of the file that now holds it."""
    volume.bring()
    (volume.target / "data").write_bytes(content)
    number = (volume.target / "data").stat().st_ino
    volume.take()
    return number


def read(volume: Volume) -> tuple[bytes, int]:
    volume.bring()
    file = volume.target / "data"
    found = file.read_bytes(), file.stat().st_ino
    volume.take()
    return found


def test_snapshots_outlive_their_volume_and_are_restored_in_any_domain(
    node: NodeProcess, ceph_cluster: LabCeph, ceph_admin: CephCluster, name: Callable[[str], str], tmp_path: Path
) -> None:
    driver, content = node.driver, os.urandom(6 * MIB)
    created = driver.create(name("v"), preferred=["zone-b"], parameters=CEPHFS)
    assert created.volume_context["pool"] == ceph_cluster.data_pool("zone-b")
    assert created.accessible_topology[0].segments == {f"{PREFIX}zone": "zone-b"}
    volume = Volume(node, created, tmp_path, capability())
    written(volume, content)
    snapshot = driver.snapshot(name("s"), volume.id)
    assert snapshot.ready_to_use
    assert driver.snapshot(name("s"), volume.id).snapshot_id == snapshot.snapshot_id
    written(volume, b"changed since")
    driver.delete(volume.id)
    driver.delete(volume.id)
    assert driver.snapshot(name("s"), volume.id).snapshot_id == snapshot.snapshot_id  # a late retry

    pools = {zone: ceph_cluster.data_pool(zone) for zone in ceph_cluster.zones}
    for zone, parameters in (("zone-b", CEPHFS), ("zone-c", REQUESTED)):
        copy = driver.create(
            name(zone), preferred=["zone-c"], snapshot=snapshot.snapshot_id, size=128 * MIB, parameters=parameters
        )
        assert copy.capacity_bytes == 128 * MIB
        found, number = read(Volume(node, copy, tmp_path, capability()))
        assert found == content
        counts = objects(ceph_admin, pools, f"{number:x}.")
        assert {each for each, count in counts.items() if count} == {zone}
        driver.delete(copy.volume_id)
    driver.delete_snapshot(snapshot.snapshot_id)
    driver.delete_snapshot(snapshot.snapshot_id)


def test_a_copy_of_a_volume_in_use_has_what_was_synced_and_is_its_own(
    node: NodeProcess, ceph_admin: CephCluster, name: Callable[[str], str], tmp_path: Path
) -> None:
    created = node.driver.create(name("v"), preferred=["zone-a"], parameters=CEPHFS)
    volume = Volume(node, created, tmp_path, capability()).bring()
    with (volume.target / "data").open("wb") as file:
        file.write(b"one")
        file.flush()
        os.fsync(file.fileno())
        copied = node.driver.create(name("c"), preferred=["zone-a"], volume=volume.id, parameters=CEPHFS)
        file.write(b" and two")
    volume.take()
    copy = Volume(node, copied, tmp_path, capability())
    assert read(copy)[0] == b"one"
    node.driver.delete(volume.id)
    assert read(copy)[0] == b"one"
    node.driver.delete(copy.id)
    place = {"vol_name": FILESYSTEM, "group_name": "csi"}
    left = [each["name"] for each in ceph_admin.mgr("fs subvolume ls", **place)]
    assert not {created.volume_context["subvolumeName"], copied.volume_context["subvolumeName"]} & set(left)


def test_without_a_domain_any_will_do_and_a_volume_is_reached_from_everywhere(
    node: NodeProcess, ceph_cluster: LabCeph, name: Callable[[str], str]
) -> None:
    """Nothing is required of an Immediate class's volume; a domain that has no pool is treated alike."""
    pools = {ceph_cluster.data_pool(zone) for zone in ceph_cluster.zones}
    for word, preferred in (("immediate", []), ("unknown", ["zone-new"])):
        created = node.driver.create(name(word), preferred=preferred, parameters=CEPHFS)
        assert created.volume_context["pool"] in pools
        assert not created.accessible_topology
        node.driver.delete(created.volume_id)


def test_the_journal_is_with_the_file_system_and_the_doctor_finds_nothing(
    node: NodeProcess, csi_config: Path, name: Callable[[str], str]
) -> None:
    created = node.driver.create(name("v"), preferred=["zone-c"], parameters=CEPHFS)
    snapshot = node.driver.snapshot(name("s"), created.volume_id)
    cluster = csi_driver.own_cluster(csi_config)
    try:
        pool = "fs-meta"
        assert journal.exists(cluster, pool)
        found = {each.token for each in CephFsBackend().found(cluster, "fs-zone-c")}
        assert {created.volume_id[-32:], snapshot.snapshot_id[-32:]} <= found
        seen = list(fsck.Fsck(cluster, {VolumeKind.CEPHFS: CephFsBackend()}, {pool}).examine(0.0, 1e9))
        assert not [each for each in seen if created.volume_id[-32:] in each.what]
    finally:
        cluster.close()
    node.driver.delete(created.volume_id)
    node.driver.delete_snapshot(snapshot.snapshot_id)


async def test_what_is_left_of_a_copy_in_a_volume_that_was_deleted_is_found(
    ceph_admin: CephCluster, name: Callable[[str], str]
) -> None:
    """Its snapshot keeps what the volume had, and nobody has either in a journal."""
    group = {"vol_name": FILESYSTEM, "group_name": "csi"}
    volume, copy = (f"csi-vol-{ids.token_of(name(word), b'1234')}" for word in ("v", "c"))
    ceph_admin.mgr("fs subvolumegroup create", **group)
    ceph_admin.mgr("fs subvolume create", **group, sub_name=volume, size=MIB, pool_layout="fs-zone-a")
    ceph_admin.mgr("fs subvolume snapshot create", **group, sub_name=volume, snap_name=f"csi-copy-{copy}")
    ceph_admin.mgr("fs subvolume rm", **group, sub_name=volume, retain_snapshots=True)
    examiner = fsck.Fsck(ceph_admin, {VolumeKind.CEPHFS: CephFsBackend()}, {"fs-meta"})
    (found,) = [each for each in examiner.examine(0.0, 1e9) if volume in each.what]
    assert (found.code, found.detail) == (fsck.FsckCode.LEFTOVER_SNAPSHOT, f"csi-copy-{copy}")
    assert examiner.repair(found).done

    def is_gone() -> bool:
        return volume not in [each["name"] for each in ceph_admin.mgr("fs subvolume ls", **group)]

    await eventually(is_gone, "the manager has removed the rest")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"fsName": "nofs"}, "no file system 'nofs'; it has csifs"),
        ({"pool": "rbd-zone-a", "topologyConstrainedPools": "[]"}, "no data pool"),
        ({"fsName": "../etc"}, "is no name"),
    ],
)
def test_what_a_class_says_wrong_is_named(
    node: NodeProcess, name: Callable[[str], str], parameters: dict[str, str], words: str
) -> None:
    with pytest.raises(Refused, match=words) as refused:
        node.driver.create(name("v"), parameters={**CEPHFS, **parameters})
    assert refused.value.code == "INVALID_ARGUMENT"
