"""The driver while parts of Ceph are down, full or forbidden, and its recovery."""

import functools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rbd
from click.testing import CliRunner

from support.ceph import driver as csi_driver
from support.ceph.driver import MIB, Driver, RpcFailed
from support.cli.output import described
from support.waiting import eventually
from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.crash_points import CrashPoint
from zonewise.ceph.decide import ids
from zonewise.cli import csi_doctor, csi_journal
from zonewise.lab.ceph import cluster as ceph
from zonewise.lab.ceph.cluster import JOURNAL_POOL, LabCeph

pytestmark = pytest.mark.xdist_group("storage-outages")  # one Ceph of their own
ZONES = ["zone-a", "zone-b", "zone-c"]
Name = Callable[[str], str]


@pytest.fixture
def config(breakable_ceph: LabCeph, tmp_path: Path) -> Path:
    return csi_driver.config_file(tmp_path, breakable_ceph)


@pytest.fixture
def patient(breakable_ceph: LabCeph, config: Path, tmp_path: Path) -> Iterator[Driver]:
    with csi_driver.serving(tmp_path, config, breakable_ceph) as driver:
        yield driver


@pytest.fixture
def impatient(breakable_ceph: LabCeph, config: Path, tmp_path: Path) -> Iterator[Driver]:
    """A driver with a timeout of three seconds, for calls that Ceph does not answer."""
    with csi_driver.serving(tmp_path, config, breakable_ceph, timeout_seconds=3) as driver:
        yield driver


@pytest.fixture
def admin(config: Path) -> Iterator[CephCluster]:
    cluster = csi_driver.own_cluster(config)
    yield cluster
    cluster.close()


async def _retried(call: Callable[[], Any]) -> Any:
    """As an orchestrator does, until it succeeds."""

    def attempt() -> tuple[Any] | None:
        try:
            return (call(),)
        except RpcFailed as error:
            if error.code not in {"UNAVAILABLE", "ABORTED", "RESOURCE_EXHAUSTED"}:
                raise
            return None

    return (await eventually(attempt, "a retry succeeds"))[0]


async def test_failed_zone_gets_no_volumes_and_recovers(
    breakable_ceph: LabCeph, config: Path, patient: Driver, impatient: Driver, admin: CephCluster, name: Name
) -> None:
    existing = patient.create(name("there"), preferred=["zone-a"], requisite=ZONES)
    copy = patient.create(
        name("copy"),
        volume=existing.volume_id,
        preferred=["zone-b"],
        requisite=ZONES,
        parameters={"cloneDomain": "requested"},
    )
    patient.client.ListVolumes()  # caches that the zone's pool has no journal
    breakable_ceph.zone_down("zone-a")
    await eventually(lambda: not patient.capacity("zone-a").available_capacity, "no capacity in a failed zone")
    assert patient.capacity("zone-b").available_capacity
    with pytest.raises(RpcFailed, match=r"RESOURCE_EXHAUSTED: .*rbd-zone-a is not serving \(0 of its 1 OSDs are up"):
        patient.create(name("new"), preferred=["zone-a"], requisite=ZONES)
    anywhere = [patient.create(name(f"any{number}"), size=MIB) for number in range(4)]
    assert {volume.volume_context["pool"] for volume in anywhere} <= {"rbd-zone-b", "rbd-zone-c"}
    assert (
        patient.create(name("there"), preferred=["zone-b"], requisite=ZONES) == existing
    )  # the journal is replicated to all zones
    moved = patient.create(name("new"), preferred=["zone-c"], requisite=ZONES)  # scheduled elsewhere
    listed = {entry.volume.volume_id for entry in patient.client.ListVolumes().entries}
    assert {existing.volume_id, moved.volume_id} <= listed
    message = "pool rbd-zone-a of cluster lab may have a journal, which can't be read: 0 of its 1 OSDs are up"
    with pytest.raises(RpcFailed, match=f"UNAVAILABLE: .*{message}"):
        impatient.client.ListVolumes()
    with pytest.raises(RpcFailed, match=f"UNAVAILABLE: .*{message}"):
        impatient.client.ListSnapshots()
    printed = CliRunner().invoke(csi_journal.journal, ["--config", str(config)])
    assert printed.exit_code == 1
    assert message in printed.stderr
    assert name("there") in printed.stdout
    assert moved.volume_context["pool"] == "rbd-zone-c"
    parsed = ids.parse_volume_id(copy.volume_id)
    assert parsed is not None
    with rbd.Image(admin.ioctx("rbd-zone-b"), parsed.image) as image:
        assert image.size() == 64 * MIB  # independent of the failed zone
    with pytest.raises(RpcFailed, match="UNAVAILABLE"):
        impatient.delete(existing.volume_id)
    breakable_ceph.zone_up("zone-a")
    breakable_ceph.wait_up()
    await _retried(functools.partial(patient.delete, existing.volume_id))
    for volume in (copy, moved, *anywhere):
        patient.delete(volume.volume_id)
    assert csi_driver.findings(admin) == []


@pytest.mark.parametrize("step", [CrashPoint.CREATE_RESERVED, CrashPoint.CREATE_MADE])
async def test_unfinished_volume_of_a_failed_zone_moves(
    breakable_ceph: LabCeph,
    config: Path,
    tmp_path: Path,
    patient: Driver,
    admin: CephCluster,
    name: Name,
    step: CrashPoint,
) -> None:
    """A pod that is scheduled elsewhere must not wait for the zone. `csi doctor` removes what was created there."""
    dying = csi_driver.Process(tmp_path, config, breakable_ceph, crash=step)
    with pytest.raises(RpcFailed):
        dying.driver.create(name("v"), preferred=["zone-a"], requisite=ZONES)
    assert dying.died()
    dying.stop()
    breakable_ceph.zone_down("zone-a")
    await eventually(lambda: not patient.capacity("zone-a").available_capacity, "the zone is known to be down")
    volume = patient.create(name("v"), preferred=["zone-b"], requisite=ZONES)
    assert volume.volume_context["pool"] == "rbd-zone-b"
    breakable_ceph.zone_up("zone-a")
    breakable_ceph.wait_up()
    assert patient.create(name("v"), preferred=["zone-a"], requisite=ZONES) == volume
    patient.delete(volume.volume_id)
    codes = [finding.split()[0] for finding in csi_driver.findings(admin)]
    assert codes == (["Orphan"] if step is CrashPoint.CREATE_MADE else [])
    await eventually(
        lambda: _repaired(config), "the orphan is removed"
    )  # the watch of a dead process lasts half a minute
    assert csi_driver.findings(admin) == []


def _repaired(config: Path) -> bool:
    return CliRunner().invoke(csi_doctor.doctor, ["--config", str(config), "--repair"]).exit_code == 0


async def test_unfinished_volume_in_a_full_pool_releases_its_name(
    breakable_ceph: LabCeph, config: Path, tmp_path: Path, patient: Driver, admin: CephCluster, name: Name
) -> None:
    """No other pool is allowed, so the pool in the journal is tried."""
    removed, kept, last = (patient.create(name(word), preferred=["zone-c"], requisite=ZONES) for word in "rkl")
    patient.delete(removed.volume_id)  # creates the pool's RBD trash
    dying = csi_driver.Process(tmp_path, config, breakable_ceph, crash=CrashPoint.CREATE_RESERVED)
    with pytest.raises(RpcFailed):
        dying.driver.create(name("v"), preferred=["zone-c"], requisite=ZONES)
    assert dying.died()
    dying.stop()
    admin.mon("osd pool set-quota", pool="rbd-zone-c", field="max_objects", val="1")
    try:
        await eventually(lambda: not patient.capacity("zone-c").available_capacity, "the pool is known to be full")
        with pytest.raises(RpcFailed, match="RESOURCE_EXHAUSTED"):
            patient.create(name("v"), preferred=["zone-c"], requisite=ZONES)
        assert csi_driver.findings(admin) == []
        patient.delete(kept.volume_id)  # deletion must work in a full pool
        admin.ioctx("rbd-zone-c").remove_object("rbd_trash")
        with pytest.raises(
            RpcFailed, match=r"UNAVAILABLE: .*could not be removed"
        ):  # the entry stays, although librbd reports no image
            patient.delete(last.volume_id)
    finally:
        admin.mon("osd pool set-quota", pool="rbd-zone-c", field="max_objects", val="0")
    await _retried(functools.partial(patient.delete, last.volume_id))
    assert csi_driver.findings(admin) == []


@pytest.mark.parametrize("process", ["osd1", "mon"])
async def test_hanging_daemon_is_unavailable_and_a_retry_succeeds(
    breakable_ceph: LabCeph, patient: Driver, impatient: Driver, admin: CephCluster, name: Name, process: str
) -> None:
    """Several names, so that one of them is on a journal object that needs the daemon."""
    requests = {name(str(number)): {"preferred": ["zone-b"], "requisite": ZONES} for number in range(6)}

    def create_all() -> None:
        for volume_name, topology in requests.items():
            impatient.create(volume_name, **topology)

    breakable_ceph.stop_process(process, signal.SIGSTOP)
    try:
        with pytest.raises(RpcFailed, match=r"UNAVAILABLE: .*did not answer in time"):
            create_all()
    finally:
        breakable_ceph.process(process).signal(signal.SIGCONT)
    breakable_ceph.wait_up()
    for volume_name, topology in requests.items():
        volume = await _retried(functools.partial(patient.create, volume_name, **topology))
        await _retried(functools.partial(patient.delete, volume.volume_id))
    assert csi_driver.findings(admin) == []


async def test_full_pool_is_resource_exhausted(
    breakable_ceph: LabCeph, patient: Driver, admin: CephCluster, name: Name
) -> None:
    kept = patient.create(name("kept"), preferred=["zone-c"], requisite=ZONES)
    admin.mon("osd pool set-quota", pool="rbd-zone-c", field="max_objects", val="1")
    try:
        await eventually(lambda: not patient.capacity("zone-c").available_capacity, "the pool is known to be full")
        with pytest.raises(RpcFailed, match=r"RESOURCE_EXHAUSTED: .*rbd-zone-c is full \(its quota is used up\)"):
            patient.create(name("v"), preferred=["zone-c"], requisite=ZONES)
        volume = patient.create(name("v"), preferred=["zone-b"], requisite=ZONES)
    finally:
        admin.mon("osd pool set-quota", pool="rbd-zone-c", field="max_objects", val="0")
    for created in (volume, kept):
        await _retried(functools.partial(patient.delete, created.volume_id))
    assert csi_driver.findings(admin) == []


async def test_recreated_pool_of_the_same_name_is_used(patient: Driver, admin: CephCluster, name: Name) -> None:
    handle = admin.rados
    pools = {
        "topologyConstrainedPools": '[{"poolName": "passing"}]',
        "overcommit": "0",
    }  # its space is unknown at first

    def create(word: str) -> Any:
        try:
            return patient.create(name(word), parameters=pools)
        except RpcFailed:  # until the driver has the new OSD map, and the pool's space is known
            return None

    ceph.mon(handle, "config set", who="mon", name="mon_allow_pool_delete", value="true")
    for word in ("one", "two"):
        ceph.mon(handle, "osd pool create", pool="passing", pg_num=1)
        ceph.mon(handle, "osd pool application enable", pool="passing", app="rbd")
        volume = await eventually(functools.partial(create, word), "a volume in the new pool")
        handle.wait_for_latest_osdmap()
        assert rbd.RBD().list(admin.ioctx("passing")) == [volume.volume_context["image"]]
        patient.delete(volume.volume_id)
        ceph.mon(handle, "osd pool delete", pool="passing", pool2="passing", yes_i_really_really_mean_it=True)


def test_read_only_user_is_denied(breakable_ceph: LabCeph, patient: Driver, admin: CephCluster, name: Name) -> None:
    secrets = _user(breakable_ceph, "reader", mon="allow r", osd="allow r")
    with pytest.raises(RpcFailed, match="PERMISSION_DENIED"):
        patient.create(name("v"), secrets=secrets)
    assert csi_driver.findings(admin) == []


@pytest.mark.parametrize("pools", ["", "allow r pool=rbd-zone-a, "], ids=["nothing", "reading"])
def test_user_without_image_rights_leaves_no_journal_entry(
    breakable_ceph: LabCeph, patient: Driver, admin: CephCluster, name: Name, pools: str
) -> None:
    """The error is final for csi-provisioner: it sends no DeleteVolume when the claim is deleted."""
    user = "journal-only" + "-reader" * bool(pools)
    secrets = _user(breakable_ceph, user, mon="profile rbd", osd=f"{pools}allow rwx pool={JOURNAL_POOL}")
    with pytest.raises(RpcFailed, match="PERMISSION_DENIED"):
        patient.create(name("v"), preferred=["zone-a"], requisite=ZONES, secrets=secrets)
    assert csi_driver.findings(admin) == []


def test_minimal_ceph_capabilities_are_enough(
    breakable_ceph: LabCeph, patient: Driver, admin: CephCluster, name: Name
) -> None:
    pools = ", ".join(f"profile rbd pool={breakable_ceph.pool(zone)}" for zone in breakable_ceph.zones)
    secrets = _user(
        breakable_ceph, "csi", mon="profile rbd", mgr="profile rbd", osd=f"{pools}, allow rwx pool={JOURNAL_POOL}"
    )
    client = patient.client
    volume = patient.create(name("v"), preferred=["zone-a"], requisite=ZONES, secrets=secrets)
    snapshot = client.CreateSnapshot(name=name("s"), source_volume_id=volume.volume_id, secrets=secrets).snapshot
    copy = patient.create(
        name("c"),
        snapshot=snapshot.snapshot_id,
        preferred=["zone-b"],
        requisite=ZONES,
        secrets=secrets,
        parameters={"cloneDomain": "requested"},
    )
    for created in (volume, copy):
        client.DeleteVolume(volume_id=created.volume_id, secrets=secrets)
    client.DeleteSnapshot(snapshot_id=snapshot.snapshot_id, secrets=secrets)
    assert csi_driver.findings(admin) == []


def test_doctor_leaves_images_alone_if_a_journal_is_unreadable(
    breakable_ceph: LabCeph, patient: Driver, admin: CephCluster, name: Name, tmp_path: Path
) -> None:
    volume = patient.create(name("v"), preferred=["zone-a"], requisite=ZONES)
    pools = ", ".join(f"profile rbd pool={breakable_ceph.pool(zone)}" for zone in breakable_ceph.zones)
    secrets = _user(breakable_ceph, "blind", mon="profile rbd", mgr="profile rbd", osd=pools)
    key = tmp_path / "key"
    key.write_text(secrets["userKey"])
    directory = tmp_path / "blind"
    directory.mkdir()
    config = csi_driver.config_file(directory, breakable_ceph, userID="blind", keyFile=str(key))
    result = CliRunner().invoke(csi_doctor.doctor, ["--config", str(config), "--older-than", "0", "--repair"])
    assert result.exit_code == 1
    assert f"is left alone: pool {JOURNAL_POOL} may have one" in result.output
    assert ", 0 repaired" in result.output
    patient.delete(volume.volume_id)
    assert csi_driver.findings(admin) == []


async def test_doctor_checks_other_pools_while_a_zone_is_down(
    breakable_ceph: LabCeph, config: Path, patient: Driver, admin: CephCluster, name: Name
) -> None:
    """Volumes in an unavailable pool are neither reported as lost, nor is anything removed."""
    hidden, lost = (patient.create(name(zone), preferred=[zone], requisite=ZONES) for zone in ("zone-a", "zone-b"))
    parsed = ids.parse_volume_id(lost.volume_id)
    assert parsed is not None
    rbd.RBD().remove(admin.ioctx("rbd-zone-b"), parsed.image)
    orphan = f"csi-vol-{ids.token_of(name('nobody'), b'1234')}"
    rbd.RBD().create(admin.ioctx("rbd-zone-b"), orphan, MIB)
    repair = ["--config", str(config), "--older-than", "0", "--repair"]
    breakable_ceph.zone_down("zone-a")
    try:
        await eventually(lambda: not patient.capacity("zone-a").available_capacity, "the zone is known to be down")
        result = CliRunner().invoke(csi_doctor.doctor, repair)
    finally:
        breakable_ceph.zone_up("zone-a")
        breakable_ceph.wait_up()
    assert result.exit_code == 1, result.output
    assert "pool rbd-zone-a of cluster lab could not be looked at in full: 0 of its 1 OSDs are up" in result.output
    assert f"Lost               rbd-zone-b/{parsed.image}" in result.output
    assert result.output.count("Lost") == 1
    assert f"rbd-zone-b/{orphan} is in no journal that can be read, and is left alone" in result.output
    assert ", 0 repaired" in result.output
    for volume in (hidden, lost):
        await _retried(functools.partial(patient.delete, volume.volume_id))
    await eventually(lambda: CliRunner().invoke(csi_doctor.doctor, repair).exit_code == 0, "the orphan is removed")
    assert orphan not in rbd.RBD().list(admin.ioctx("rbd-zone-b"))


def _user(cluster: LabCeph, name: str, **caps: str) -> dict[str, str]:
    handle = cluster.connect()
    try:
        capabilities = [word for daemon, caps_of_daemon in caps.items() for word in (daemon, caps_of_daemon)]
        user = ceph.mon(handle, "auth get-or-create", entity=f"client.{name}", caps=capabilities)
        return {"userID": name, "userKey": user[0]["key"]}
    finally:
        handle.shutdown()


def test_doctor_finds_and_removes_orphans(breakable_ceph: LabCeph, tmp_path: Path, name: Name) -> None:
    config = csi_driver.config_file(tmp_path, breakable_ceph)
    cluster = csi_driver.own_cluster(config)
    with csi_driver.serving(tmp_path, config, breakable_ceph) as driver:
        volume = driver.create(name("v"), preferred=["zone-a"], requisite=["zone-a"])
        token = ids.token_of("nobody", b"1234")
        rbd.RBD().create(cluster.ioctx("rbd-zone-b"), f"csi-vol-{token}", MIB)
        rbd.RBD().create(cluster.ioctx("rbd-zone-b"), "csi-vol-0c8a5a6e-of-another-driver", MIB)
        arguments = ["--config", str(config), "--older-than", "0"]
        result = CliRunner().invoke(csi_doctor.doctor, arguments)
        assert result.exit_code == 1
        assert f"Orphan             rbd-zone-b/csi-vol-{token}" in result.output
        assert result.output.count("wrong") == 1
        repaired = CliRunner().invoke(csi_doctor.doctor, [*arguments, "--repair"])
        assert repaired.exit_code == 0
        clean = CliRunner().invoke(csi_doctor.doctor, arguments)
        assert (clean.exit_code, clean.output.strip()) == (0, "nothing is wrong")
        assert rbd.RBD().list(cluster.ioctx("rbd-zone-b")) == ["csi-vol-0c8a5a6e-of-another-driver"]
        parsed = ids.parse_volume_id(volume.volume_id)
        assert parsed is not None
        rbd.RBD().remove(cluster.ioctx("rbd-zone-a"), parsed.image)
        lost = CliRunner().invoke(csi_doctor.doctor, [*arguments, "--repair", "-o", "json"])
        assert lost.exit_code == 1
        assert [finding["code"] for finding in described("csi doctor", lost.stdout)] == ["Lost"]
        driver.delete(volume.volume_id)
    cluster.close()
