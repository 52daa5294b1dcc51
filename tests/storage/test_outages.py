"""What the driver answers while parts of Ceph are away, full or forbidden, and that it goes on when they are back."""

import functools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import rbd
from click.testing import CliRunner

from support.ceph import driver as csi_driver
from support.ceph.driver import MIB, Driver, Refused
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
    """A driver that gives Ceph three seconds: for calls that must not be answered."""
    with csi_driver.serving(tmp_path, config, breakable_ceph, timeout_seconds=3) as driver:
        yield driver


@pytest.fixture
def admin(config: Path) -> Iterator[CephCluster]:
    cluster = csi_driver.own_cluster(config)
    yield cluster
    cluster.close()


async def _retried(call: Callable[[], Any]) -> Any:
    """As an orchestrator does it, until it succeeds."""

    def attempt() -> tuple[Any] | None:
        try:
            return (call(),)
        except Refused as refused:
            if refused.code not in {"UNAVAILABLE", "ABORTED", "RESOURCE_EXHAUSTED"}:
                raise
            return None

    return (await eventually(attempt, "a retry succeeds"))[0]


async def test_a_zone_that_is_down_gets_no_volumes_and_its_own_come_back(
    breakable_ceph: LabCeph, config: Path, patient: Driver, impatient: Driver, admin: CephCluster, name: Name
) -> None:
    there = patient.create(name("there"), preferred=["zone-a"], requisite=ZONES)
    copy = patient.create(
        name("copy"),
        volume=there.volume_id,
        preferred=["zone-b"],
        requisite=ZONES,
        parameters={"cloneDomain": "requested"},
    )
    patient.client.ListVolumes()  # it has seen that the zone's pool has no journal
    breakable_ceph.zone_down("zone-a")
    await eventually(lambda: not patient.capacity("zone-a").available_capacity, "no capacity in a dead zone")
    assert patient.capacity("zone-b").available_capacity
    with pytest.raises(Refused, match=r"RESOURCE_EXHAUSTED: .*rbd-zone-a is not serving \(0 of its 1 OSDs are up"):
        patient.create(name("new"), preferred=["zone-a"], requisite=ZONES)
    anywhere = [patient.create(name(f"any{number}"), size=MIB) for number in range(4)]
    assert {volume.volume_context["pool"] for volume in anywhere} <= {"rbd-zone-b", "rbd-zone-c"}
    assert patient.create(name("there"), preferred=["zone-b"], requisite=ZONES) == there  # the journal is in all zones
    moved = patient.create(name("new"), preferred=["zone-c"], requisite=ZONES)  # scheduled elsewhere
    listed = {entry.volume.volume_id for entry in patient.client.ListVolumes().entries}
    assert {there.volume_id, moved.volume_id} <= listed
    may_have = "pool rbd-zone-a of cluster lab may have a journal and can't be asked: 0 of its 1 OSDs are up"
    with pytest.raises(Refused, match=f"UNAVAILABLE: .*{may_have}"):
        impatient.client.ListVolumes()
    with pytest.raises(Refused, match=f"UNAVAILABLE: .*{may_have}"):
        impatient.client.ListSnapshots()
    printed = CliRunner().invoke(csi_journal.journal, ["--config", str(config)])
    assert printed.exit_code == 1
    assert may_have in printed.stderr
    assert name("there") in printed.stdout
    assert moved.volume_context["pool"] == "rbd-zone-c"
    which = ids.parse_volume_id(copy.volume_id)
    assert which is not None
    with rbd.Image(admin.ioctx("rbd-zone-b"), which.image) as image:
        assert image.size() == 64 * MIB  # depends on nothing in the dead zone
    with pytest.raises(Refused, match="UNAVAILABLE"):
        impatient.delete(there.volume_id)
    breakable_ceph.zone_up("zone-a")
    breakable_ceph.wait_up()
    await _retried(functools.partial(patient.delete, there.volume_id))
    for volume in (copy, moved, *anywhere):
        patient.delete(volume.volume_id)
    assert csi_driver.findings(admin) == []


@pytest.mark.parametrize("step", [CrashPoint.CREATE_RESERVED, CrashPoint.CREATE_MADE])
async def test_a_volume_begun_in_a_zone_that_died_is_finished_in_another(
    breakable_ceph: LabCeph,
    config: Path,
    tmp_path: Path,
    patient: Driver,
    admin: CephCluster,
    name: Name,
    step: CrashPoint,
) -> None:
    """A pod that is scheduled elsewhere must not wait for the zone to return. What had been made there is the doctor's."""
    dying = csi_driver.Process(tmp_path, config, breakable_ceph, crash=step)
    with pytest.raises(Refused):
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
    left = [each.split()[0] for each in csi_driver.findings(admin)]
    assert left == (["Orphan"] if step is CrashPoint.CREATE_MADE else [])
    await eventually(lambda: _repaired(config), "nothing is left")  # a dead process's watch lasts half a minute
    assert csi_driver.findings(admin) == []


def _repaired(config: Path) -> bool:
    return CliRunner().invoke(csi_doctor.doctor, ["--config", str(config), "--repair"]).exit_code == 0


async def test_a_volume_begun_in_a_pool_that_is_full_by_now_gives_its_name_up(
    breakable_ceph: LabCeph, config: Path, tmp_path: Path, patient: Driver, admin: CephCluster, name: Name
) -> None:
    """No other pool will do, so it is tried in the one that the journal says."""
    removed, kept, last = (patient.create(name(word), preferred=["zone-c"], requisite=ZONES) for word in "rkl")
    patient.delete(removed.volume_id)  # from then on RBD has its trash there
    dying = csi_driver.Process(tmp_path, config, breakable_ceph, crash=CrashPoint.CREATE_RESERVED)
    with pytest.raises(Refused):
        dying.driver.create(name("v"), preferred=["zone-c"], requisite=ZONES)
    assert dying.died()
    dying.stop()
    admin.mon("osd pool set-quota", pool="rbd-zone-c", field="max_objects", val="1")
    try:
        await eventually(lambda: not patient.capacity("zone-c").available_capacity, "the pool is known to be full")
        with pytest.raises(Refused, match="RESOURCE_EXHAUSTED"):
            patient.create(name("v"), preferred=["zone-c"], requisite=ZONES)
        assert csi_driver.findings(admin) == []
        patient.delete(kept.volume_id)  # how else would it become less full
        admin.ioctx("rbd-zone-c").remove_object("rbd_trash")
        with pytest.raises(
            Refused, match=r"UNAVAILABLE: .*could not be removed"
        ):  # not forgotten, though librbd finds none
            patient.delete(last.volume_id)
    finally:
        admin.mon("osd pool set-quota", pool="rbd-zone-c", field="max_objects", val="0")
    await _retried(functools.partial(patient.delete, last.volume_id))
    assert csi_driver.findings(admin) == []


@pytest.mark.parametrize("process", ["osd1", "mon"])
async def test_a_daemon_that_hangs_is_unavailable_and_a_retry_succeeds(
    breakable_ceph: LabCeph, patient: Driver, impatient: Driver, admin: CephCluster, name: Name, process: str
) -> None:
    """The names are spread over the journal, so that one of them needs the daemon."""
    asked = {name(str(number)): {"preferred": ["zone-b"], "requisite": ZONES} for number in range(6)}

    def create_all() -> None:
        for each, where in asked.items():
            impatient.create(each, **where)

    breakable_ceph.stop_process(process, signal.SIGSTOP)
    try:
        with pytest.raises(Refused, match=r"UNAVAILABLE: .*did not answer in time"):
            create_all()
    finally:
        breakable_ceph.process(process).signal(signal.SIGCONT)
    breakable_ceph.wait_up()
    for each, where in asked.items():
        volume = await _retried(functools.partial(patient.create, each, **where))
        await _retried(functools.partial(patient.delete, volume.volume_id))
    assert csi_driver.findings(admin) == []


async def test_a_full_pool_is_exhausted_and_not_unavailable(
    breakable_ceph: LabCeph, patient: Driver, admin: CephCluster, name: Name
) -> None:
    kept = patient.create(name("kept"), preferred=["zone-c"], requisite=ZONES)
    admin.mon("osd pool set-quota", pool="rbd-zone-c", field="max_objects", val="1")
    try:
        await eventually(lambda: not patient.capacity("zone-c").available_capacity, "the pool is known to be full")
        with pytest.raises(Refused, match=r"RESOURCE_EXHAUSTED: .*rbd-zone-c is full \(its quota is used up\)"):
            patient.create(name("v"), preferred=["zone-c"], requisite=ZONES)
        volume = patient.create(name("v"), preferred=["zone-b"], requisite=ZONES)
    finally:
        admin.mon("osd pool set-quota", pool="rbd-zone-c", field="max_objects", val="0")
    for each in (volume, kept):
        await _retried(functools.partial(patient.delete, each.volume_id))
    assert csi_driver.findings(admin) == []


async def test_a_pool_that_was_made_anew_under_its_name_is_the_new_one(
    patient: Driver, admin: CephCluster, name: Name
) -> None:
    handle = admin.rados
    pools = {
        "topologyConstrainedPools": '[{"poolName": "passing"}]',
        "overcommit": "0",
    }  # its space is not known at first

    def made(word: str) -> Any:
        try:
            return patient.create(name(word), parameters=pools)
        except Refused:  # until the driver's connection has heard of the new pool, and its space is known
            return None

    ceph.mon(handle, "config set", who="mon", name="mon_allow_pool_delete", value="true")
    for word in ("one", "two"):
        ceph.mon(handle, "osd pool create", pool="passing", pg_num=1)
        ceph.mon(handle, "osd pool application enable", pool="passing", app="rbd")
        volume = await eventually(functools.partial(made, word), "a volume in it")
        handle.wait_for_latest_osdmap()
        assert rbd.RBD().list(admin.ioctx("passing")) == [volume.volume_context["image"]]
        patient.delete(volume.volume_id)
        ceph.mon(handle, "osd pool delete", pool="passing", pool2="passing", yes_i_really_really_mean_it=True)


def test_a_user_that_may_only_read(breakable_ceph: LabCeph, patient: Driver, admin: CephCluster, name: Name) -> None:
    secrets = _user(breakable_ceph, "reader", mon="allow r", osd="allow r")
    with pytest.raises(Refused, match="PERMISSION_DENIED"):
        patient.create(name("v"), secrets=secrets)
    assert csi_driver.findings(admin) == []


@pytest.mark.parametrize("pools", ["", "allow r pool=rbd-zone-a, "], ids=["nothing", "reading"])
def test_a_user_that_may_not_make_images_leaves_no_name_behind(
    breakable_ceph: LabCeph, patient: Driver, admin: CephCluster, name: Name, pools: str
) -> None:
    """The answer is final to a provisioner: who deletes the claim then asks for no deletion of the volume."""
    who = "journal-only" + "-reader" * bool(pools)
    secrets = _user(breakable_ceph, who, mon="profile rbd", osd=f"{pools}allow rwx pool={JOURNAL_POOL}")
    with pytest.raises(Refused, match="PERMISSION_DENIED"):
        patient.create(name("v"), preferred=["zone-a"], requisite=ZONES, secrets=secrets)
    assert csi_driver.findings(admin) == []


def test_the_least_that_the_driver_must_be_allowed(
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
    for each in (volume, copy):
        client.DeleteVolume(volume_id=each.volume_id, secrets=secrets)
    client.DeleteSnapshot(snapshot_id=snapshot.snapshot_id, secrets=secrets)
    assert csi_driver.findings(admin) == []


def test_the_doctor_leaves_alone_what_a_journal_that_it_may_not_read_may_have(
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
    seen = CliRunner().invoke(csi_doctor.doctor, ["--config", str(config), "--older-than", "0", "--repair"])
    assert seen.exit_code == 1
    assert f"is left alone: there may be one in {JOURNAL_POOL}" in seen.output
    assert ", 0 repaired" in seen.output
    patient.delete(volume.volume_id)
    assert csi_driver.findings(admin) == []


async def test_the_doctor_looks_at_the_other_pools_while_a_zone_is_away(
    breakable_ceph: LabCeph, config: Path, patient: Driver, admin: CephCluster, name: Name
) -> None:
    """What it can't see is neither lost nor a reason to remove anything."""
    hidden, lost = (patient.create(name(zone), preferred=[zone], requisite=ZONES) for zone in ("zone-a", "zone-b"))
    which = ids.parse_volume_id(lost.volume_id)
    assert which is not None
    rbd.RBD().remove(admin.ioctx("rbd-zone-b"), which.image)
    orphan = f"csi-vol-{ids.token_of(name('nobody'), b'1234')}"
    rbd.RBD().create(admin.ioctx("rbd-zone-b"), orphan, MIB)
    repair = ["--config", str(config), "--older-than", "0", "--repair"]
    breakable_ceph.zone_down("zone-a")
    try:
        await eventually(lambda: not patient.capacity("zone-a").available_capacity, "the zone is known to be down")
        seen = CliRunner().invoke(csi_doctor.doctor, repair)
    finally:
        breakable_ceph.zone_up("zone-a")
        breakable_ceph.wait_up()
    assert seen.exit_code == 1, seen.output
    assert "pool rbd-zone-a of cluster lab could not be looked at in full: 0 of its 1 OSDs are up" in seen.output
    assert f"Lost               rbd-zone-b/{which.image}" in seen.output
    assert seen.output.count("Lost") == 1
    assert f"rbd-zone-b/{orphan} is in no journal that can be read now, and is left alone" in seen.output
    assert ", 0 repaired" in seen.output
    for volume in (hidden, lost):
        await _retried(functools.partial(patient.delete, volume.volume_id))
    await eventually(lambda: CliRunner().invoke(csi_doctor.doctor, repair).exit_code == 0, "the orphan is removed")
    assert orphan not in rbd.RBD().list(admin.ioctx("rbd-zone-b"))


def _user(cluster: LabCeph, name: str, **caps: str) -> dict[str, str]:
    handle = cluster.connect()
    try:
        listed = [word for who, what in caps.items() for word in (who, what)]
        made = ceph.mon(handle, "auth get-or-create", entity=f"client.{name}", caps=listed)
        return {"userID": name, "userKey": made[0]["key"]}
    finally:
        handle.shutdown()


def test_the_doctor_finds_and_removes_what_nobody_has(breakable_ceph: LabCeph, tmp_path: Path, name: Name) -> None:
    config = csi_driver.config_file(tmp_path, breakable_ceph)
    cluster = csi_driver.own_cluster(config)
    with csi_driver.serving(tmp_path, config, breakable_ceph) as driver:
        volume = driver.create(name("v"), preferred=["zone-a"], requisite=["zone-a"])
        token = ids.token_of("nobody", b"1234")
        rbd.RBD().create(cluster.ioctx("rbd-zone-b"), f"csi-vol-{token}", MIB)
        rbd.RBD().create(cluster.ioctx("rbd-zone-b"), "csi-vol-0c8a5a6e-of-another-driver", MIB)
        look = ["--config", str(config), "--older-than", "0"]
        seen = CliRunner().invoke(csi_doctor.doctor, look)
        assert seen.exit_code == 1
        assert f"Orphan             rbd-zone-b/csi-vol-{token}" in seen.output
        assert seen.output.count("wrong") == 1
        repaired = CliRunner().invoke(csi_doctor.doctor, [*look, "--repair"])
        assert repaired.exit_code == 0
        clean = CliRunner().invoke(csi_doctor.doctor, look)
        assert (clean.exit_code, clean.output.strip()) == (0, "nothing is wrong")
        assert rbd.RBD().list(cluster.ioctx("rbd-zone-b")) == ["csi-vol-0c8a5a6e-of-another-driver"]
        which = ids.parse_volume_id(volume.volume_id)
        assert which is not None
        rbd.RBD().remove(cluster.ioctx("rbd-zone-a"), which.image)
        lost = CliRunner().invoke(csi_doctor.doctor, [*look, "--repair", "-o", "json"])
        assert lost.exit_code == 1
        assert [found["code"] for found in described("csi doctor", lost.stdout)] == ["Lost"]
        driver.delete(volume.volume_id)
    cluster.close()
