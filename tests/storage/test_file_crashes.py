"""The controller killed at its crash points for CephFS: a retry returns the same volume, and nothing is left over."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.ceph.driver import MIB, RpcFailed
from support.ceph.node import NodeProcess, Volume, capability, running
from support.waiting import eventually
from zonewise.ceph.backend.cephfs import CephFsBackend
from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.controller import fsck
from zonewise.ceph.controller.journal import Journal
from zonewise.ceph.crash_points import CrashPoint
from zonewise.ceph.decide import ids
from zonewise.ceph.decide.ids import ObjectType, VolumeKind
from zonewise.lab.ceph.cluster import FILESYSTEM, LabCeph

pytestmark = [pytest.mark.xdist_group("file-crashes"), pytest.mark.timeout(600)]  # one driver for all
LONG = os.environ.get("ZONEWISE_FAULTS") == "long"
CREATE = (CrashPoint.CREATE_RESERVED, CrashPoint.CREATE_MADE, CrashPoint.CREATE_RECORDED)
COPY = (
    CrashPoint.COPY_SNAPPED,
    CrashPoint.COPY_BEGUN,
    CrashPoint.COPY_CLONED,
    CrashPoint.COPY_GROWN,
    CrashPoint.COPY_CLEARED,
)
DELETE = (CrashPoint.DELETE_MARKED, CrashPoint.DELETE_REMOVED, CrashPoint.DELETE_FORGOTTEN)
EXPAND = (CrashPoint.EXPAND_GROWN, CrashPoint.EXPAND_RECORDED)
SHORT = {CrashPoint.CREATE_MADE, CrashPoint.DELETE_REMOVED}
"""Steps of the short run: each needs the start of a process."""
WHERE: dict[str, Any] = {"preferred": ["zone-a"], "requisite": ["zone-a", "zone-b", "zone-c"]}
FILES = {"type": "cephfs"}
JOURNAL_POOL = "fs-meta"
GROUP = {"vol_name": FILESYSTEM, "group_name": "csi"}


@pytest.fixture(scope="module")
def process(ceph_cluster: LabCeph, csi_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running(NodeProcess(tmp_path_factory.mktemp("node"), csi_config, ceph_cluster)) as started:
        yield started


async def crash_at_each(process: NodeProcess, steps: Sequence[CrashPoint], call: Callable[[], Any]) -> Any:
    """The response to a call that was killed at each of the steps in turn."""
    killed = [step for step in steps if LONG or step in SHORT]
    for step in killed:
        process.restart(step)
        await eventually(lambda: _crashes(process, call), f"it crashes at {step}")
    if killed:
        process.restart()
    return await retried(call, {"ABORTED", "UNAVAILABLE"})


def _crashes(process: NodeProcess, call: Callable[[], Any]) -> bool:
    """Whether the call crashed it: the manager may answer EAGAIN first."""
    with pytest.raises(RpcFailed, match=r"UNAVAILABLE|ABORTED"):
        call()
    return process.died(5)


async def retried(call: Callable[[], Any], codes: set[str]) -> Any:
    """As an orchestrator does."""

    def attempt() -> tuple[Any] | None:
        try:
            return (call(),)
        except RpcFailed as error:
            if error.code not in codes:
                raise
            return None

    return (await eventually(attempt, "a retry succeeds"))[0]


def findings_of(cluster: CephCluster, *identities: str) -> list[str]:
    """Findings of fsck about these ids; other tests use the same cluster."""
    findings = fsck.Fsck(cluster, {VolumeKind.CEPHFS: CephFsBackend()}, {JOURNAL_POOL}).examine(time.time() + 1, 0)
    return [
        f"{finding.code} {finding.what} {finding.sentence}" for finding in findings if _is_of(finding.what, identities)
    ]


def remaining(cluster: CephCluster, *identities: str) -> list[str]:
    listed = cluster.mgr("fs subvolume ls", **GROUP)
    return [entry["name"] for entry in listed if _is_of(entry["name"], identities)]


def _is_of(image: str, identities: Sequence[str]) -> bool:
    parsed = ids.parse_image_name(image.rpartition("/")[2])
    return parsed is not None and any(identity.endswith(parsed[1]) for identity in identities)


async def test_killed_while_creating_expanding_and_deleting(
    process: NodeProcess, ceph_admin: CephCluster, name: Callable[[str], str]
) -> None:
    driver = process.driver
    volume = await crash_at_each(process, CREATE, lambda: driver.create(name("v"), parameters=FILES, **WHERE))
    assert driver.create(name("v"), parameters=FILES, **WHERE).volume_id == volume.volume_id
    assert findings_of(ceph_admin, volume.volume_id) == []
    assert await crash_at_each(process, EXPAND, lambda: driver.expand(volume.volume_id, 256 * MIB)) == 256 * MIB
    facts = ceph_admin.mgr("fs subvolume info", **GROUP, sub_name=volume.volume_context["subvolumeName"])
    assert facts["bytes_quota"] == 256 * MIB
    assert findings_of(ceph_admin, volume.volume_id) == []
    await crash_at_each(process, DELETE, lambda: driver.delete(volume.volume_id))
    assert findings_of(ceph_admin, volume.volume_id) == []
    assert remaining(ceph_admin, volume.volume_id) == []


@pytest.mark.parametrize("goes_first", ["source", "copy"])
async def test_abandoned_copy_leaves_nothing_in_its_source(
    process: NodeProcess, ceph_admin: CephCluster, name: Callable[[str], str], goes_first: str
) -> None:
    """Killed after the temporary snapshot of the source, which would retain the source's data for ever."""
    driver = process.driver
    source = driver.create(name("v"), parameters=FILES, **WHERE)
    process.restart(CrashPoint.COPY_SNAPPED)

    def copy() -> Any:
        return driver.create(name("c"), volume=source.volume_id, parameters=FILES)

    await eventually(lambda: _crashes(process, copy), "it crashes")
    process.restart()
    if goes_first == "copy":
        examiner = fsck.Fsck(ceph_admin, {VolumeKind.CEPHFS: CephFsBackend()}, {JOURNAL_POOL})
        findings = examiner.examine(time.time() + 1, 0)
        (unfinished,) = [
            finding for finding in findings if finding.entry is not None and finding.entry.name == name("c")
        ]
        assert examiner.repair(unfinished).done
        image = source.volume_context["subvolumeName"]
        assert ceph_admin.mgr("fs subvolume snapshot ls", **GROUP, sub_name=image) == []
    await retried(lambda: driver.delete(source.volume_id), {"ABORTED", "UNAVAILABLE"})
    assert remaining(ceph_admin, source.volume_id) == []
    with pytest.raises(RpcFailed, match="NOT_FOUND"):
        copy()
    assert Journal(ceph_admin, JOURNAL_POOL).by_name(ObjectType.VOLUME, name("c")) is None


if LONG:

    async def test_killed_while_copying(
        process: NodeProcess, ceph_admin: CephCluster, name: Callable[[str], str], tmp_path: Path
    ) -> None:
        """A clone of a volume; then a snapshot that outlives its volume and is restored in another domain."""
        driver = process.driver
        source = driver.create(name("v"), parameters=FILES, **WHERE)
        written = Volume(process, source, tmp_path, capability()).stage_and_publish()
        (written.target / "data").write_bytes(b"first")
        written.unpublish_and_unstage()
        bigger = {"size": 128 * MIB, "parameters": {**FILES, "cloneDomain": "requested"}, "requisite": ["zone-c"]}
        clone = await crash_at_each(
            process, (*COPY, *CREATE[1:]), lambda: driver.create(name("c"), volume=source.volume_id, **bigger)
        )
        assert clone.capacity_bytes == 128 * MIB
        assert clone.volume_context["pool"] == driver.ceph.data_pool("zone-c")
        snapshot = await crash_at_each(process, CREATE, lambda: driver.snapshot(name("s"), source.volume_id))
        assert findings_of(ceph_admin, source.volume_id, clone.volume_id, snapshot.snapshot_id) == []
        await crash_at_each(process, DELETE, lambda: driver.delete(source.volume_id))
        restored = await crash_at_each(
            process, COPY[1:], lambda: driver.create(name("r"), snapshot=snapshot.snapshot_id, **bigger)
        )
        for created in (clone, restored):
            copy = Volume(process, created, tmp_path, capability()).stage_and_publish()
            assert (copy.target / "data").read_bytes() == b"first"
            copy.unpublish_and_unstage()
            driver.delete(created.volume_id)
        await crash_at_each(process, DELETE, lambda: driver.delete_snapshot(snapshot.snapshot_id))
        all_of_it = (source.volume_id, snapshot.snapshot_id, clone.volume_id, restored.volume_id)
        assert findings_of(ceph_admin, *all_of_it) == []
        assert remaining(ceph_admin, *all_of_it) == []
