"""Staging of CephFS volumes: the subvolume is mounted at the staging path, with the kernel client or ceph-fuse.

ceph-fuse is a process that must outlive the driver, see `daemons`; it exits when it is unmounted. Both clients read the
key from a file that is removed once they are connected.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from zonewise.ceph.crash_points import CrashPoint, crash_if_armed
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.node import daemons, host_command, keyfiles, mounts
from zonewise.ceph.node.mappers import MapperClient as Credentials
from zonewise.ceph.node.stage_records import StageRecord
from zonewise.errors import UsageError, ZonewiseError

if TYPE_CHECKING:
    from zonewise.ceph.backend.cluster import CephCluster

_PATH: Final = host_command.environment()["PATH"]
_FILESYSTEMS: Final = Path("/proc/filesystems")
_CONFIGURATION, _KEYRING, _KEY = "ceph.conf", "keyring", "key"
_FUSE: Final = "fuse.ceph-fuse"
_EXIT_SECONDS, _TERMINATE_SECONDS = 2.0, 30.0
# ceph-fuse remounts itself after its start, as a test. If it was unmounted before that, the test fails, and by default
# ceph-fuse then aborts before it has flushed what was written.
_STAY_ALIVE: Final = "client_die_on_failed_dentry_invalidate = false\nclient_die_on_failed_remount = false\n"


class CephFsClient(StrEnum):
    KERNEL = "kernel"
    FUSE = "fuse"


class CephFsClientError(ZonewiseError):
    pass


def choose_client(name: str = "auto") -> tuple[CephFsClient, str]:
    """The client for this node, and why; the kernel client if the kernel has it."""
    if name not in {"auto", *CephFsClient}:
        raise UsageError(f"unknown CephFS client {name!r}: use auto or one of {', '.join(CephFsClient)}")
    missing = {
        CephFsClient.KERNEL: "" if kernel_knows_ceph(_FILESYSTEMS.read_text()) else "this kernel has no CephFS",
        CephFsClient.FUSE: "" if shutil.which("ceph-fuse", path=_PATH) else "ceph-fuse is not installed",
    }
    for client in CephFsClient:
        if name in {"auto", client} and not missing[client]:
            unavailable = [f"{other}: {why}" for other, why in missing.items() if why]
            return client, "; ".join([f"{client} is available", *unavailable])
    reasons = "; ".join(f"{client}: {why}" for client, why in missing.items() if name in {"auto", client})
    raise CephFsClientError(f"this node can't mount CephFS: {reasons}")


def kernel_knows_ceph(filesystems: str) -> bool:
    return any(line.split()[-1:] == ["ceph"] for line in filesystems.splitlines())


class _Subvolume(NamedTuple):
    filesystem: str
    path: str

    def __str__(self) -> str:
        return f"{self.path} of file system {self.filesystem}"


class CephFsStager:
    def __init__(self, client: CephFsClient, cgroup: Sequence[Path] = ()) -> None:
        self.client = client
        self._cgroup = cgroup

    def stage(self, cluster: CephCluster, stage: StageRecord, directory: Path, context: Mapping[str, str]) -> None:
        if self._is_dead(stage, directory):
            mounts.unmount(stage.path, lazily=True)
        if mounts.at(stage.path) is None:
            self._mount(cluster, stage, directory, context)
        keyfiles.remove(directory, _CONFIGURATION, _KEYRING, _KEY)  # left by a killed process
        crash_if_armed(CrashPoint.STAGE_MOUNTED)

    def _mount(self, cluster: CephCluster, stage: StageRecord, directory: Path, context: Mapping[str, str]) -> None:
        source = _subvolume(stage, context)
        Path(stage.path).mkdir(parents=True, exist_ok=True)
        mounter = context.get("mounter") or self.client
        if mounter not in set(CephFsClient):
            raise CsiError(
                GrpcCode.INVALID_ARGUMENT, f"parameter mounter: {mounter!r} is unknown, use {' or '.join(CephFsClient)}"
            )
        mount = self._mount_by_kernel if mounter == CephFsClient.KERNEL else self._mount_by_fuse
        mount(Credentials.of(cluster), stage, directory, source)

    def unstage(self, stage: StageRecord, directory: Path) -> None:
        mounts.unmount(stage.path, lazily=self._is_dead(stage, directory))
        crash_if_armed(CrashPoint.UNSTAGE_UNMOUNTED)
        if daemons.wait(directory, _EXIT_SECONDS):
            return
        # It may be slow, or a copy of the mount in another mount namespace keeps it running. On SIGTERM it flushes its dirty data
        # in either case; SIGKILL would lose that data.
        daemons.terminate(directory)
        if not daemons.wait(directory, _TERMINATE_SECONDS):
            raise CsiError(GrpcCode.UNAVAILABLE, "ceph-fuse is still flushing written data: retry")

    def problem(self, stage: StageRecord, directory: Path) -> str:
        if self._is_dead(stage, directory):
            return "ceph-fuse has exited: reads and writes fail until the volume is unstaged and staged again"
        return ""

    def _is_dead(self, stage: StageRecord, directory: Path) -> bool:
        mount = mounts.at(stage.path)
        return mount is not None and mount.filesystem == _FUSE and not daemons.running(directory)

    def _mount_by_fuse(self, client: Credentials, stage: StageRecord, directory: Path, source: _Subvolume) -> None:
        conf = f"{client.configuration}\n[client]\nkeyring = {directory / _KEYRING}\n{_STAY_ALIVE}"
        options = _options(stage)
        command = [
            *("ceph-fuse", "-f", "-c", _CONFIGURATION, "-n", f"client.{client.user}"),
            *("--client_fs", source.filesystem, "-r", source.path),
            *(["-o", ",".join(options)] if options else []),
            stage.path,
        ]
        was_running = daemons.running(directory)
        with (
            keyfiles.temporary(directory / _CONFIGURATION, conf),
            keyfiles.temporary(directory / _KEYRING, keyfiles.keyring(client.user, client.key)),
        ):
            try:
                daemons.start(directory, command, lambda: mounts.at(stage.path) is not None, cgroup=self._cgroup)
            except daemons.DaemonError as error:
                # A ceph-fuse of an earlier stage may hold dirty data: on SIGTERM it flushes it. Left running for a copy of its
                # mount elsewhere, it would make every stage fail.
                (daemons.terminate if was_running else daemons.kill)(directory)
                raise CephFsClientError(f"mounting {source} failed: {error}") from error

    def _mount_by_kernel(self, client: Credentials, stage: StageRecord, directory: Path, source: _Subvolume) -> None:
        with (
            keyfiles.temporary(directory / _CONFIGURATION, client.configuration) as conf,
            keyfiles.temporary(directory / _KEY, client.key) as key,
        ):
            credentials = [f"name={client.user}", f"secretfile={key}", f"conf={conf}"]
            options = [*credentials, f"mds_namespace={source.filesystem}", *_options(stage)]
            mounts.mount(f":{source.path}", stage.path, "ceph", options)


def _options(stage: StageRecord) -> list[str]:
    return [*(["ro"] if stage.access.is_read_only else []), *stage.access.flags]


def _subvolume(stage: StageRecord, context: Mapping[str, str]) -> _Subvolume:
    """From the volume context; a path that does not belong to the volume is rejected."""
    filesystem, path = context.get("fsName", ""), context.get("subvolumePath", "")
    if not filesystem or not path.startswith("/") or stage.image not in path.split("/") or ".." in path.split("/"):
        raise CsiError(
            GrpcCode.INVALID_ARGUMENT,
            f"the volume context of {stage.volume} must have fsName, and subvolumePath with {stage.image} in it",
        )
    return _Subvolume(filesystem, path)
