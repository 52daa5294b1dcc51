"""A driver with its node service in a process that may be killed, its volumes, and what they leave on the node."""

import functools
import multiprocessing
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from support.ceph.driver import PREFIX, TIMEOUT_SECONDS, Client, Driver
from support.programs import csi_controller, csi_driver
from zonewise.ceph.node import mounts
from zonewise.ceph.spec import csi_pb2 as csi
from zonewise.lab.ceph.cluster import LabCeph

Mode = csi.VolumeCapability.AccessMode


class NodeProcess:
    """Each process is a separate node, as far as Ceph and the volumes are concerned."""

    def __init__(
        self, directory: Path, config: Path, ceph: LabCeph, node: str = "node-1", disk: Path | None = None
    ) -> None:
        """`disk` is where its state goes, if not to `directory`."""
        self.node = f"{node}-{uuid.uuid4().hex[:6]}"
        self.socket = directory / f"{self.node}.sock"
        self.state = (disk or directory) / f"{self.node}.state"
        self.log = directory / f"{self.node}.log"
        self._config = config
        self._start("")
        self.client = Client(self.socket)
        self.driver = Driver(self.client, ceph)
        self.secrets = ceph.secrets

    def _start(self, crash: str) -> None:
        self.socket.unlink(missing_ok=True)
        arguments = (self.socket, self._config, self.state, self.node, crash, self.log)
        self._process = _fork_server().Process(target=csi_driver.run, args=arguments, daemon=True)
        self._process.start()
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not self.socket.exists():
            assert self._process.is_alive(), self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, "the driver does not start"
            time.sleep(0.02)

    def kill(self) -> None:
        """With SIGKILL, as by the OOM killer: nothing is cleaned up."""
        self._process.kill()
        self._process.join()

    def restart(self, crash: str = "") -> None:
        self.kill()
        self._start(crash)

    def died(self, timeout_seconds: float = TIMEOUT_SECONDS) -> bool:
        """Waits for its exit; whether it was by SIGKILL."""
        self._process.join(timeout_seconds)
        return self._process.exitcode == -signal.SIGKILL

    def stop(self) -> None:
        self.client.channel.close()
        self._process.terminate()
        self._process.join(TIMEOUT_SECONDS)
        self.kill()


@functools.cache
def _fork_server() -> ForkServerContext:
    """A fork server with all modules loaded: importing them takes a second of CPU per process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([csi_driver.__name__, csi_controller.__name__])  # one server for both
    return context


@contextmanager
def running(process: NodeProcess) -> Iterator[NodeProcess]:
    """Asserts at the end that nothing is left on its node."""
    try:
        yield process
    finally:
        left = leftovers(process)
        process.stop()
    assert left == []


class Volume:
    """A volume on one node, staged and published below a directory of its own."""

    def __init__(
        self, process: NodeProcess, volume: csi.Volume, directory: Path, volume_capability: csi.VolumeCapability
    ) -> None:
        self.process = process
        self.volume = volume
        self.capability = volume_capability
        own = directory / f"{process.node}-{uuid.uuid4().hex[:6]}"
        own.mkdir()
        self.staging, self.target = own / "staging", own / "target"
        self.staging.mkdir()

    @property
    def id(self) -> str:
        return self.volume.volume_id

    def stage(self) -> None:
        self.process.client.NodeStageVolume(
            volume_id=self.id,
            staging_target_path=str(self.staging),
            volume_capability=self.capability,
            secrets=self.process.secrets,
            volume_context=self.volume.volume_context,
        )

    def publish(self, target: Path | None = None, *, readonly: bool = False) -> None:
        self.process.client.NodePublishVolume(
            volume_id=self.id,
            staging_target_path=str(self.staging),
            target_path=str(target or self.target),
            volume_capability=self.capability,
            readonly=readonly,
        )

    def unpublish(self, target: Path | None = None) -> None:
        self.process.client.NodeUnpublishVolume(volume_id=self.id, target_path=str(target or self.target))

    def unstage(self) -> None:
        self.process.client.NodeUnstageVolume(volume_id=self.id, staging_target_path=str(self.staging))

    def stage_and_publish(self) -> "Volume":
        self.stage()
        self.publish()
        return self

    def unpublish_and_unstage(self) -> None:
        self.unpublish()
        self.unstage()

    def expand(self, size: int) -> int:
        self.process.driver.expand(self.id, size)
        return self.process.client.NodeExpandVolume(
            volume_id=self.id, volume_path=str(self.target), capacity_range={"required_bytes": size}
        ).capacity_bytes

    def stats(self) -> dict[str, csi.VolumeUsage]:
        response = self.process.client.NodeGetVolumeStats(volume_id=self.id, volume_path=str(self.target))
        return {csi.VolumeUsage.Unit.Name(usage.unit): usage for usage in response.usage}

    def health(self) -> list[str]:
        response = self.process.client.NodeGetVolumeHealth(volume_id=self.id)
        return [status.reason for status in response.volume_health.health_statuses]


MakeVolume = Callable[..., Volume]
"""Creates a volume for a test, with the arguments of the fixture `make_volume`."""


def capability(*, block: bool = False, filesystem: str = "", mode: str = "SINGLE_NODE_WRITER") -> csi.VolumeCapability:
    access_type: dict[str, Any] = {"block": {}} if block else {"mount": {"fs_type": filesystem}}
    return csi.VolumeCapability(access_mode={"mode": mode}, **access_type)


def leftovers(process: NodeProcess) -> list[str]:
    """Mounts, daemons, devices and records that remain with no volume staged. They are removed, so that other tests do not fail."""
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


def objects(cluster: Any, pools: Mapping[str, str], prefix: str) -> dict[str, int]:
    """By zone: the number of objects with this prefix in its pool, in all namespaces."""
    import rados  # noqa: PLC0415 - a system package

    counts = {}
    for zone, pool in pools.items():
        io = cluster.rados.open_ioctx(pool)
        io.set_namespace(rados.LIBRADOS_ALL_NSPACES)
        counts[zone] = sum(item.key.startswith(prefix) for item in io.list_objects())
        io.close()
    return counts


__all__ = [
    "PREFIX",
    "MakeVolume",
    "Mode",
    "NodeProcess",
    "Volume",
    "capability",
    "command_lines",
    "leftovers",
    "objects",
    "running",
]
