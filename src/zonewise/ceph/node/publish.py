"""Publishing of staged volumes: bind mounts into pods, of the file system or of the device node."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

import msgspec

from zonewise.ceph.crash_points import CrashPoint, crash_if_armed
from zonewise.ceph.decide import ids
from zonewise.ceph.decide.access import VolumeAccess
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.node import host_command, mount_ownership, mounts
from zonewise.ceph.node.rbd_stage import RbdStager
from zonewise.ceph.node.stage_records import StageRecord, StageRecords, StateDirectoryFullError


class PublishTargets:
    def __init__(self, stages: StageRecords, images: RbdStager) -> None:
        self._stages = stages
        self._images = images

    def publish(self, stage: StageRecord, path: str, access: VolumeAccess, *, read_only: bool) -> None:
        other_targets = {target: mode for target, mode in stage.targets.items() if target != path and mounts.at(target)}
        if other_targets and (access.is_single_target or stage.access.is_single_target):
            raise CsiError(
                GrpcCode.FAILED_PRECONDITION,
                f"volume {stage.volume} is published at {next(iter(other_targets))}, and may be at one path only: unpublish it",
            )
        source = self._source(stage)
        if self._is_published(stage, source, path, read_only=read_only):
            return
        self._stages.put(msgspec.structs.replace(stage, targets={**stage.targets, path: read_only}))
        crash_if_armed(CrashPoint.PUBLISH_NOTED)
        if stage.access.is_block:
            self._set_read_only(stage, source, other_targets, read_only=read_only)
            _make_file(path)
        else:
            Path(path).mkdir(parents=True, exist_ok=True)
        # A read-only bind mount of a device node does not prevent writes to the device: `_set_read_only` does.
        mounts.bind(source, path, read_only=read_only and not stage.access.is_block)

    def unpublish(self, volume: str, path: str) -> None:
        """No error if it is not published there. Removes the empty file or directory under the mount."""
        stage = self._stages.get(volume)
        is_recorded = stage is not None and path in stage.targets
        if not is_recorded and not self.has_mount(volume, path):
            return
        mounts.unmount(path)
        crash_if_armed(CrashPoint.UNPUBLISH_UNMOUNTED)
        _remove_empty(path)
        if stage is not None and is_recorded:
            remaining = {target: mode for target, mode in stage.targets.items() if target != path}
            with suppress(StateDirectoryFullError):  # a target without a mount does no harm
                self._stages.put(msgspec.structs.replace(stage, targets=remaining))

    def has_mount(self, volume: str, path: str) -> bool:
        """Whether a volume of this driver is mounted there. Raises FAILED_PRECONDITION for any other mount."""
        mount = mounts.at(path)
        if mount is None:
            return False
        if ids.parse_volume_id(volume) is None or mount_ownership.foreign_mount(path, self._stages.root) is not None:
            raise CsiError(
                GrpcCode.FAILED_PRECONDITION,
                f"{mount.source} is mounted at {path}, which is not volume {volume}: it is left alone",
            )
        return True

    def require_none(self, stage: StageRecord) -> None:
        published = [target for target in stage.targets if mounts.at(target) is not None]
        if published:
            raise CsiError(
                GrpcCode.FAILED_PRECONDITION,
                f"volume {stage.volume} is still published at {published[0]}: unpublish it first",
            )

    def mounted(self, stage: StageRecord) -> dict[str, bool]:
        """The targets of a volume by the mount table alone."""
        path, staged = mounts.canonical_path(stage.path), mounts.at(stage.path)
        shown = {(staged.device, staged.root)} if staged is not None else set[tuple[str, str]]()
        device = None
        if stage.kind is ids.VolumeKind.RBD:
            device = self._images.device(stage, self._stages.directory(stage.volume))
        if device is not None:  # its file system, or its node as a block volume
            status = os.stat(device)  # noqa: PTH116
            shown |= {(_numbers(status.st_rdev), "/"), (_numbers(status.st_dev), f"/{Path(device).name}")}
        return {
            mount.point: mount.read_only
            for mount in mounts.table()
            if (mount.device, mount.root) in shown and mount.point != path
        }

    def _source(self, stage: StageRecord) -> str:
        if not stage.access.is_block:
            if mounts.at(stage.path) is None:
                raise CsiError(
                    GrpcCode.FAILED_PRECONDITION,
                    f"volume {stage.volume} is not mounted at {stage.path}: stage it again",
                )
            return stage.path
        device = self._images.device(stage, self._stages.directory(stage.volume))
        if device is None:
            raise CsiError(
                GrpcCode.FAILED_PRECONDITION, f"volume {stage.volume} is not mapped on this node: stage it again"
            )
        return device

    def _is_published(self, stage: StageRecord, source: str, path: str, *, read_only: bool) -> bool:
        """Whether the volume is published there already. Unmounts what an earlier staging left."""
        mount = mounts.at(path)
        if mount is None:
            return False
        if _is_same(stage, source, path, mount):
            if stage.targets.get(path, read_only) != read_only:
                raise CsiError(
                    GrpcCode.ALREADY_EXISTS,
                    f"volume {stage.volume} is published at {path} with another read-only flag: unpublish it first",
                )
            return True
        if path not in stage.targets:
            raise CsiError(
                GrpcCode.ALREADY_EXISTS,
                f"{mount.source} is mounted at {path} already, which is not volume {stage.volume}",
            )
        mounts.unmount(path, lazily=True)
        return False

    def _set_read_only(
        self, stage: StageRecord, device: str, other_targets: dict[str, bool], *, read_only: bool
    ) -> None:
        if stage.access.is_read_only:
            return
        if any(mode != read_only for mode in other_targets.values()):
            raise CsiError(
                GrpcCode.FAILED_PRECONDITION,
                f"block volume {stage.volume} can't be published writable and read-only at the same time: unpublish it first",
            )
        host_command.run("blockdev", "--setro" if read_only else "--setrw", device)


def _is_same(stage: StageRecord, source: str, path: str, mount: mounts.Mount) -> bool:
    if stage.access.is_block:
        return os.stat(path).st_rdev == os.stat(source).st_rdev  # noqa: PTH116
    staged = mounts.at(stage.path)
    return staged is not None and staged.device == mount.device


def _numbers(device: int) -> str:
    return f"{os.major(device)}:{os.minor(device)}"


def _remove_empty(path: str) -> None:
    target = Path(path)
    try:
        status = target.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        target.rmdir()
    elif stat.S_ISREG(status.st_mode) and not status.st_size:
        target.unlink()
    else:
        raise CsiError(GrpcCode.FAILED_PRECONDITION, f"{path} is not an empty file or directory: it is left alone")


def _make_file(path: str) -> None:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir() and not target.is_symlink():
        target.rmdir()  # created empty by the orchestrator, for a mount
    target.touch(mode=0o600)
