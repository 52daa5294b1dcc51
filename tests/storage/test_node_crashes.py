"""The node plugin killed between any two steps: its successor goes on from there, and nothing is lost or left over."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.ceph.driver import Refused
from support.ceph.node import NodeProcess, Volume, capability, running
from support.waiting import eventually
from zonewise.ceph.crash_points import CrashPoint
from zonewise.ceph.node import daemons
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
"""The steps that a run of all tests has time for: each is the start of a process."""


@pytest.fixture
def node(ceph_cluster: LabCeph, csi_config: Path, tmp_path: Path) -> Iterator[NodeProcess]:
    with running(NodeProcess(tmp_path, csi_config, ceph_cluster)) as process:
        yield process


def dies_at(node: NodeProcess, step: CrashPoint, call: Callable[[], None]) -> None:
    if not LONG and step not in SHORT:
        return
    node.again(step)
    with pytest.raises(Refused, match="UNAVAILABLE"):
        call()
    assert node.died()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["rbd", *(["cephfs"] if LONG else [])])
def test_killed_at_every_step(node: NodeProcess, name: Callable[[str], str], tmp_path: Path, kind: str) -> None:
    """Each step is the death of a plugin that goes on where the one before died."""
    created = node.driver.create(name("v"), preferred=["zone-a"], parameters={"type": kind})
    volume = Volume(node, created, tmp_path, capability())
    for step in STAGING[kind]:
        dies_at(node, step, volume.stage)
    dies_at(node, CrashPoint.PUBLISH_NOTED, volume.bring)
    node.again()
    volume.bring()
    (volume.target / "data").write_bytes(b"kept")
    dies_at(node, CrashPoint.UNPUBLISH_UNMOUNTED, volume.take)
    dies_at(node, CrashPoint.UNSTAGE_UNMOUNTED, volume.take)
    dies_at(node, CrashPoint.UNSTAGE_UNMAPPED, volume.take)
    node.again()
    volume.take()
    assert not any(node.state.iterdir())
    volume.bring()
    assert (volume.target / "data").read_bytes() == b"kept"
    volume.take()
    node.driver.delete(volume.id)


def _staged(volume: Volume) -> bool:
    try:
        volume.stage()
    except Refused as refused:
        if refused.code != "FAILED_PRECONDITION":
            raise
        return False
    return True


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


if LONG:  # Ceph needs up to a minute to forget a client that died

    @pytest.mark.parametrize("kind", ["rbd", "cephfs"])
    async def test_a_daemon_that_dies_is_told_and_replaced(
        node: NodeProcess, name: Callable[[str], str], tmp_path: Path, kind: str
    ) -> None:
        created = node.driver.create(name("v"), preferred=["zone-a"], parameters={"type": kind})
        volume = Volume(node, created, tmp_path, capability()).bring()
        _write_synced(volume.target / "data", b"synced")
        daemons.kill(next(node.state.iterdir()))
        assert volume.health() == ["CarrierEnded"]
        volume.take()
        await eventually(lambda: _staged(volume), "the dead client forgotten")
        assert not volume.health()
        volume.publish()
        assert (volume.target / "data").read_bytes() == b"synced"
        volume.take()
        node.driver.delete(volume.id)

    async def test_who_was_cut_off_can_not_write_any_more_once_another_node_has_the_volume(
        node: NodeProcess, ceph_cluster: LabCeph, csi_config: Path, name: Callable[[str], str], tmp_path: Path
    ) -> None:
        """As in a takeover: the lost node hears nothing, Ceph forgets it, and then it is back, with something to write."""
        created = node.driver.create(name("v"), preferred=["zone-a"])
        lost = Volume(node, created, tmp_path, capability(filesystem="ext4")).bring()
        _write_synced(lost.target / "data", b"before")
        carrier = daemons.pid(next(node.state.iterdir()))
        assert carrier is not None
        with running(NodeProcess(tmp_path, csi_config, ceph_cluster, "node-2")) as survivor:
            there = Volume(survivor, created, tmp_path, lost.how)
            assert not _staged(there)
            os.kill(carrier, signal.SIGSTOP)
            try:
                await eventually(lambda: _staged(there), "the lost client forgotten")
                there.publish()
                assert (there.target / "data").read_bytes() == b"before"
                (there.target / "data").write_bytes(b"survives")
            finally:
                os.kill(carrier, signal.SIGCONT)
            with pytest.raises(OSError, match=r"Input/output|Read-only"):
                _write_synced(lost.target / "late", b"late")
            there.take()
            there.bring()
            assert (there.target / "data").read_bytes() == b"survives"
            assert not (there.target / "late").exists()
            there.take()
        lost.take()
        node.driver.delete(lost.id)
