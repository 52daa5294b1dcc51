"""Where a staged volume is published: bind mounts into pods, of its file system or of its device's node."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from zonewise.ceph.crash_points import CrashPoint, reach
from zonewise.ceph.decide import ids
from zonewise.ceph.decide.access import VolumeAccess
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.node import host_command, mount_ownership, mounts
from zonewise.ceph.node.rbd_stage import RbdStager
from zonewise.ceph.node.stage_records import StageRecord, StageRecords


class PublishTargets:
    def __init__(self, stages: StageRecords, images: RbdStager) -> None:
        self._stages = stages
        self._images = images

    def publish(self, stage: StageRecord, path: str, wanted: VolumeAccess, *, read_only: bool) -> None:
        others = {other: mode for other, mode in stage.targets.items() if other != path and mounts.at(other)}
        if others and (wanted.is_one_target or stage.access.is_one_target):
            raise CsiError(
                GrpcCode.FAILED_PRECONDITION,
                f"volume {stage.volume} is published at {next(iter(others))}, and may be at one path only",
            )
        source = self._source(stage)
        if self._is_there(stage, source, path, read_only=read_only):
            return
        self._stages.put(msgspec.structs.replace(stage, targets={**stage.targets, path: read_only}))
        reach(CrashPoint.PUBLISH_NOTED)
        if stage.access.is_block:
            self._protect(stage, source, others, read_only=read_only)
            _make_file(path)
        else:
            Path(path).mkdir(parents=True, exist_ok=True)
        # A bind mount of a node does not keep anybody from writing to the device: `_protect` does.
        mounts.bind(source, path, read_only=read_only and not stage.access.is_block)

    def unpublish(self, volume: str, path: str) -> None:
        """Fine when nothing of ours is there. What is under the mount is removed if it is as empty as we made it."""
        stage = self._stages.get(volume)
        is_noted = stage is not None and path in stage.targets
        if not is_noted and not self.has_mount(volume, path):
            return
        mounts.unmount(path)
        reach(CrashPoint.UNPUBLISH_UNMOUNTED)
        _remove_empty(path)
        if stage is not None and is_noted:
            left = {other: mode for other, mode in stage.targets.items() if other != path}
            self._stages.put(msgspec.structs.replace(stage, targets=left))

    def has_mount(self, volume: str, path: str) -> bool:
        """Whether a volume is mounted where no record has one. Refuses what is none of ours: it stays."""
        mount = mounts.at(path)
        if mount is None:
            return False
        if ids.parse(volume) is None or mount_ownership.stranger(path, self._stages.root) is not None:
            raise CsiError(
                GrpcCode.FAILED_PRECONDITION,
                f"{mount.source} is mounted at {path}, which is not volume {volume}: it is left alone",
            )
        return True

    def require_none(self, stage: StageRecord) -> None:
        used = [target for target in stage.targets if mounts.at(target) is not None]
        if used:
            raise CsiError(GrpcCode.FAILED_PRECONDITION, f"volume {stage.volume} is still published at {used[0]}")

    def _source(self, stage: StageRecord) -> str:
        if not stage.access.is_block:
            if mounts.at(stage.path) is None:
                raise CsiError(GrpcCode.FAILED_PRECONDITION, f"volume {stage.volume} is not mounted at {stage.path}")
            return stage.path
        device = self._images.device(stage, self._stages.directory(stage.volume))
        if device is None:
            raise CsiError(GrpcCode.FAILED_PRECONDITION, f"volume {stage.volume} is not mapped on this node")
        return device

    def _is_there(self, stage: StageRecord, source: str, path: str, *, read_only: bool) -> bool:
        """Whether the volume is published there already. What was there of an earlier staging is taken away."""
        mount = mounts.at(path)
        if mount is None:
            return False
        if _is_same(stage, source, path, mount):
            if stage.targets.get(path, read_only) != read_only:
                raise CsiError(
                    GrpcCode.ALREADY_EXISTS, f"volume {stage.volume} is at {path} with another read-only flag"
                )
            return True
        if path not in stage.targets:
            raise CsiError(GrpcCode.ALREADY_EXISTS, f"something else is mounted at {path}: {mount.source}")
        mounts.unmount(path, lazily=True)
        return False

    def _protect(self, stage: StageRecord, device: str, others: dict[str, bool], *, read_only: bool) -> None:
        if stage.access.is_read_only:
            return
        if any(mode != read_only for mode in others.values()):
            raise CsiError(
                GrpcCode.FAILED_PRECONDITION,
                f"block volume {stage.volume} is published writable and read-only at once: not possible",
            )
        host_command.run("blockdev", "--setro" if read_only else "--setrw", device)


def _is_same(stage: StageRecord, source: str, path: str, mount: mounts.Mount) -> bool:
    if stage.access.is_block:
        return os.stat(path).st_rdev == os.stat(source).st_rdev  # noqa: PTH116
    staged = mounts.at(stage.path)
    return staged is not None and staged.device == mount.device


def _remove_empty(path: str) -> None:
    target = Path(path)
    try:
        found = target.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISDIR(found.st_mode):
        target.rmdir()
    elif stat.S_ISREG(found.st_mode) and not found.st_size:
        target.unlink()
    else:
        raise CsiError(GrpcCode.FAILED_PRECONDITION, f"{path} is no empty file or directory: it is left alone")


def _make_file(path: str) -> None:
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir() and not target.is_symlink():
        target.rmdir()  # an orchestrator made it for a mount, and it is empty
    target.touch(mode=0o600)
