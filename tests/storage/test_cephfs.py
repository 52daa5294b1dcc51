"""CephFS volumes: data pools by domain, snapshots that outlive them, copies into other domains."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from support.ceph import driver as csi_driver
from support.ceph.driver import MIB, PREFIX, RpcFailed
from support.ceph.node import NodeProcess, Volume, capability, objects
from support.waiting import eventually
from zonewise.ceph.backend.cephfs import CephFsBackend
from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.controller import fsck, journal
from zonewise.ceph.decide import access, ids
from zonewise.ceph.decide.ids import VolumeKind
from zonewise.ceph.node import host_command
from zonewise.ceph.node.cephfs_stage import CephFsClient, CephFsStager
from zonewise.ceph.node.stage_records import StageRecord
from zonewise.lab.ceph.cluster import FILESYSTEM, LabCeph

CEPHFS = {"type": "cephfs"}
REQUESTED = {**CEPHFS, "cloneDomain": "requested"}
LONG = os.environ.get("ZONEWISE_FAULTS") == "long"
SIZES = (6 * MIB, 4 * MIB + 1, 4 * MIB - 1, 4 * MIB, 9 * MIB + 123, 65537, 4096, 1)
"""Around the size of an object, which is 4 MiB."""


def write(volume: Volume, content: bytes) -> int:
    """Returns the inode of the written file."""
    volume.stage_and_publish()
    (volume.target / "data").write_bytes(content)
    inode = (volume.target / "data").stat().st_ino
    volume.unpublish_and_unstage()
    return inode


def read(volume: Volume) -> tuple[bytes, int]:
    volume.stage_and_publish()
    file = volume.target / "data"
    content_and_inode = file.read_bytes(), file.stat().st_ino
    volume.unpublish_and_unstage()
    return content_and_inode


def test_snapshot_outlives_its_volume_and_restores_in_any_domain(
    node: NodeProcess, ceph_cluster: LabCeph, ceph_admin: CephCluster, name: Callable[[str], str], tmp_path: Path
) -> None:
    driver, content = node.driver, os.urandom(6 * MIB)
    created = driver.create(name("v"), preferred=["zone-b"], parameters=CEPHFS)
    assert created.volume_context["pool"] == ceph_cluster.data_pool("zone-b")
    assert created.accessible_topology[0].segments == {f"{PREFIX}zone": "zone-b"}
    volume = Volume(node, created, tmp_path, capability())
    write(volume, content)
    snapshot = driver.snapshot(name("s"), volume.id)
    assert snapshot.ready_to_use
    assert driver.snapshot(name("s"), volume.id).snapshot_id == snapshot.snapshot_id
    write(volume, b"changed since")
    driver.delete(volume.id)
    driver.delete(volume.id)
    assert driver.snapshot(name("s"), volume.id).snapshot_id == snapshot.snapshot_id  # a late retry

    pools = {zone: ceph_cluster.data_pool(zone) for zone in ceph_cluster.zones}
    for zone, parameters in (("zone-b", CEPHFS), ("zone-c", REQUESTED)):
        copy = driver.create(
            name(zone), preferred=["zone-c"], snapshot=snapshot.snapshot_id, size=128 * MIB, parameters=parameters
        )
        assert copy.capacity_bytes == 128 * MIB
        data, inode = read(Volume(node, copy, tmp_path, capability()))
        assert data == content
        counts = objects(ceph_admin, pools, f"{inode:x}.")
        assert {other for other, count in counts.items() if count} == {zone}
        driver.delete(copy.volume_id)
    driver.delete_snapshot(snapshot.snapshot_id)
    driver.delete_snapshot(snapshot.snapshot_id)


@pytest.mark.parametrize("state", ["unmounted", "synced"])
@pytest.mark.timeout(3600)
def test_restored_snapshot_equals_what_was_written(
    node: NodeProcess, name: Callable[[str], str], tmp_path: Path, state: str
) -> None:
    """Before the snapshot the file's volume was unmounted, or the file synced. Then its writer changes it at once."""
    for number in range(110 if LONG else 1):
        content = os.urandom(SIZES[number % len(SIZES)])
        created = node.driver.create(name(f"v{number}"), preferred=["zone-b"], parameters=CEPHFS)
        volume = Volume(node, created, tmp_path, capability()).stage_and_publish()
        with (volume.target / "data").open("wb") as file:
            file.write(content)
            if state == "synced":
                file.flush()
                os.fsync(file.fileno())
        if state == "unmounted":
            volume.unpublish_and_unstage()
            volume.stage_and_publish()
        snapshot = node.driver.snapshot(name(f"s{number}"), volume.id)
        (volume.target / "data").write_bytes(b"changed since")
        volume.unpublish_and_unstage()
        for zone, parameters in (("zone-b", CEPHFS), ("zone-c", REQUESTED)):
            copy = node.driver.create(
                name(f"{zone}{number}"), preferred=["zone-c"], snapshot=snapshot.snapshot_id, parameters=parameters
            )
            data, _ = read(Volume(node, copy, tmp_path, capability()))
            assert (len(data), data) == (len(content), content), f"round {number}, {zone}"
            node.driver.delete(copy.volume_id)
        node.driver.delete(volume.id)
        node.driver.delete_snapshot(snapshot.snapshot_id)


def test_volume_unstaged_before_ceph_fuse_has_tested_its_mount_is_flushed(
    node: NodeProcess,
    ceph_admin: CephCluster,
    name: Callable[[str], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a busy machine; here `mount` waits until the volume is unmounted. A ceph-fuse that aborts loses what was written."""
    slow = tmp_path / "bin" / "mount"
    slow.parent.mkdir()
    slow.write_text(
        '#!/bin/sh\nfor point; do :; done\nwhile mountpoint -q "$point"; do sleep 0.05; done\nexec /usr/bin/mount "$@"\n'
    )
    slow.chmod(0o755)
    created = node.driver.create(name("v"), preferred=["zone-a"], parameters=CEPHFS)
    parsed = ids.parse_volume_id(created.volume_id)
    assert parsed is not None
    stage = StageRecord(
        volume=created.volume_id,
        kind=VolumeKind.CEPHFS,
        path=str(tmp_path / "staging"),
        access=access.parse_capability(capability()),
        image=parsed.image,
    )
    directory, content = tmp_path / "state", os.urandom(6 * MIB)
    directory.mkdir()
    monkeypatch.setitem(host_command._ENVIRONMENT, "PATH", f"{slow.parent}:{host_command._ENVIRONMENT['PATH']}")
    stager = CephFsStager(CephFsClient.FUSE)
    stager.stage(ceph_admin, stage, directory, created.volume_context)
    (Path(stage.path) / "data").write_bytes(content)
    stager.unstage(stage, directory)
    assert "Caught signal" not in (directory / "log").read_text()
    assert read(Volume(node, created, tmp_path, capability()))[0] == content
    node.driver.delete(created.volume_id)


def test_clone_of_a_mounted_volume_is_independent(
    node: NodeProcess, ceph_admin: CephCluster, name: Callable[[str], str], tmp_path: Path
) -> None:
    created = node.driver.create(name("v"), preferred=["zone-a"], parameters=CEPHFS)
    volume = Volume(node, created, tmp_path, capability()).stage_and_publish()
    with (volume.target / "data").open("wb") as file:
        file.write(b"one")
        file.flush()
        os.fsync(file.fileno())
        copied = node.driver.create(name("c"), preferred=["zone-a"], volume=volume.id, parameters=CEPHFS)
        file.write(b" and two")
    volume.unpublish_and_unstage()
    copy = Volume(node, copied, tmp_path, capability())
    assert read(copy)[0] == b"one"
    node.driver.delete(volume.id)
    assert read(copy)[0] == b"one"
    node.driver.delete(copy.id)
    group = {"vol_name": FILESYSTEM, "group_name": "csi"}
    remaining = [subvolume["name"] for subvolume in ceph_admin.mgr("fs subvolume ls", **group)]
    assert not {created.volume_context["subvolumeName"], copied.volume_context["subvolumeName"]} & set(remaining)


def test_volume_without_a_domain_is_accessible_everywhere(
    node: NodeProcess, ceph_cluster: LabCeph, name: Callable[[str], str]
) -> None:
    """Immediate binding has no requirement; a domain without a pool is treated the same."""
    pools = {ceph_cluster.data_pool(zone) for zone in ceph_cluster.zones}
    for word, preferred in (("immediate", []), ("unknown", ["zone-new"])):
        created = node.driver.create(name(word), preferred=preferred, parameters=CEPHFS)
        assert created.volume_context["pool"] in pools
        assert not created.accessible_topology
        node.driver.delete(created.volume_id)


def test_journal_is_in_the_metadata_pool_and_fsck_is_clean(
    node: NodeProcess, csi_config: Path, name: Callable[[str], str]
) -> None:
    created = node.driver.create(name("v"), preferred=["zone-c"], parameters=CEPHFS)
    snapshot = node.driver.snapshot(name("s"), created.volume_id)
    cluster = csi_driver.own_cluster(csi_config)
    try:
        pool = "fs-meta"
        assert journal.has_journal(cluster, pool)
        tokens = {finding.token for finding in CephFsBackend().discover(cluster, "fs-zone-c")}
        assert {created.volume_id[-32:], snapshot.snapshot_id[-32:]} <= tokens
        findings = list(fsck.Fsck(cluster, {VolumeKind.CEPHFS: CephFsBackend()}, {pool}).examine(0.0, 1e9))
        assert not [finding for finding in findings if created.volume_id[-32:] in finding.what]
    finally:
        cluster.close()
    node.driver.delete(created.volume_id)
    node.driver.delete_snapshot(snapshot.snapshot_id)


async def test_leftover_snapshot_of_a_deleted_volume_is_removed(
    ceph_admin: CephCluster, name: Callable[[str], str]
) -> None:
    """The temporary snapshot retains the data of the deleted volume; both are in no journal."""
    group = {"vol_name": FILESYSTEM, "group_name": "csi"}
    volume, copy = (f"csi-vol-{ids.token_of(name(word), b'1234')}" for word in ("v", "c"))
    ceph_admin.mgr("fs subvolumegroup create", **group)
    ceph_admin.mgr("fs subvolume create", **group, sub_name=volume, size=MIB, pool_layout="fs-zone-a")
    ceph_admin.mgr("fs subvolume snapshot create", **group, sub_name=volume, snap_name=f"csi-copy-{copy}")
    ceph_admin.mgr("fs subvolume rm", **group, sub_name=volume, retain_snapshots=True)
    examiner = fsck.Fsck(ceph_admin, {VolumeKind.CEPHFS: CephFsBackend()}, {"fs-meta"})
    (finding,) = [entry for entry in examiner.examine(0.0, 1e9) if volume in entry.what]
    assert (finding.code, finding.detail) == (fsck.FsckCode.LEFTOVER_SNAPSHOT, f"csi-copy-{copy}")
    assert examiner.repair(finding).done

    def is_gone() -> bool:
        return volume not in [entry["name"] for entry in ceph_admin.mgr("fs subvolume ls", **group)]

    await eventually(is_gone, "the manager has removed the subvolume")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"fsName": "nofs"}, "no file system 'nofs', only csifs"),
        ({"pool": "rbd-zone-a", "topologyConstrainedPools": "[]"}, "is not a data pool"),
        ({"fsName": "../etc"}, "is not a valid name"),
    ],
)
def test_invalid_cephfs_parameters_are_rejected(
    node: NodeProcess, name: Callable[[str], str], parameters: dict[str, str], message: str
) -> None:
    with pytest.raises(RpcFailed, match=message) as error:
        node.driver.create(name("v"), parameters={**CEPHFS, **parameters})
    assert error.value.code == "INVALID_ARGUMENT"
