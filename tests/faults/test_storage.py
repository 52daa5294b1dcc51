"""The controller killed at its crash points, and two controllers racing: one volume per name, and nothing left over."""

import functools
import os
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import rbd
from click.testing import CliRunner

from support.ceph import driver as csi_driver
from support.ceph.driver import MIB, Driver, Process, RpcFailed
from support.fault_report import Report
from support.waiting import eventually
from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.backend.librbd import reading
from zonewise.ceph.controller.journal import Journal
from zonewise.ceph.crash_points import CrashPoint
from zonewise.ceph.decide import ids
from zonewise.ceph.decide.ids import ObjectType
from zonewise.cli import csi_doctor
from zonewise.lab.ceph.cluster import JOURNAL_POOL, LabCeph

pytestmark = [pytest.mark.xdist_group("storage-faults"), pytest.mark.timeout(1800)]
ZONES = ["zone-a", "zone-b", "zone-c"]
CREATE = [CrashPoint.CREATE_RESERVED, CrashPoint.CREATE_MADE, CrashPoint.CREATE_RECORDED]
COPY = [
    CrashPoint.COPY_SNAPPED,
    CrashPoint.COPY_CLONED,
    CrashPoint.COPY_DETACHED,
    CrashPoint.COPY_GROWN,
    CrashPoint.COPY_CLEARED,
]
DELETE = [CrashPoint.DELETE_MARKED, CrashPoint.DELETE_REMOVED, CrashPoint.DELETE_FORGOTTEN]
PURGE = [CrashPoint.PURGE_CLAIMED, CrashPoint.PURGE_REMOVED]
EXPAND = [CrashPoint.EXPAND_GROWN, CrashPoint.EXPAND_RECORDED]
LONG = os.environ.get("ZONEWISE_FAULTS") == "long"
NAMES = 200 if LONG else 40


@pytest.fixture(scope="module")
def config(breakable_ceph: LabCeph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return csi_driver.config_file(tmp_path_factory.mktemp("csi"), breakable_ceph)


@pytest.fixture(scope="module")
def admin(config: Path) -> Iterator[CephCluster]:
    cluster = csi_driver.own_cluster(config)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def survivor(breakable_ceph: LabCeph, config: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """Another controller, which retries what the killed one began."""
    with csi_driver.serving(tmp_path_factory.mktemp("sockets"), config, breakable_ceph) as running:
        yield running


@pytest.fixture
def killed(
    breakable_ceph: LabCeph, config: Path, tmp_path: Path, report: Report
) -> Callable[[CrashPoint, Callable[[Driver], Any]], None]:
    """Makes a call to a controller that crashes at a step of it."""

    def run(step: CrashPoint, call: Callable[[Driver], Any]) -> None:
        process = Process(tmp_path, config, breakable_ceph, crash=step)
        try:
            with pytest.raises(RpcFailed):
                call(process.driver)
            assert process.died(), process.output()
            row = {"component": "csi controller", "fault": "killed at a step of a call, retried by another"}
            report(**row, rounds=1, requests=1, what="calls")
        finally:
            process.stop()

    return run


async def _retried(call: Callable[[], Any]) -> Any:
    def attempt() -> tuple[Any] | None:
        try:
            return (call(),)
        except RpcFailed as error:
            if error.code not in {
                "UNAVAILABLE",
                "ABORTED",
                "FAILED_PRECONDITION",
            }:  # the watch of a dead client lasts 30 s
                raise
            return None

    return (await eventually(attempt, "a retry succeeds"))[0]


def _id_in_journal(admin: CephCluster, object_type: ObjectType, name: str) -> str:
    journal = Journal(admin, JOURNAL_POOL)
    entry = journal.by_name(object_type, name)
    return journal.id_of(entry) if entry is not None else ""


def _content(admin: CephCluster, volume_id: str) -> bytes:
    parsed = ids.parse_volume_id(volume_id)
    assert parsed is not None
    with reading(admin.ioctx(parsed.pool_id), parsed.image) as image:
        return bytes(image.read(0, 5))


def _write(admin: CephCluster, volume_id: str) -> None:
    parsed = ids.parse_volume_id(volume_id)
    assert parsed is not None
    with rbd.Image(admin.ioctx(admin.pool_name(parsed.pool_id)), parsed.image) as image:
        image.write(b"first", 0)


@pytest.mark.parametrize("step", CREATE)
async def test_killed_while_creating(killed: Any, survivor: Driver, admin: CephCluster, step: CrashPoint) -> None:
    """The retry prefers another zone, as for a rescheduled pod: the volume stays in its pool."""
    name = f"create-{step}"
    killed(step, lambda driver: driver.create(name, preferred=["zone-a"], requisite=ZONES))
    begun = _id_in_journal(admin, ObjectType.VOLUME, name)
    volume = await _retried(lambda: survivor.create(name, preferred=["zone-b"], requisite=ZONES))
    assert volume.volume_id == begun
    assert volume.volume_context["pool"] == "rbd-zone-a"
    assert csi_driver.findings(admin) == []
    await _retried(lambda: survivor.delete(volume.volume_id))
    assert csi_driver.images(survivor.ceph, admin) == {zone: [] for zone in ZONES}


@pytest.mark.parametrize("step", [*COPY, *(CREATE if LONG else [])])
@pytest.mark.parametrize("across", [True, *([False] if LONG else [])])
async def test_killed_while_cloning(
    killed: Any, survivor: Driver, admin: CephCluster, step: CrashPoint, *, across: bool
) -> None:
    """A clone has the content of one moment, however often it is retried."""
    name = f"clone-{step}-{across}"
    source = survivor.create(f"{name}-source", preferred=["zone-a"], requisite=ZONES)
    _write(admin, source.volume_id)
    request: dict[str, Any] = {"volume": source.volume_id, "size": 128 * MIB}
    if across:
        request |= {"preferred": ["zone-b"], "requisite": ZONES, "parameters": {"cloneDomain": "requested"}}
    killed(step, lambda driver: driver.create(name, **request))
    begun = _id_in_journal(admin, ObjectType.VOLUME, name)
    clone = await _retried(lambda: survivor.create(name, **request))
    assert clone.volume_id == begun
    assert clone.capacity_bytes == 128 * MIB
    assert clone.volume_context["pool"] == ("rbd-zone-b" if across else "rbd-zone-a")
    assert _content(admin, clone.volume_id) == b"first"
    assert csi_driver.findings(admin) == []
    for created in (source, clone):
        await _retried(functools.partial(survivor.delete, created.volume_id))
    assert csi_driver.images(survivor.ceph, admin) == {zone: [] for zone in ZONES}


@pytest.mark.parametrize("step", [*COPY, *CREATE] if LONG else [CrashPoint.COPY_CLONED, CrashPoint.CREATE_MADE])
async def test_killed_while_snapshotting(killed: Any, survivor: Driver, admin: CephCluster, step: CrashPoint) -> None:
    name = f"snapshot-{step}"
    source = survivor.create(f"{name}-source", preferred=["zone-c"], requisite=ZONES)
    _write(admin, source.volume_id)
    killed(step, lambda driver: driver.snapshot(name, source.volume_id))
    begun = _id_in_journal(admin, ObjectType.SNAPSHOT, name)
    snapshot = await _retried(lambda: survivor.snapshot(name, source.volume_id))
    assert snapshot.snapshot_id == begun
    assert _content(admin, snapshot.snapshot_id) == b"first"
    assert csi_driver.findings(admin) == []
    await _retried(lambda: survivor.delete(source.volume_id))
    assert _content(admin, snapshot.snapshot_id) == b"first"
    await _retried(lambda: survivor.delete_snapshot(snapshot.snapshot_id))
    assert csi_driver.images(survivor.ceph, admin) == {zone: [] for zone in ZONES}


@pytest.mark.parametrize("step", DELETE)
async def test_killed_while_deleting(killed: Any, survivor: Driver, admin: CephCluster, step: CrashPoint) -> None:
    """A volume with a snapshot, which can't simply be removed."""
    source = survivor.create(f"delete-{step}", preferred=["zone-b"], requisite=ZONES)
    snapshot = survivor.snapshot(f"delete-{step}", source.volume_id)
    killed(step, lambda driver: driver.delete(source.volume_id))
    if step is not CrashPoint.DELETE_FORGOTTEN:
        with pytest.raises(RpcFailed, match=r"ABORTED: .*is being deleted"):
            survivor.create(f"delete-{step}", preferred=["zone-b"], requisite=ZONES)
    await _retried(lambda: survivor.delete(source.volume_id))
    assert not _id_in_journal(admin, ObjectType.VOLUME, f"delete-{step}")
    assert csi_driver.findings(admin) == []
    await _retried(lambda: survivor.delete_snapshot(snapshot.snapshot_id))
    assert csi_driver.images(survivor.ceph, admin) == {zone: [] for zone in ZONES}


@pytest.mark.parametrize("step", PURGE)
async def test_killed_while_purging_the_trash(
    killed: Any, survivor: Driver, admin: CephCluster, step: CrashPoint
) -> None:
    """A volume that was deleted before its snapshot is removed with it."""
    source = survivor.create(f"kept-{step}", preferred=["zone-b"], requisite=ZONES)
    snapshot = survivor.snapshot(f"kept-{step}", source.volume_id)
    survivor.delete(source.volume_id)
    killed(step, lambda driver: driver.delete_snapshot(snapshot.snapshot_id))
    await _retried(lambda: survivor.delete_snapshot(snapshot.snapshot_id))
    assert csi_driver.findings(admin) == []
    assert csi_driver.images(survivor.ceph, admin) == {zone: [] for zone in ZONES}


@pytest.mark.parametrize("step", EXPAND)
async def test_killed_while_expanding(killed: Any, survivor: Driver, admin: CephCluster, step: CrashPoint) -> None:
    volume = survivor.create(f"expand-{step}")
    killed(step, lambda driver: driver.expand(volume.volume_id, 256 * MIB))
    assert await _retried(lambda: survivor.expand(volume.volume_id, 256 * MIB)) == 256 * MIB
    (listed,) = survivor.client.ListVolumes().entries
    assert listed.volume.capacity_bytes == 256 * MIB
    assert csi_driver.findings(admin) == []
    await _retried(lambda: survivor.delete(volume.volume_id))


def test_abandoned_operations_are_found_and_repaired(
    killed: Any, survivor: Driver, config: Path, admin: CephCluster
) -> None:
    volume, source = survivor.create("given-up"), survivor.create("source")
    killed(CrashPoint.CREATE_RESERVED, lambda driver: driver.create("never"))
    killed(CrashPoint.COPY_SNAPPED, lambda driver: driver.create("no-copy", volume=source.volume_id))
    killed(CrashPoint.DELETE_MARKED, lambda driver: driver.delete(volume.volume_id))
    arguments = ["--config", str(config), "--older-than", "0"]
    result = CliRunner().invoke(csi_doctor.doctor, arguments)
    assert result.exit_code == 1
    codes = sorted(line.split()[1] for line in result.output.splitlines()[:-1])
    assert codes == ["UnfinishedCreate", "UnfinishedCreate", "UnfinishedDelete"]
    young = CliRunner().invoke(csi_doctor.doctor, ["--config", str(config)])
    assert young.output.strip() == "nothing is wrong"  # their controllers may still run
    assert CliRunner().invoke(csi_doctor.doctor, [*arguments, "--repair"]).exit_code == 0
    assert csi_driver.findings(admin) == []  # the temporary snapshot of the source is removed, too
    survivor.delete(source.volume_id)
    assert csi_driver.images(survivor.ceph, admin) == {zone: [] for zone in ZONES}


@pytest.mark.parametrize("missing", [["rbd_header"], ["rbd_header", "rbd_id"]], ids=["header", "header and id"])
async def test_half_created_image_is_created_again(
    survivor: Driver, admin: CephCluster, killed: Any, missing: list[str]
) -> None:
    """librbd creates an image in steps: a crash between them leaves a name that can't be opened."""
    name = f"half-{len(missing)}"
    killed(CrashPoint.CREATE_MADE, lambda driver: driver.create(name, preferred=["zone-a"], requisite=ZONES))
    parsed = ids.parse_volume_id(_id_in_journal(admin, ObjectType.VOLUME, name))
    assert parsed is not None
    pool = admin.ioctx("rbd-zone-a")
    with rbd.Image(pool, parsed.image, read_only=True) as image:
        image_id = image.id()
    for prefix in missing:
        pool.remove_object(f"{prefix}.{parsed.image if prefix == 'rbd_id' else image_id}")
    volume = await _retried(lambda: survivor.create(name, preferred=["zone-a"], requisite=ZONES))
    assert volume.volume_id == str(parsed)
    assert volume.capacity_bytes == 64 * MIB
    await _retried(lambda: survivor.delete(volume.volume_id))
    assert csi_driver.images(survivor.ceph, admin) == {zone: [] for zone in ZONES}


async def test_two_controllers_race_for_every_name(
    breakable_ceph: LabCeph, config: Path, tmp_path: Path, admin: CephCluster, report: Report
) -> None:
    """Both get concurrent calls for each name, with random zones; then both delete."""
    controllers = [Process(tmp_path, config, breakable_ceph) for _ in range(2)]
    generator = random.Random(7)
    calls = [(driver.driver, f"race-{number}") for number in range(NAMES) for driver in controllers * 2]
    generator.shuffle(calls)

    def until_done(call: Callable[[], Any]) -> Any:
        while True:
            try:
                return call()
            except RpcFailed as error:
                if error.code != "ABORTED":
                    raise
                time.sleep(0.05)  # as provisioners wait before a retry

    def create(target: tuple[Driver, str]) -> tuple[str, str]:
        driver, name = target
        zone = generator.choice(ZONES)
        volume = until_done(lambda: driver.create(name, preferred=[zone], requisite=ZONES, size=MIB))
        return name, volume.volume_id

    try:
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(create, calls))
            by_name = dict(answers)
            assert len(by_name) == NAMES
            assert all(by_name[name] == volume_id for name, volume_id in answers)
            assert sum(map(len, csi_driver.images(breakable_ceph, admin).values())) == NAMES
            assert csi_driver.findings(admin) == []
            deletions = [(driver.driver, volume_id) for volume_id in by_name.values() for driver in controllers]
            list(pool.map(lambda pair: until_done(lambda: pair[0].delete(pair[1])), deletions))
    finally:
        for controller in controllers:
            controller.stop()
    assert csi_driver.images(breakable_ceph, admin) == {zone: [] for zone in ZONES}
    assert csi_driver.findings(admin) == []
    left = {item.key for zone in ZONES for item in admin.ioctx(f"rbd-{zone}").list_objects()}
    row = {"component": "csi controller", "fault": "two controllers race for every name"}
    report(**row, rounds=1, requests=len(calls) + len(deletions), what="calls")
    assert left <= {"rbd_directory", "rbd_info", "rbd_trash", "rbd_children"}  # objects of the pool itself
