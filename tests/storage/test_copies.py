"""Snapshots, clones and restores of RBD volumes: content, domain, and deletion in any order."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rbd

from support.ceph import driver as csi_driver
from support.ceph.driver import MIB, Driver, RpcFailed
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


def image_of(cluster: CephCluster, volume: Any) -> Any:
    parsed = ids.parse_volume_id(getattr(volume, "volume_id", "") or volume.snapshot_id)
    assert parsed is not None
    return rbd.Image(cluster.ioctx(cluster.pool_name(parsed.pool_id)), parsed.image)


def write(cluster: CephCluster, volume: Any, data: bytes) -> None:
    with image_of(cluster, volume) as image:
        image.write(data, 0)


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


def test_snapshot_keeps_content_and_restores_in_its_domain(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    assert ceph_admin.mon("osd dump")["require_min_compat_client"] == "luminous"  # the default of a new cluster
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
    for created in (volume, restored):
        driver.delete(created.volume_id)
    driver.delete_snapshot(snapshot.snapshot_id)


def test_clone_keeps_content_and_may_be_larger(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    volume = driver.create(name("v"), preferred=["zone-a"], **ANYWHERE)
    write(ceph_admin, volume, b"first")
    clone = driver.create(name("c"), volume=volume.volume_id, size=128 * MIB)
    write(ceph_admin, volume, b"later")
    assert content(ceph_admin, clone) == b"first"
    assert clone.capacity_bytes == 128 * MIB
    assert (pool(clone), zone(clone)) == ("rbd-zone-a", "zone=zone-a")
    with pytest.raises(RpcFailed, match="OUT_OF_RANGE"):
        driver.create(name("small"), volume=volume.volume_id, size=32 * MIB)
    for created in (clone, volume):
        driver.delete(created.volume_id)


@pytest.mark.parametrize("by", ["volume", "snapshot"])
def test_copy_in_another_domain_is_independent(driver: Driver, ceph_admin: CephCluster, name: Name, by: str) -> None:
    volume = driver.create(name("v"), preferred=["zone-a"], **ANYWHERE)
    write(ceph_admin, volume, b"first")
    snapshot = driver.snapshot(name("s"), volume.volume_id)
    source = {"volume": volume.volume_id} if by == "volume" else {"snapshot": snapshot.snapshot_id}
    only_b: dict[str, Any] = {"preferred": ["zone-b"], "requisite": ["zone-b"]}
    with pytest.raises(RpcFailed, match=r"RESOURCE_EXHAUSTED: the source is in zone=zone-a.*cloneDomain: requested"):
        driver.create(name("c"), **source, **only_b)
    copy = driver.create(name("c"), **source, **only_b, parameters=CROSS)
    assert (pool(copy), zone(copy)) == ("rbd-zone-b", "zone=zone-b")
    assert not depends_on_another(ceph_admin, copy)
    assert content(ceph_admin, copy) == b"first"
    driver.delete(volume.volume_id)
    driver.delete_snapshot(snapshot.snapshot_id)
    assert content(ceph_admin, copy) == b"first"
    driver.delete(copy.volume_id)


def test_domains_with_one_pool_and_separate_data_pools(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    def data_pool(volume: Any) -> str:
        with image_of(ceph_admin, volume) as image:
            return str(ceph_admin.pool_name(image.data_pool_id()))

    rules = [
        {"poolName": JOURNAL_POOL, "dataPool": driver.ceph.pool(zone_name), "domainSegments": [zone_segment(zone_name)]}
        for zone_name in ZONES
    ]
    parameters = {"topologyConstrainedPools": json.dumps(rules)}
    volume = driver.create(name("v"), preferred=["zone-b"], **ANYWHERE, parameters=parameters)
    write(ceph_admin, volume, b"first")
    near = driver.create(name("n"), volume=volume.volume_id, **ANYWHERE, parameters=parameters)
    far = driver.create(
        name("f"), volume=volume.volume_id, preferred=["zone-c"], **ANYWHERE, parameters={**parameters, **CROSS}
    )
    assert [data_pool(item) for item in (volume, near, far)] == ["rbd-zone-b", "rbd-zone-b", "rbd-zone-c"]
    assert [depends_on_another(ceph_admin, item) for item in (near, far)] == [True, False]
    for item in (volume, near, far):
        driver.delete(item.volume_id)


def zone_segment(value: str) -> dict[str, str]:
    return {"domainLabel": "zone", "value": value}


def test_snapshot_in_another_domain(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    volume = driver.create(name("v"), preferred=["zone-a"], **ANYWHERE)
    write(ceph_admin, volume, b"first")
    requirement = {"preferred": [{"segments": csi_driver.topology("zone-c")}]}
    snapshot = driver.snapshot(name("s"), volume.volume_id, parameters=CROSS, accessibility_requirements=requirement)
    driver.delete(volume.volume_id)
    restored = driver.create(name("r"), snapshot=snapshot.snapshot_id)
    assert (pool(restored), zone(restored)) == ("rbd-zone-c", "zone=zone-c")
    assert content(ceph_admin, restored) == b"first"
    driver.delete(restored.volume_id)
    driver.delete_snapshot(snapshot.snapshot_id)


def test_deletion_from_the_oldest_leaves_nothing(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    """A volume, its snapshot, a restore of it, and a clone of the restore: deleted oldest first."""
    volume = driver.create(name("v"), preferred=["zone-c"], **ANYWHERE)
    write(ceph_admin, volume, b"first")
    snapshot = driver.snapshot(name("s"), volume.volume_id)
    restored = driver.create(name("r"), snapshot=snapshot.snapshot_id)
    clone = driver.create(name("c"), volume=restored.volume_id)
    driver.delete(volume.volume_id)
    driver.delete_snapshot(snapshot.snapshot_id)
    driver.delete(restored.volume_id)
    assert content(ceph_admin, clone) == b"first"
    tokens = [ids.parse_volume_id(text).token for text in (volume.volume_id, snapshot.snapshot_id, restored.volume_id)]  # type: ignore[union-attr]
    driver.delete(clone.volume_id)
    remaining = [image for in_zone in csi_driver.images(driver.ceph, ceph_admin).values() for image in in_zone]
    assert not [image for image in remaining if any(token in image for token in tokens)]


def test_snapshots_are_listed_by_id_and_by_volume(driver: Driver, name: Name) -> None:
    volume, other = (driver.create(name(word), preferred=["zone-a"], **ANYWHERE) for word in "vw")
    snapshots = [driver.snapshot(name(f"s{number}"), volume.volume_id) for number in range(2)]
    stranger = driver.snapshot(name("t"), other.volume_id)
    assert driver.snapshot(name("s0"), volume.volume_id) == snapshots[0]
    with pytest.raises(RpcFailed, match="ALREADY_EXISTS"):
        driver.snapshot(name("s0"), other.volume_id)
    secrets = driver.ceph.secrets
    listed = driver.client.ListSnapshots(source_volume_id=volume.volume_id, secrets=secrets).entries
    assert {entry.snapshot.snapshot_id for entry in listed} == {snapshot.snapshot_id for snapshot in snapshots}
    (one,) = driver.client.ListSnapshots(snapshot_id=stranger.snapshot_id, secrets=secrets).entries
    assert one.snapshot == stranger
    assert driver.client.GetSnapshot(snapshot_id=stranger.snapshot_id, secrets=secrets).snapshot == stranger
    for snapshot in (*snapshots, stranger):
        driver.delete_snapshot(snapshot.snapshot_id)
    with pytest.raises(RpcFailed, match="NOT_FOUND"):
        driver.client.GetSnapshot(snapshot_id=stranger.snapshot_id, secrets=secrets)
    for created in (volume, other):
        driver.delete(created.volume_id)


def test_copy_finished_by_another_controller_is_kept(
    driver: Driver,
    csi_config: Path,
    ceph_admin: CephCluster,
    name: Name,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second controller finishes the copy, and removes the temporary snapshot, after the first has created it."""
    volume = driver.create(name("v"), preferred=["zone-a"], **ANYWHERE)
    write(ceph_admin, volume, b"first")
    copies: list[Any] = []

    def meanwhile(step: CrashPoint) -> None:
        if step is CrashPoint.COPY_SNAPPED:
            monkeypatch.undo()
            copies.append(driver.create(name("c"), volume=volume.volume_id))

    monkeypatch.setattr("zonewise.ceph.backend.rbd.crash_if_armed", meanwhile)
    with csi_driver.serving(tmp_path, csi_config, driver.ceph) as late:
        with pytest.raises(RpcFailed, match="ABORTED"):
            late.create(name("c"), volume=volume.volume_id)
        assert content(ceph_admin, copies[0]) == b"first"
        assert late.create(name("c"), volume=volume.volume_id).volume_id == copies[0].volume_id
    for created in (volume, copies[0]):
        driver.delete(created.volume_id)


def test_retry_returns_the_copy_of_a_changed_or_deleted_source(driver: Driver, name: Name) -> None:
    volume = driver.create(name("v"), preferred=["zone-a"], **ANYWHERE)
    snapshot = driver.snapshot(name("s"), volume.volume_id)
    sources: list[dict[str, Any]] = [{"volume": volume.volume_id}, {"snapshot": snapshot.snapshot_id}]

    def create_all() -> list[Any]:
        return [driver.create(name(f"c{number}"), **source) for number, source in enumerate(sources)]

    copies = create_all()

    driver.expand(volume.volume_id, 128 * MIB)
    assert create_all() == copies
    assert driver.snapshot(name("s"), volume.volume_id) == snapshot
    driver.delete(volume.volume_id)
    assert driver.snapshot(name("s"), volume.volume_id) == snapshot
    driver.delete_snapshot(snapshot.snapshot_id)
    assert create_all() == copies
    with pytest.raises(RpcFailed, match=r"ALREADY_EXISTS: .*comes from"):
        driver.create(name("c0"), snapshot=snapshot.snapshot_id)
    for copy in copies:
        driver.delete(copy.volume_id)


def test_common_parent_is_removed_by_one_call(
    driver: Driver, ceph_admin: CephCluster, name: Name, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Concurrent removals of one image can hang in librbd: here others are tried during one, in the same process and in another."""
    volume = driver.create(name("v"), preferred=["zone-a"], **ANYWHERE)
    snapshots = [driver.snapshot(name(f"s{number}"), volume.volume_id) for number in range(2)]
    driver.delete(volume.volume_id)
    origin, gone, last = (location(created) for created in (volume, *snapshots))
    first, second = RbdBackend(patience_seconds=60), RbdBackend(patience_seconds=60)
    first.remove(ceph_admin, gone, origin)
    codes: list[str] = []

    def meanwhile(step: CrashPoint) -> None:
        assert step is CrashPoint.PURGE_CLAIMED
        monkeypatch.undo()
        for other in (first, second):
            with pytest.raises(CsiError, match=r"in progress|is being removed by another") as error:
                other.remove(ceph_admin, gone, origin)
            codes.append(error.value.code)

    monkeypatch.setattr("zonewise.ceph.backend.trash.crash_if_armed", meanwhile)
    first.remove(ceph_admin, last, origin)
    assert codes == ["ABORTED", "ABORTED"]
    second.remove(ceph_admin, gone, origin)
    for snapshot in snapshots:
        driver.delete_snapshot(snapshot.snapshot_id)
    remaining = [image for in_zone in csi_driver.images(driver.ceph, ceph_admin).values() for image in in_zone]
    assert not [image for image in remaining if origin.image in image]


def location(volume: Any) -> VolumeLocation:
    parsed = ids.parse_volume_id(getattr(volume, "volume_id", "") or volume.snapshot_id)
    assert parsed is not None
    return VolumeLocation("", parsed.pool_id, parsed.image)


def test_images_have_the_exclusive_lock_with_any_default(
    ceph_cluster: LabCeph, ceph_admin: CephCluster, name: Name, tmp_path: Path
) -> None:
    """Without the exclusive lock Ceph can't fence a disconnected node that comes back."""
    options = {**ceph_cluster.csi_config()["clusters"][0]["options"], "rbd_default_features": "1"}
    config = csi_driver.config_file(tmp_path, ceph_cluster, options=options)
    data = {"topologyConstrainedPools": json.dumps([{"poolName": "rbd-zone-a", "dataPool": "rbd-zone-b"}])}
    with csi_driver.serving(tmp_path, config, ceph_cluster) as driver:
        plain = driver.create(name("plain"), preferred=["zone-a"], **ANYWHERE)
        by_librbd = driver.create(name("librbd"), parameters=data)
        with image_of(ceph_admin, plain) as image:
            image.update_features(rbd.RBD_FEATURE_EXCLUSIVE_LOCK, False)  # as an older driver may have created it
        copy = driver.create(name("copy"), volume=plain.volume_id)
        for created in (by_librbd, copy):
            with image_of(ceph_admin, created) as image:
                assert image.features() & rbd.RBD_FEATURE_EXCLUSIVE_LOCK
        again = driver.create(name("again"), preferred=["zone-a"], **ANYWHERE)
        with image_of(ceph_admin, again) as image:
            assert image.features() == rbd.RBD_FEATURE_EXCLUSIVE_LOCK | rbd.RBD_FEATURE_LAYERING
        for created in (plain, by_librbd, copy, again):
            driver.delete(created.volume_id)


def test_missing_sources_are_not_found(driver: Driver, name: Name) -> None:
    volume = driver.create(name("v"), preferred=["zone-a"], **ANYWHERE)
    driver.delete(volume.volume_id)
    for source in ({"volume": volume.volume_id}, {"volume": "nothing"}, {"snapshot": volume.volume_id}):
        with pytest.raises(RpcFailed, match="NOT_FOUND"):
            driver.create(name("c"), **source)
    with pytest.raises(RpcFailed, match="NOT_FOUND"):
        driver.snapshot(name("s"), volume.volume_id)
