"""The node plugin killed at its crash points: its successor continues, and nothing is lost or left over."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.ceph.driver import RpcFailed
from support.ceph.node import NodeProcess, Volume, capability, running
from support.waiting import eventually
from zonewise.ceph.backend.cluster import CephClusters
from zonewise.ceph.config import CsiConfigFile
from zonewise.ceph.crash_points import CrashPoint
from zonewise.ceph.node import daemons, mounts
from zonewise.ceph.node.mappers import loop_devices
from zonewise.ceph.node.service import build_node_service
from zonewise.lab.ceph.cluster import LabCeph

LONG = os.environ.get("ZONEWISE_FAULTS") == "long"
STAGING = {
    "rbd": (
        *(
            CrashPoint.STAGE_NOTED,
            CrashPoint.STAGE_SPAWNED,
            CrashPoint.STAGE_MAPPED,
            CrashPoint.STAGE_FORMATTING,
            CrashPoint.STAGE_FORMATTED,
        ),
        CrashPoint.STAGE_MOUNTED,
    ),
    "cephfs": (CrashPoint.STAGE_NOTED, CrashPoint.STAGE_SPAWNED, CrashPoint.STAGE_MOUNTED),
}
SHORT = {CrashPoint.STAGE_SPAWNED, CrashPoint.STAGE_FORMATTED, CrashPoint.UNSTAGE_UNMOUNTED}
"""Steps of the short run: each needs the start of a process."""


@pytest.fixture
def node(ceph_cluster: LabCeph, csi_config: Path, tmp_path: Path) -> Iterator[NodeProcess]:
    with running(NodeProcess(tmp_path, csi_config, ceph_cluster)) as process:
        yield process


def crash_at(node: NodeProcess, step: CrashPoint, call: Callable[[], None]) -> None:
    if not LONG and step not in SHORT:
        return
    node.restart(step)
    with pytest.raises(RpcFailed, match="UNAVAILABLE"):
        call()
    assert node.died()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["rbd", *(["cephfs"] if LONG else [])])
def test_killed_at_every_step(node: NodeProcess, name: Callable[[str], str], tmp_path: Path, kind: str) -> None:
    """Each step kills a plugin that continues where the one before was killed."""
    created = node.driver.create(name("v"), preferred=["zone-a"], parameters={"type": kind})
    volume = Volume(node, created, tmp_path, capability())
    for step in STAGING[kind]:
        crash_at(node, step, volume.stage)
    crash_at(node, CrashPoint.PUBLISH_NOTED, volume.stage_and_publish)
    node.restart()
    volume.stage_and_publish()
    (volume.target / "data").write_bytes(b"kept")
    crash_at(node, CrashPoint.UNPUBLISH_UNMOUNTED, volume.unpublish_and_unstage)
    crash_at(node, CrashPoint.UNSTAGE_UNMOUNTED, volume.unpublish_and_unstage)
    crash_at(node, CrashPoint.UNSTAGE_UNMAPPED, volume.unpublish_and_unstage)
    node.restart()
    volume.unpublish_and_unstage()
    assert not any(node.state.iterdir())
    volume.stage_and_publish()
    assert (volume.target / "data").read_bytes() == b"kept"
    volume.unpublish_and_unstage()
    node.driver.delete(volume.id)


def _staged(volume: Volume) -> bool:
    try:
        volume.stage()
    except RpcFailed as error:
        if error.code != "FAILED_PRECONDITION":
            raise
        return False
    return True


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@pytest.mark.parametrize("kind", ["rbd", "cephfs"])
def test_successor_reports_dead_daemons_and_frees_their_devices(
    node: NodeProcess, csi_config: Path, name: Callable[[str], str], tmp_path: Path, kind: str
) -> None:
    """As after a restart of a container that took the daemons with it."""
    created = node.driver.create(name("v"), preferred=["zone-a"], parameters={"type": kind})
    volume = Volume(node, created, tmp_path, capability()).stage_and_publish()
    state = next(node.state.iterdir())
    clusters = CephClusters(CsiConfigFile(csi_config))
    successor = build_node_service(clusters, node.node, dict, state_directory=node.state)
    assert successor.broken_volumes() == {}
    daemons.kill(state)
    assert list(successor.broken_volumes()) == [volume.id]
    assert "has exited" in successor.broken_volumes()[volume.id]
    volume.unpublish()
    mounts.unmount(str(volume.staging), lazily=True)
    assert successor.broken_volumes() == {}
    assert loop_devices.find(state / "image") is None
    volume.unstage()
    node.driver.delete(volume.id, tries=3)  # the MDS waits a minute for the client that was killed


if LONG:  # Ceph needs up to a minute to drop a dead client

    @pytest.mark.parametrize("kind", ["rbd", "cephfs"])
    async def test_dead_daemon_is_reported_and_replaced(
        node: NodeProcess, name: Callable[[str], str], tmp_path: Path, kind: str
    ) -> None:
        created = node.driver.create(name("v"), preferred=["zone-a"], parameters={"type": kind})
        volume = Volume(node, created, tmp_path, capability()).stage_and_publish()
        _write_synced(volume.target / "data", b"synced")
        daemons.kill(next(node.state.iterdir()))
        assert volume.health() == ["CarrierEnded"]
        volume.unpublish_and_unstage()
        await eventually(lambda: _staged(volume), "the dead client is dropped")
        assert not volume.health()
        volume.publish()
        assert (volume.target / "data").read_bytes() == b"synced"
        volume.unpublish_and_unstage()
        node.driver.delete(volume.id)

    async def test_fenced_node_can_not_write_after_a_takeover(
        node: NodeProcess, ceph_cluster: LabCeph, csi_config: Path, name: Callable[[str], str], tmp_path: Path
    ) -> None:
        """As in a takeover: the node is frozen, Ceph fences it, and then it is back with dirty data."""
        created = node.driver.create(name("v"), preferred=["zone-a"])
        lost = Volume(node, created, tmp_path, capability(filesystem="ext4")).stage_and_publish()
        _write_synced(lost.target / "data", b"before")
        daemon = daemons.pid(next(node.state.iterdir()))
        assert daemon is not None
        with running(NodeProcess(tmp_path, csi_config, ceph_cluster, "node-2")) as survivor:
            second = Volume(survivor, created, tmp_path, lost.capability)
            assert not _staged(second)
            os.kill(daemon, signal.SIGSTOP)
            try:
                await eventually(lambda: _staged(second), "the lost client is dropped")
                second.publish()
                assert (second.target / "data").read_bytes() == b"before"
                (second.target / "data").write_bytes(b"survives")
            finally:
                os.kill(daemon, signal.SIGCONT)
            with pytest.raises(OSError, match=r"Input/output|Read-only"):
                _write_synced(lost.target / "late", b"late")
            second.unpublish_and_unstage()
            second.stage_and_publish()
            assert (second.target / "data").read_bytes() == b"survives"
            assert not (second.target / "late").exists()
            second.unpublish_and_unstage()
        lost.unpublish_and_unstage()
        node.driver.delete(lost.id)
