"""Snapshots, clones and restores: their content, their domain, and what is left when the source goes first."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rbd

from support.ceph import driver as csi_driver
from support.ceph.driver import MIB, Driver, Refused
from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.backend.rbd import RbdBackend
from zonewise.ceph.crash_points import CrashPoint
from zonewise.ceph.decide import ids
from zonewise.ceph.decide.errors import CsiError
from zonewise.ceph.decide.model import VolumeLocation
from zonewise.lab.ceph.cluster import JOURNAL_POOL, LabCeph

ZONES = ["zone-a", "zone-b", "zone-c"]
ANYWHERE: dict[str, Any] = {"requisite": ZONES}
Name = Callable[[str], str]
CROSS = {"cloneDomain": "requested"}


def image_of(cluster: CephCluster, something: Any) -> Any:
    which = ids.parse_volume_id(getattr(something, "volume_id", "") or something.snapshot_id)
    assert which is not None
    return rbd.Image(cluster.ioctx(cluster.pool_name(which.pool_id)), which.image)


def write(cluster: CephCluster, volume: Any, what: bytes) -> None:
    with image_of(cluster, volume) as image:
        image.write(what, 0)


def content(cluster: CephCluster, volume: Any, size: int = 5) -> bytes:
    with image_of(cluster, volume) as image:
        return bytes(image.read(0, size))


def depends_on_another(cluster: CephCluster, volume: Any) -> bool:
    with image_of(cluster, volume) as image:
        try:
            image.parent_id()
        except rbd.ImageNotFound:
            return False
        return True


def pool(volume: Any) -> str:
    return str(volume.volume_context["pool"])


def zone(volume: Any) -> str:
    return str(volume.volume_context["domain"])


def test_a_snapshot_keeps_what_was_there_and_its_restores_stay_in_the_domain(
    driver: Driver, ceph_admin: CephCluster, name: Name
) -> None:
    assert ceph_admin.mon("osd dump")["require_min_compat_client"] == "luminous"  # as a new Ceph has it
    volume = driver.create(name("v"), preferred=["zone-b"], **ANYWHERE)
    write(ceph_admin, volume, b"first")
    snapshot = driver.snapshot(name("s"), volume.volume_id)
    write(ceph_admin, volume, b"later")
    assert snapshot.ready_to_use
    assert snapshot.size_bytes == 64 * MIB
    assert snapshot.source_volume_id == volume.volume_id
    restored = driver.create(name("r"), snapshot=snapshot.snapshot_id, preferred=["zone-c", "zone-b"], **ANYWHERE)
    assert (pool(restored), zone(restored)) == ("rbd-zone-b", "zone=zone-b")
    assert restored.volume_context["reason"] == "SourceDomain"
    assert restored.content_source.snapshot.snapshot_id == snapshot.snapshot_id
    assert content(ceph_admin, restored) == b"first"
    assert content(ceph_admin, volume) == b"later"
    for each in (volume, restored):
        driver.delete(each.volume_id)
    driver.delete_snapshot(snapshot.snapshot_id)


def test_a_clone_is_of_the_moment_and_may_be_larger(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    volume = driver.create(name("v"), preferred=["zone-a"], **ANYWHERE)
    write(ceph_admin, volume, b"first")
    clone = driver.create(name("c"), volume=volume.volume_id, size=128 * MIB)
    write(ceph_admin, volume, b"later")
    assert content(ceph_admin, clone) == b"first"
    assert clone.capacity_bytes == 128 * MIB
    assert (pool(clone), zone(clone)) == ("rbd-zone-a", "zone=zone-a")
    with pytest.raises(Refused, match="OUT_OF_RANGE"):
        driver.create(name("small"), volume=volume.volume_id, size=32 * MIB)
    for each in (clone, volume):
        driver.delete(each.volume_id)


@pytest.mark.parametrize("by", ["volume", "snapshot"])
def test_a_copy_in_another_domain_is_made_on_request_and_depends_on_nothing(
    driver: Driver, ceph_admin: CephCluster, name: Name, by: str
) -> None:
    volume = driver.create(name("v"), preferred=["zone-a"], **ANYWHERE)
    write(ceph_admin, volume, b"first")
    snapshot = driver.snapshot(name("s"), volume.volume_id)
    source = {"volume": volume.volume_id} if by == "volume" else {"snapshot": snapshot.snapshot_id}
    only_b: dict[str, Any] = {"preferred": ["zone-b"], "requisite": ["zone-b"]}
    with pytest.raises(Refused, match=r"RESOURCE_EXHAUSTED: the source lies in zone=zone-a.*cloneDomain: requested"):
        driver.create(name("c"), **source, **only_b)
    copy = driver.create(name("c"), **source, **only_b, parameters=CROSS)
    assert (pool(copy), zone(copy)) == ("rbd-zone-b", "zone=zone-b")
    assert not depends_on_another(ceph_admin, copy)
    assert content(ceph_admin, copy) == b"first"
    driver.delete(volume.volume_id)
    driver.delete_snapshot(snapshot.snapshot_id)
    assert content(ceph_admin, copy) == b"first"
    driver.delete(copy.volume_id)


def test_domains_may_share_a_pool_and_differ_in_that_of_the_data(
    driver: Driver, ceph_admin: CephCluster, name: Name
) -> None:
    def data_pool(volume: Any) -> str:
        with image_of(ceph_admin, volume) as image:
            return str(ceph_admin.pool_name(image.data_pool_id()))

    rules = [
        {"poolName": JOURNAL_POOL, "dataPool": driver.ceph.pool(each), "domainSegments": [zone_segment(each)]}
        for each in ZONES
    ]
    wanted = {"topologyConstrainedPools": json.dumps(rules)}
    volume = driver.create(name("v"), preferred=["zone-b"], **ANYWHERE, parameters=wanted)
    write(ceph_admin, volume, b"first")
    near = driver.create(name("n"), volume=volume.volume_id, **ANYWHERE, parameters=wanted)
    far = driver.create(
        name("f"), volume=volume.volume_id, preferred=["zone-c"], **ANYWHERE, parameters={**wanted, **CROSS}
    )
    assert [data_pool(each) for each in (volume, near, far)] == ["rbd-zone-b", "rbd-zone-b", "rbd-zone-c"]
    assert [depends_on_another(ceph_admin, each) for each in (near, far)] == [True, False]
    for each in (volume, near, far):
        driver.delete(each.volume_id)


def zone_segment(value: str) -> dict[str, str]:
    return {"domainLabel": "zone", "value": value}


def test_a_snapshot_in_another_domain_on_request(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    volume = driver.create(name("v"), preferred=["zone-a"], **ANYWHERE)
    write(ceph_admin, volume, b"first")
    wanted = {"preferred": [{"segments": csi_driver.topology("zone-c")}]}
    snapshot = driver.snapshot(name("s"), volume.volume_id, parameters=CROSS, accessibility_requirements=wanted)
    driver.delete(volume.volume_id)
    restored = driver.create(name("r"), snapshot=snapshot.snapshot_id)
    assert (pool(restored), zone(restored)) == ("rbd-zone-c", "zone=zone-c")
    assert content(ceph_admin, restored) == b"first"
    driver.delete(restored.volume_id)
    driver.delete_snapshot(snapshot.snapshot_id)


def test_whatever_goes_first_nothing_is_left_in_the_end(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    """A volume, its snapshot, a restore of that, and a clone of the restore: deleted from the oldest on."""
    volume = driver.create(name("v"), preferred=["zone-c"], **ANYWHERE)
    write(ceph_admin, volume, b"first")
    snapshot = driver.snapshot(name("s"), volume.volume_id)
    restored = driver.create(name("r"), snapshot=snapshot.snapshot_id)
    clone = driver.create(name("c"), volume=restored.volume_id)
    driver.delete(volume.volume_id)
    driver.delete_snapshot(snapshot.snapshot_id)
    driver.delete(restored.volume_id)
    assert content(ceph_admin, clone) == b"first"
    tokens = [ids.parse_volume_id(each).token for each in (volume.volume_id, snapshot.snapshot_id, restored.volume_id)]  # type: ignore[union-attr]
    driver.delete(clone.volume_id)
    there = [image for found in csi_driver.images(driver.ceph, ceph_admin).values() for image in found]
    assert not [image for image in there if any(token in image for token in tokens)]


def test_snapshots_are_found_by_id_and_by_volume(driver: Driver, name: Name) -> None:
    volume, other = (driver.create(name(word), preferred=["zone-a"], **ANYWHERE) for word in "vw")
    made = [driver.snapshot(name(f"s{number}"), volume.volume_id) for number in range(2)]
    stranger = driver.snapshot(name("t"), other.volume_id)
    assert driver.snapshot(name("s0"), volume.volume_id) == made[0]
    with pytest.raises(Refused, match="ALREADY_EXISTS"):
        driver.snapshot(name("s0"), other.volume_id)
    secrets = driver.ceph.secrets
    listed = driver.client.ListSnapshots(source_volume_id=volume.volume_id, secrets=secrets).entries
    assert {each.snapshot.snapshot_id for each in listed} == {each.snapshot_id for each in made}
    (one,) = driver.client.ListSnapshots(snapshot_id=stranger.snapshot_id, secrets=secrets).entries
    assert one.snapshot == stranger
    assert driver.client.GetSnapshot(snapshot_id=stranger.snapshot_id, secrets=secrets).snapshot == stranger
    for each in (*made, stranger):
        driver.delete_snapshot(each.snapshot_id)
    with pytest.raises(Refused, match="NOT_FOUND"):
        driver.client.GetSnapshot(snapshot_id=stranger.snapshot_id, secrets=secrets)
    for each in (volume, other):
        driver.delete(each.volume_id)


def test_a_copy_that_another_controller_finished_is_not_undone(
    driver: Driver,
    csi_config: Path,
    ceph_admin: CephCluster,
    name: Name,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One has made its snapshot of the source when the other comes to the end of it all, and takes that snapshot away."""
    volume = driver.create(name("v"), preferred=["zone-a"], **ANYWHERE)
    write(ceph_admin, volume, b"first")
    made: list[Any] = []

    def meanwhile(step: CrashPoint) -> None:
        if step is CrashPoint.COPY_SNAPPED:
            monkeypatch.undo()
            made.append(driver.create(name("c"), volume=volume.volume_id))

    monkeypatch.setattr("zonewise.ceph.backend.rbd.reach", meanwhile)
    with csi_driver.serving(tmp_path, csi_config, driver.ceph) as late:
        with pytest.raises(Refused, match="ABORTED"):
            late.create(name("c"), volume=volume.volume_id)
        assert content(ceph_admin, made[0]) == b"first"
        assert late.create(name("c"), volume=volume.volume_id).volume_id == made[0].volume_id
    for each in (volume, made[0]):
        driver.delete(each.volume_id)


def test_a_retry_finds_its_copy_though_the_source_has_grown_or_is_gone(driver: Driver, name: Name) -> None:
    volume = driver.create(name("v"), preferred=["zone-a"], **ANYWHERE)
    snapshot = driver.snapshot(name("s"), volume.volume_id)
    asked: list[dict[str, Any]] = [{"volume": volume.volume_id}, {"snapshot": snapshot.snapshot_id}]
    copies = [driver.create(name(f"c{number}"), **each) for number, each in enumerate(asked)]

    def again() -> list[Any]:
        return [driver.create(name(f"c{number}"), **each) for number, each in enumerate(asked)]

    driver.expand(volume.volume_id, 128 * MIB)
    assert again() == copies
    assert driver.snapshot(name("s"), volume.volume_id) == snapshot
    driver.delete(volume.volume_id)
    assert driver.snapshot(name("s"), volume.volume_id) == snapshot
    driver.delete_snapshot(snapshot.snapshot_id)
    assert again() == copies
    with pytest.raises(Refused, match=r"ALREADY_EXISTS: .*comes from"):
        driver.create(name("c0"), snapshot=snapshot.snapshot_id)
    for each in copies:
        driver.delete(each.volume_id)


def test_what_two_copies_came_from_is_removed_by_one_call(
    driver: Driver, ceph_admin: CephCluster, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two removals of one image at once can hang in librbd; here others come while one is at it, in its process and in another."""
    volume = driver.create(name("v"), preferred=["zone-a"], **ANYWHERE)
    snapshots = [driver.snapshot(name(f"s{number}"), volume.volume_id) for number in range(2)]
    driver.delete(volume.volume_id)
    origin, gone, last = (place(each) for each in (volume, *snapshots))
    first, second = RbdBackend(patience_seconds=60), RbdBackend(patience_seconds=60)
    first.remove(ceph_admin, gone, origin)
    refused: list[str] = []

    def meanwhile(step: CrashPoint) -> None:
        assert step is CrashPoint.PURGE_CLAIMED
        monkeypatch.undo()
        for other in (first, second):
            with pytest.raises(CsiError, match=r"under way|is being removed by another") as error:
                other.remove(ceph_admin, gone, origin)
            refused.append(error.value.code)

    monkeypatch.setattr("zonewise.ceph.backend.trash.reach", meanwhile)
    first.remove(ceph_admin, last, origin)
    assert refused == ["ABORTED", "ABORTED"]
    second.remove(ceph_admin, gone, origin)
    for each in snapshots:
        driver.delete_snapshot(each.snapshot_id)
    there = [image for found in csi_driver.images(driver.ceph, ceph_admin).values() for image in found]
    assert not [image for image in there if origin.image in image]


def place(something: Any) -> VolumeLocation:
    which = ids.parse_volume_id(getattr(something, "volume_id", "") or something.snapshot_id)
    assert which is not None
    return VolumeLocation("", which.pool_id, which.image)


def test_images_are_fenced_whatever_the_default_of_the_cluster(
    ceph_cluster: LabCeph, ceph_admin: CephCluster, name: Name, tmp_path: Path
) -> None:
    """Without the exclusive lock Ceph would not shut out a node that was cut off and comes back."""
    options = {**ceph_cluster.csi_config()["clusters"][0]["options"], "rbd_default_features": "1"}
    config = csi_driver.config_file(tmp_path, ceph_cluster, options=options)
    data = {"topologyConstrainedPools": json.dumps([{"poolName": "rbd-zone-a", "dataPool": "rbd-zone-b"}])}
    with csi_driver.serving(tmp_path, config, ceph_cluster) as driver:
        plain = driver.create(name("plain"), preferred=["zone-a"], **ANYWHERE)
        by_librbd = driver.create(name("librbd"), parameters=data)
        with image_of(ceph_admin, plain) as image:
            image.update_features(rbd.RBD_FEATURE_EXCLUSIVE_LOCK, False)  # as drivers before this one may have made it
        copy = driver.create(name("copy"), volume=plain.volume_id)
        for each in (by_librbd, copy):
            with image_of(ceph_admin, each) as image:
                assert image.features() & rbd.RBD_FEATURE_EXCLUSIVE_LOCK
        again = driver.create(name("again"), preferred=["zone-a"], **ANYWHERE)
        with image_of(ceph_admin, again) as image:
            assert image.features() == rbd.RBD_FEATURE_EXCLUSIVE_LOCK | rbd.RBD_FEATURE_LAYERING
        for each in (plain, by_librbd, copy, again):
            driver.delete(each.volume_id)


def test_sources_that_are_not_there(driver: Driver, name: Name) -> None:
    volume = driver.create(name("v"), preferred=["zone-a"], **ANYWHERE)
    driver.delete(volume.volume_id)
    for source in ({"volume": volume.volume_id}, {"volume": "nothing"}, {"snapshot": volume.volume_id}):
        with pytest.raises(Refused, match="NOT_FOUND"):
            driver.create(name("c"), **source)
    with pytest.raises(Refused, match="NOT_FOUND"):
        driver.snapshot(name("s"), volume.volume_id)
