"""A driver with its node service in a process that may be killed, volumes as a pod sees them, and what is left of them."""

import functools
import multiprocessing
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from support.ceph.driver import PATIENCE_SECONDS, PREFIX, Client, Driver
from support.programs import csi_controller, csi_driver
from zonewise.ceph.node import mounts
from zonewise.ceph.spec import csi_pb2 as csi
from zonewise.lab.ceph.cluster import LabCeph

Mode = csi.VolumeCapability.AccessMode


class NodeProcess:
    """On a node of its own: another one beside it is another node, as far as Ceph and the volumes are concerned."""

    def __init__(self, directory: Path, config: Path, ceph: LabCeph, node: str = "node-1") -> None:
        self.node = f"{node}-{uuid.uuid4().hex[:6]}"
        self.socket = directory / f"{self.node}.sock"
        self.state = directory / f"{self.node}.state"
        self.log = directory / f"{self.node}.log"
        self._config = config
        self._start("")
        self.client = Client(self.socket)
        self.driver = Driver(self.client, ceph)
        self.secrets = ceph.secrets

    def _start(self, crash: str) -> None:
        self.socket.unlink(missing_ok=True)
        arguments = (self.socket, self._config, self.state, self.node, crash, self.log)
        self._process = _forks().Process(target=csi_driver.run, args=arguments, daemon=True)
        self._process.start()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.socket.exists():
            assert self._process.is_alive(), self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, "the driver does not start"
            time.sleep(0.02)

    def kill(self) -> None:
        """As by the kernel when memory is short: nothing is cleaned up."""
        self._process.kill()
        self._process.join()

    def again(self, crash: str = "") -> None:
        self.kill()
        self._start(crash)

    def died(self, patience_seconds: float = PATIENCE_SECONDS) -> bool:
        """Whether it ended by SIGKILL; waits for it."""
        self._process.join(patience_seconds)
        return self._process.exitcode == -signal.SIGKILL

    def stop(self) -> None:
        self.client.channel.close()
        self._process.terminate()
        self._process.join(PATIENCE_SECONDS)
        self.kill()


@functools.cache
def _forks() -> ForkServerContext:
    """Processes come from one that has loaded what they need: starting each from nothing would take a second of a core."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([csi_driver.__name__, csi_controller.__name__])  # one server for both
    return context


@contextmanager
def running(process: NodeProcess) -> Iterator[NodeProcess]:
    """Nothing may be left on its node at the end."""
    try:
        yield process
    finally:
        left = leftovers(process)
        process.stop()
    assert left == []


class Volume:
    """One volume on one node: staged and published under a directory of its own."""

    def __init__(self, process: NodeProcess, volume: csi.Volume, directory: Path, how: csi.VolumeCapability) -> None:
        self.process = process
        self.volume = volume
        self.how = how
        place = directory / f"{process.node}-{uuid.uuid4().hex[:6]}"
        place.mkdir()
        self.staging, self.target = place / "staging", place / "target"
        self.staging.mkdir()

    @property
    def id(self) -> str:
        return self.volume.volume_id

    def stage(self) -> None:
        self.process.client.NodeStageVolume(
            volume_id=self.id,
            staging_target_path=str(self.staging),
            volume_capability=self.how,
            secrets=self.process.secrets,
            volume_context=self.volume.volume_context,
        )

    def publish(self, target: Path | None = None, *, readonly: bool = False) -> None:
        self.process.client.NodePublishVolume(
            volume_id=self.id,
            staging_target_path=str(self.staging),
            target_path=str(target or self.target),
            volume_capability=self.how,
            readonly=readonly,
        )

    def unpublish(self, target: Path | None = None) -> None:
        self.process.client.NodeUnpublishVolume(volume_id=self.id, target_path=str(target or self.target))

    def unstage(self) -> None:
        self.process.client.NodeUnstageVolume(volume_id=self.id, staging_target_path=str(self.staging))

    def bring(self) -> "Volume":
        self.stage()
        self.publish()
        return self

    def take(self) -> None:
        self.unpublish()
        self.unstage()

    def expand(self, size: int) -> int:
        self.process.driver.expand(self.id, size)
        return self.process.client.NodeExpandVolume(
            volume_id=self.id, volume_path=str(self.target), capacity_range={"required_bytes": size}
        ).capacity_bytes

    def stats(self) -> dict[str, csi.VolumeUsage]:
        answer = self.process.client.NodeGetVolumeStats(volume_id=self.id, volume_path=str(self.target))
        return {csi.VolumeUsage.Unit.Name(each.unit): each for each in answer.usage}

    def health(self) -> list[str]:
        answer = self.process.client.NodeGetVolumeHealth(volume_id=self.id)
        return [each.reason for each in answer.volume_health.health_statuses]


def capability(*, block: bool = False, filesystem: str = "", mode: str = "SINGLE_NODE_WRITER") -> csi.VolumeCapability:
    how: dict[str, Any] = {"block": {}} if block else {"mount": {"fs_type": filesystem}}
    return csi.VolumeCapability(access_mode={"mode": mode}, **how)


def leftovers(process: NodeProcess) -> list[str]:
    """What a node should have none of when every volume is unstaged. It is taken away, so that a failure spoils nothing else."""
    mounted = [mount.point for mount in mounts.table() if f"/{process.node}" in mount.point]
    daemons = [int(file.parts[2]) for file in Path("/proc").glob("[0-9]*/cwd") if process.node in _link(file)]
    devices = [file for file in Path("/sys/block").glob("loop*/loop/backing_file") if process.node in _read(file)]
    left = [*mounted, *map(_command_line, daemons), *map(str, devices), *map(str, process.state.glob("*"))]
    for point in reversed(mounted):
        subprocess.run(["umount", "--lazy", point], check=False)
    for file in devices:
        subprocess.run(["losetup", "--detach", f"/dev/{file.parts[3]}"], check=False)
    for number in daemons:
        os.kill(number, signal.SIGKILL)
    return left


def _command_line(number: int) -> str:
    return _read(Path(f"/proc/{number}/cmdline")).replace("\0", " ")


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _link(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:
        return ""


def command_lines() -> str:
    return "\n".join(_read(file) for file in Path("/proc").glob("[0-9]*/cmdline"))


def objects(cluster: Any, pools: Mapping[str, str], beginning: str) -> dict[str, int]:
    """How many objects whose name begins so lie in each pool, in any namespace: by zone."""
    import rados  # noqa: PLC0415 - a binding of the system's

    counts = {}
    for zone, pool in pools.items():
        io = cluster.rados.open_ioctx(pool)
        io.set_namespace(rados.LIBRADOS_ALL_NSPACES)
        counts[zone] = sum(each.key.startswith(beginning) for each in io.list_objects())
        io.close()
    return counts


__all__ = ["PREFIX", "Mode", "NodeProcess", "Volume", "capability", "command_lines", "leftovers", "objects", "running"]
