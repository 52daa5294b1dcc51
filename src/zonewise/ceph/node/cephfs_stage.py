"""CephFS volumes on a node: the volume's directory is mounted at the staging path, by the kernel's client or by ceph-fuse.

ceph-fuse is a process of its own that must outlive us, see `daemons`; it ends when it is unmounted. Both get the key by a file that
is gone once they are connected.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from zonewise.ceph.crash_points import CrashPoint, reach
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.node import daemons, host_command, keyfiles, mounts
from zonewise.ceph.node.mappers import MapperClient as Credentials
from zonewise.ceph.node.stage_records import StageRecord
from zonewise.errors import UsageError, ZonewiseError

if TYPE_CHECKING:
    from zonewise.ceph.backend.cluster import CephCluster

_SEARCHED = host_command.environment()["PATH"]
_FILESYSTEMS = Path("/proc/filesystems")
_CONFIGURATION, _KEYRING, _KEY = "ceph.conf", "keyring", "key"
_FUSE = "fuse.ceph-fuse"
_ENDS_BY_ITSELF_SECONDS, _ENDED_WITHIN_SECONDS = 2.0, 30.0


class CephFsClient(StrEnum):
    KERNEL = "kernel"
    FUSE = "fuse"


class CephFsClientError(ZonewiseError):
    pass


def choose(wanted: str = "auto") -> tuple[CephFsClient, str]:
    """The client of this node and why: the kernel's where it has one."""
    if wanted not in {"auto", *CephFsClient}:
        raise UsageError(f"there is no CephFS client {wanted!r}: choose auto or one of {', '.join(CephFsClient)}")
    lacking = {
        CephFsClient.KERNEL: "" if kernel_knows_ceph(_FILESYSTEMS.read_text()) else "this kernel does not know CephFS",
        CephFsClient.FUSE: "" if shutil.which("ceph-fuse", path=_SEARCHED) else "ceph-fuse is not installed",
    }
    for client in CephFsClient:
        if wanted in {"auto", client} and not lacking[client]:
            others = [f"{other}: {why}" for other, why in lacking.items() if why]
            return client, "; ".join([f"{client} works here", *others])
    said = "; ".join(f"{client}: {why}" for client, why in lacking.items() if wanted in {"auto", client})
    raise CephFsClientError(f"this node can't mount CephFS: {said}")


def kernel_knows_ceph(filesystems: str) -> bool:
    return any(line.split()[-1:] == ["ceph"] for line in filesystems.splitlines())


class CephFsStager:
    def __init__(self, client: CephFsClient, cgroup: Path | None = None) -> None:
        self.client = client
        self._cgroup = cgroup

    def stage(self, cluster: CephCluster, stage: StageRecord, directory: Path, context: Mapping[str, str]) -> None:
        if self._is_dead(stage, directory):
            mounts.unmount(stage.path, lazily=True)
        if mounts.at(stage.path) is None:
            self._mount(cluster, stage, directory, context)
        keyfiles.remove(directory, _CONFIGURATION, _KEYRING, _KEY)  # of a predecessor that was killed
        reach(CrashPoint.STAGE_MOUNTED)

    def _mount(self, cluster: CephCluster, stage: StageRecord, directory: Path, context: Mapping[str, str]) -> None:
        filesystem, path = _location(stage, context)
        Path(stage.path).mkdir(parents=True, exist_ok=True)
        options = [*(["ro"] if stage.access.is_read_only else []), *stage.access.flags]
        mounter = context.get("mounter") or self.client
        if mounter not in set(CephFsClient):
            raise CsiError(
                GrpcCode.INVALID_ARGUMENT, f"parameter mounter: {mounter!r} is none of {', '.join(CephFsClient)}"
            )
        if mounter == CephFsClient.KERNEL:
            self._mount_by_kernel(cluster, stage, directory, filesystem, path, options)
        else:
            self._mount_by_fuse(cluster, stage, directory, filesystem, path, options)

    def unstage(self, stage: StageRecord, directory: Path) -> None:
        mounts.unmount(stage.path, lazily=self._is_dead(stage, directory))
        reach(CrashPoint.UNSTAGE_UNMOUNTED)
        if daemons.wait(directory, _ENDS_BY_ITSELF_SECONDS):
            return
        # It may be slow, or another mount namespace of this node has a copy of the mount and keeps it going. Asked to end, it
        # writes back what it holds in either case. Killed, it would lose that.
        daemons.end(directory)
        if not daemons.wait(directory, _ENDED_WITHIN_SECONDS):
            raise CsiError(
                GrpcCode.UNAVAILABLE, "ceph-fuse still writes back what the pod wrote: asked again, it may be done"
            )

    def trouble(self, stage: StageRecord, directory: Path) -> str:
        if self._is_dead(stage, directory):
            return "ceph-fuse has ended: nothing can be read or written until the volume is unstaged and staged again"
        return ""

    def _is_dead(self, stage: StageRecord, directory: Path) -> bool:
        mount = mounts.at(stage.path)
        return mount is not None and mount.filesystem == _FUSE and not daemons.running(directory)

    def _mount_by_fuse(
        self,
        cluster: CephCluster,
        stage: StageRecord,
        directory: Path,
        filesystem: str,
        path: str,
        options: Sequence[str],
    ) -> None:
        who = Credentials.of(cluster)
        conf = f"{who.configuration}\n[client]\nkeyring = {directory / _KEYRING}\n"
        command = [
            *("ceph-fuse", "-f", "-c", _CONFIGURATION, "-n", f"client.{who.user}"),
            *("--client_fs", filesystem, "-r", path),
            *(["-o", ",".join(options)] if options else []),
            stage.path,
        ]
        one_was_there = daemons.running(directory)
        with (
            keyfiles.present(directory / _CONFIGURATION, conf),
            keyfiles.present(directory / _KEYRING, keyfiles.keyring(who.user, who.key)),
        ):
            try:
                daemons.start(directory, command, lambda: mounts.at(stage.path) is not None, cgroup=self._cgroup)
            except daemons.DaemonError as error:
                # One that was there may hold what a pod wrote before the volume was unstaged. Asked to end, it writes that back;
                # left alone, it could go on for a copy of its mount elsewhere, and no stage would ever succeed.
                (daemons.end if one_was_there else daemons.kill)(directory)
                raise CephFsClientError(f"{path} of {filesystem} could not be mounted: {error}") from error

    def _mount_by_kernel(
        self,
        cluster: CephCluster,
        stage: StageRecord,
        directory: Path,
        filesystem: str,
        path: str,
        options: Sequence[str],
    ) -> None:
        who = Credentials.of(cluster)
        with (
            keyfiles.present(directory / _CONFIGURATION, who.configuration) as conf,
            keyfiles.present(directory / _KEY, who.key) as key,
        ):
            said = [f"name={who.user}", f"secretfile={key}", f"conf={conf}", f"mds_namespace={filesystem}"]
            mounts.mount(f":{path}", stage.path, "ceph", [*said, *options])


def _location(stage: StageRecord, context: Mapping[str, str]) -> tuple[str, str]:
    """File system and path, as the controller wrote them; a path that is not of this volume is refused."""
    filesystem, path = context.get("fsName", ""), context.get("subvolumePath", "")
    if not filesystem or not path.startswith("/") or stage.image not in path.split("/") or ".." in path.split("/"):
        raise CsiError(
            GrpcCode.INVALID_ARGUMENT,
            f"the volume context of {stage.volume} must have fsName, and subvolumePath with {stage.image} in it",
        )
    return filesystem, path
