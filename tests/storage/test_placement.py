"""Where volumes are, when pools, clusters and other people's hands change under them."""

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
from support.ceph.driver import MIB, Driver, Refused
from support.waiting import eventually
from zonewise.ceph.backend.cluster import CephCluster, CephClusters
from zonewise.ceph.config import CsiConfigFile
from zonewise.ceph.controller import journal, journal_pools
from zonewise.ceph.controller.fsck import Fsck, FsckCode, FsckFinding
from zonewise.ceph.controller.journal import Journal, JournalState
from zonewise.ceph.controller.provisioner import Provisioner
from zonewise.ceph.decide import ids
from zonewise.ceph.decide.errors import CsiError
from zonewise.ceph.decide.ids import ObjectType
from zonewise.ceph.decide.model import Discovered
from zonewise.lab.ceph import cluster
from zonewise.lab.ceph.cluster import JOURNAL_POOL

Name = Callable[[str], str]


@pytest.fixture
def pool(ceph_admin: CephCluster, name: Name) -> Iterator[str]:
    """One of the test's own, empty. It may have been renamed when it is removed."""
    handle = ceph_admin.rados
    cluster.mon(handle, "osd pool create", pool=name("pool"), pg_num=1)
    cluster.mon(handle, "osd pool application enable", pool=name("pool"), app="rbd")
    handle.wait_for_latest_osdmap()
    number = handle.pool_lookup(name("pool"))
    yield name("pool")
    handle.wait_for_latest_osdmap()
    handle.delete_pool(handle.pool_reverse_lookup(number))


async def _made(driver: Driver, name: str, **parameters: str) -> Any:
    """Once the driver's connection has heard of a new pool. A new pool's space is not known at first."""

    def attempt() -> Any:
        try:
            return driver.create(name, parameters={"overcommit": "0", **parameters})
        except Refused as refused:
            if "has no pool" not in refused.message:
                raise
            return None

    return await eventually(attempt, "the new pool is known")


def _only(pool: str, **more: str) -> dict[str, str]:
    return {"topologyConstrainedPools": json.dumps([{"poolName": pool, **more}])}


async def test_a_pool_that_was_renamed_is_still_found(
    driver: Driver, ceph_admin: CephCluster, pool: str, name: Name
) -> None:
    volume = await _made(driver, name("v"), **_only(pool))
    snapshot = driver.snapshot(name("s"), volume.volume_id)
    cluster.mon(ceph_admin.rados, "osd pool rename", srcpool=pool, destpool=name("other"))
    ceph_admin.rados.wait_for_latest_osdmap()
    assert driver.expand(volume.volume_id, 128 * MIB) == 128 * MIB
    later = driver.snapshot(name("later"), volume.volume_id)
    driver.delete(volume.volume_id)
    for each in (snapshot, later):
        driver.delete_snapshot(each.snapshot_id)
    io = ceph_admin.ioctx(name("other"))
    assert (rbd.RBD().list(io), list(rbd.RBD().trash_list(io))) == ([], [])


async def test_a_volume_whose_pool_was_removed_can_be_deleted(
    driver: Driver, ceph_admin: CephCluster, name: Name
) -> None:
    cluster.mon(ceph_admin.rados, "osd pool create", pool=name("doomed"), pg_num=1)
    volume = await _made(driver, name("v"), **_only(name("doomed")))
    ceph_admin.rados.wait_for_latest_osdmap()
    ceph_admin.rados.delete_pool(name("doomed"))
    driver.delete(volume.volume_id)
    assert Journal(ceph_admin, JOURNAL_POOL).by_name(ObjectType.VOLUME, name("v")) is None


def test_a_data_pool_that_is_missing(driver: Driver, name: Name) -> None:
    with pytest.raises(Refused, match=r"INVALID_ARGUMENT: parameter dataPool: .* has no pool 'nowhere'"):
        driver.create(name("v"), parameters=_only("rbd-zone-a", dataPool="nowhere"))


def test_an_id_of_another_ceph_is_refused(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    volume = driver.create(name("v"))
    which = ids.parse_volume_id(volume.volume_id)
    assert which is not None
    assert which.fsid == ceph_admin.fsid.replace("-", "")[:8]
    other = volume.volume_id.replace(f".{which.fsid}.", ".00000000.")
    for call in (driver.delete, functools.partial(driver.expand, size=128 * MIB)):
        with pytest.raises(Refused, match=r"FAILED_PRECONDITION: .*fsid begins with 00000000"):
            call(other)
    driver.delete(volume.volume_id)


def test_an_entry_that_another_version_wrote_is_changed_like_our_own(
    driver: Driver, ceph_admin: CephCluster, name: Name
) -> None:
    volume = driver.create(name("v"))
    written = Journal(ceph_admin, JOURNAL_POOL)
    entry = written.by_name(ObjectType.VOLUME, name("v"))
    assert entry is not None
    text = json.dumps({"later": 1, **json.loads(msgspec.json.encode(entry))}, indent=1)
    io = ceph_admin.ioctx(JOURNAL_POOL, journal.NAMESPACE)
    with rados.WriteOpCtx() as operation:
        io.set_omap(operation, (entry.key,), (text.encode(),))
        io.operate_write_op(operation, f"journal.{int(entry.key[2:4], 16) % journal.SHARDS:x}")
    assert driver.expand(volume.volume_id, 128 * MIB) == 128 * MIB
    driver.delete(volume.volume_id)
    assert written.by_name(ObjectType.VOLUME, name("v")) is None


def test_what_a_person_put_into_the_trash_is_left_there(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    source = driver.create(name("source"), preferred=["zone-a"], requisite=["zone-a"])
    copy = driver.create(name("copy"), volume=source.volume_id)
    which = ids.parse_volume_id(source.volume_id)
    assert which is not None
    io = ceph_admin.ioctx(which.pool_id)
    rbd.RBD().trash_move(io, which.image, 0)
    driver.delete(copy.volume_id)  # after which nothing needs it
    (backend,) = csi_driver.backends().values()
    assert which.image not in backend.kept(ceph_admin, "rbd-zone-a")
    (number,) = [each["id"] for each in rbd.RBD().trash_list(io) if each["name"] == which.image]
    rbd.RBD().trash_restore(io, number, which.image)
    driver.delete(source.volume_id)


def test_what_somebody_went_on_with_is_not_cleared_away(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    """A retry may come between the doctor's look and its repair."""
    volume = driver.create(name("v"))
    written = Journal(ceph_admin, JOURNAL_POOL)
    entry = written.by_name(ObjectType.VOLUME, name("v"))
    assert entry is not None
    (backend,) = csi_driver.backends().values()
    seen = msgspec.structs.replace(entry, state=JournalState.RESERVED)
    assert not Provisioner(backend, 0).clear_away(ceph_admin, written, seen)
    doctor = Fsck(ceph_admin, csi_driver.backends(), {JOURNAL_POOL})
    unfinished = FsckFinding(FsckCode.UNFINISHED_CREATE, "", "", entry.kind, seen, JOURNAL_POOL)
    orphan = FsckFinding(FsckCode.ORPHAN, "", "", entry.kind, found=Discovered(entry.place, entry.thing, entry.token))
    for finding in (unfinished, orphan):
        became = doctor.repair(finding)
        assert became.left
        assert not became.done
    assert driver.create(name("v")) == volume
    driver.delete(volume.volume_id)


def test_keys_that_are_wrong_are_not_remembered(csi_config: Path) -> None:
    clusters = CephClusters(CsiConfigFile(csi_config))
    wrong = {"userID": "nobody", "userKey": "AQDAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAA=="}
    for _ in range(2):
        with pytest.raises(CsiError, match="refuses this user or key"):
            clusters.connect("lab", wrong)
    assert not clusters._opening


def test_a_journal_in_a_pool_with_a_word_of_its_own_is_found(ceph_admin: CephCluster, name: Name) -> None:
    """Otherwise all that it has would be orphans."""
    handle = ceph_admin.rados
    cluster.mon(handle, "osd pool create", pool=name("notes"), pg_num=1)
    cluster.mon(handle, "osd pool application enable", pool=name("notes"), app="notes")
    handle.wait_for_latest_osdmap()
    try:
        ceph_admin.ioctx(name("notes"), journal.NAMESPACE).write_full("journal", b"")
        assert name("notes") in journal_pools.find_journal_pools(ceph_admin).found
    finally:
        handle.delete_pool(name("notes"))
