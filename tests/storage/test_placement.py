"""Volumes whose pool, cluster or journal entry is changed by others."""

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rados
import rbd

from support.ceph import driver as csi_driver
from support.ceph.driver import MIB, Driver, RpcFailed
from support.waiting import eventually
from zonewise.ceph.backend.cluster import CephCluster, CephClusters
from zonewise.ceph.config import CsiConfigFile
from zonewise.ceph.controller import journal, journal_pools
from zonewise.ceph.controller.fsck import Fsck, FsckCode, FsckFinding
from zonewise.ceph.controller.journal import Journal
from zonewise.ceph.controller.provisioner import Provisioner
from zonewise.ceph.decide import ids
from zonewise.ceph.decide.errors import CsiError
from zonewise.ceph.decide.ids import ObjectType
from zonewise.ceph.decide.journal_entry import JournalState
from zonewise.ceph.decide.model import Discovered
from zonewise.lab.ceph import cluster
from zonewise.lab.ceph.cluster import JOURNAL_POOL

Name = Callable[[str], str]


@pytest.fixture
def pool(ceph_admin: CephCluster, name: Name) -> Iterator[str]:
    """An empty pool. A test may rename it."""
    handle = ceph_admin.rados
    cluster.mon(handle, "osd pool create", pool=name("pool"), pg_num=1)
    cluster.mon(handle, "osd pool application enable", pool=name("pool"), app="rbd")
    handle.wait_for_latest_osdmap()
    pool_id = handle.pool_lookup(name("pool"))
    yield name("pool")
    handle.wait_for_latest_osdmap()
    handle.delete_pool(handle.pool_reverse_lookup(pool_id))


async def _create_in_new_pool(driver: Driver, name: str, **parameters: str) -> Any:
    """Retries until the driver has the new OSD map. The space of a new pool is unknown at first."""

    def attempt() -> Any:
        try:
            return driver.create(name, parameters={"overcommit": "0", **parameters})
        except RpcFailed as error:
            if "has no pool" not in error.message:
                raise
            return None

    return await eventually(attempt, "the driver knows the new pool")


def _only(pool: str, **more: str) -> dict[str, str]:
    return {"topologyConstrainedPools": json.dumps([{"poolName": pool, **more}])}


async def test_volume_in_a_renamed_pool_is_found(
    driver: Driver, ceph_admin: CephCluster, pool: str, name: Name
) -> None:
    volume = await _create_in_new_pool(driver, name("v"), **_only(pool))
    snapshot = driver.snapshot(name("s"), volume.volume_id)
    cluster.mon(ceph_admin.rados, "osd pool rename", srcpool=pool, destpool=name("other"))
    ceph_admin.rados.wait_for_latest_osdmap()
    assert driver.expand(volume.volume_id, 128 * MIB) == 128 * MIB
    later = driver.snapshot(name("later"), volume.volume_id)
    driver.delete(volume.volume_id)
    for created in (snapshot, later):
        driver.delete_snapshot(created.snapshot_id)
    io = ceph_admin.ioctx(name("other"))
    assert (rbd.RBD().list(io), list(rbd.RBD().trash_list(io))) == ([], [])


async def test_volume_of_a_removed_pool_can_be_deleted(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    cluster.mon(ceph_admin.rados, "osd pool create", pool=name("doomed"), pg_num=1)
    volume = await _create_in_new_pool(driver, name("v"), **_only(name("doomed")))
    ceph_admin.rados.wait_for_latest_osdmap()
    ceph_admin.rados.delete_pool(name("doomed"))
    driver.delete(volume.volume_id)
    assert Journal(ceph_admin, JOURNAL_POOL).by_name(ObjectType.VOLUME, name("v")) is None


def test_missing_data_pool_is_rejected(driver: Driver, name: Name) -> None:
    with pytest.raises(RpcFailed, match=r"INVALID_ARGUMENT: parameter dataPool: .* has no pool 'nowhere'"):
        driver.create(name("v"), parameters=_only("rbd-zone-a", dataPool="nowhere"))


def test_id_of_another_ceph_cluster_is_rejected(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    volume = driver.create(name("v"))
    parsed = ids.parse_volume_id(volume.volume_id)
    assert parsed is not None
    assert parsed.fsid == ceph_admin.fsid.replace("-", "")[:8]
    other = volume.volume_id.replace(f".{parsed.fsid}.", ".00000000.")
    for call in (driver.delete, functools.partial(driver.expand, size=128 * MIB)):
        with pytest.raises(RpcFailed, match=r"FAILED_PRECONDITION: .*with fsid 00000000"):
            call(other)
    driver.delete(volume.volume_id)


def test_entry_of_another_version_can_be_changed(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    volume = driver.create(name("v"))
    volume_journal = Journal(ceph_admin, JOURNAL_POOL)
    entry = volume_journal.by_name(ObjectType.VOLUME, name("v"))
    assert entry is not None
    text = json.dumps({"later": 1, **json.loads(msgspec.json.encode(entry))}, indent=1)
    io = ceph_admin.ioctx(JOURNAL_POOL, journal.NAMESPACE)
    with rados.WriteOpCtx() as operation:
        io.set_omap(operation, (entry.key,), (text.encode(),))
        io.operate_write_op(operation, f"journal.{int(entry.key[2:4], 16) % journal.SHARDS:x}")
    assert driver.expand(volume.volume_id, 128 * MIB) == 128 * MIB
    driver.delete(volume.volume_id)
    assert volume_journal.by_name(ObjectType.VOLUME, name("v")) is None


def test_image_moved_to_the_trash_by_hand_is_kept(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    source = driver.create(name("source"), preferred=["zone-a"], requisite=["zone-a"])
    copy = driver.create(name("copy"), volume=source.volume_id)
    parsed = ids.parse_volume_id(source.volume_id)
    assert parsed is not None
    io = ceph_admin.ioctx(parsed.pool_id)
    rbd.RBD().trash_move(io, parsed.image, 0)
    driver.delete(copy.volume_id)  # the last clone
    (backend,) = csi_driver.backends().values()
    assert parsed.image not in backend.unused_trash(ceph_admin, "rbd-zone-a")
    (image_id,) = [entry["id"] for entry in rbd.RBD().trash_list(io) if entry["name"] == parsed.image]
    rbd.RBD().trash_restore(io, image_id, parsed.image)
    driver.delete(source.volume_id)


def test_entry_continued_by_a_retry_is_not_repaired(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    """A retry may come between the check and the repair."""
    volume = driver.create(name("v"))
    volume_journal = Journal(ceph_admin, JOURNAL_POOL)
    entry = volume_journal.by_name(ObjectType.VOLUME, name("v"))
    assert entry is not None
    (backend,) = csi_driver.backends().values()
    reserved = msgspec.structs.replace(entry, state=JournalState.RESERVED)
    assert not Provisioner(backend, 0).remove_abandoned(ceph_admin, volume_journal, reserved)
    checker = Fsck(ceph_admin, csi_driver.backends(), {JOURNAL_POOL})
    unfinished = FsckFinding(FsckCode.UNFINISHED_CREATE, "", "", entry.kind, reserved, JOURNAL_POOL)
    orphan = FsckFinding(
        FsckCode.ORPHAN, "", "", entry.kind, image=Discovered(entry.location, entry.object_type, entry.token)
    )
    for finding in (unfinished, orphan):
        repair = checker.repair(finding)
        assert repair.left
        assert not repair.done
    assert driver.create(name("v")) == volume
    driver.delete(volume.volume_id)


def test_wrong_keys_are_not_cached(csi_config: Path) -> None:
    clusters = CephClusters(CsiConfigFile(csi_config))
    wrong = {"userID": "nobody", "userKey": "AQDAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAA=="}
    for _ in range(2):
        with pytest.raises(CsiError, match="refuses this user or key"):
            clusters.connect("lab", wrong)
    assert not clusters._opening


def test_journal_in_a_pool_with_another_application_is_found(ceph_admin: CephCluster, name: Name) -> None:
    """Otherwise its volumes would be reported as orphans."""
    handle = ceph_admin.rados
    cluster.mon(handle, "osd pool create", pool=name("notes"), pg_num=1)
    cluster.mon(handle, "osd pool application enable", pool=name("notes"), app="notes")
    handle.wait_for_latest_osdmap()
    try:
        ceph_admin.ioctx(name("notes"), journal.NAMESPACE).write_full("journal", b"")
        assert name("notes") in journal_pools.find_journal_pools(ceph_admin).with_journal
    finally:
        handle.delete_pool(name("notes"))
