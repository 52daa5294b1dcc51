"""Staging of RBD volumes: map the image to a device, create a file system if it is blank, mount it at the staging path.

Each step is skipped if the kernel shows that it was done, so a call can be repeated after a crash at any point.
"""

from __future__ import annotations

import random
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from zonewise.ceph.backend.librbd import reading
from zonewise.ceph.crash_points import CrashPoint, crash_if_armed
from zonewise.ceph.decide.access import VolumeAccess
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.node import filesystems, mounts
from zonewise.ceph.node.mappers import MappedImage, Mapper, MapperClient
from zonewise.ceph.node.stage_records import StageRecord
from zonewise.errors import ZonewiseError
from zonewise.log import get_logger

if TYPE_CHECKING:
    from zonewise.ceph.backend.cluster import CephCluster

_log = get_logger(__name__)

FORMATTING: Final = "zonewise.formatting"
"""Image metadata while mkfs runs, so that the result of a killed mkfs is not taken for a file system."""

_WAIT_FOR_OTHERS_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.2
_RANDOM: Final = random.SystemRandom()


class RbdStager:
    def __init__(self, mapper: Mapper, mappers: Iterable[Mapper]) -> None:
        self.mapper = mapper
        self._mappers = {known.name: known for known in mappers}

    def mapper_named(self, name: str) -> Mapper:
        """The mapper of the class parameter `mounter`; the node's default if empty."""
        if not name:
            return self.mapper
        if name not in self._mappers:
            raise CsiError(
                GrpcCode.INVALID_ARGUMENT,
                f"parameter mounter: {name!r} is unknown, use one of {', '.join(self._mappers)}",
            )
        return self._mappers[name]

    def stage(self, cluster: CephCluster, stage: StageRecord, directory: Path, context: Mapping[str, str]) -> None:
        mapper, image = self._mappers[stage.mapper], _image(stage)
        if not mapper.is_open(image, directory):
            self._check_exclusive(cluster, stage, own_clients=0, patience_seconds=_WAIT_FOR_OTHERS_SECONDS)
        device = mapper.map(MapperClient.of(cluster), image, directory, read_only=stage.access.is_read_only)
        crash_if_armed(CrashPoint.STAGE_MAPPED)
        if any(mounts.at(path) for path in (stage.targets if stage.access.is_block else (stage.path,))):
            return
        try:
            # Another node may have checked at the same time. With the image open on both, at least one sees the other and
            # unmaps it; the wait is random, so that they do not both do so for ever.
            patience = _WAIT_FOR_OTHERS_SECONDS * _RANDOM.uniform(0.2, 1.0)
            half_formatted = self._check_exclusive(
                cluster, stage, own_clients=0 if stage.access.is_read_only else 1, patience_seconds=patience
            )
            if not stage.access.is_block:
                self._mount(cluster, stage, device, half_formatted, context)
        except Exception:
            if mounts.at(stage.path) is None:  # a failed stage is not unstaged, and would block other nodes
                with suppress(ZonewiseError, OSError):
                    mapper.unmap(image, directory)
            raise

    def _mount(
        self, cluster: CephCluster, stage: StageRecord, device: str, half_formatted: bool, context: Mapping[str, str]
    ) -> None:
        kind = self._filesystem(cluster, stage, device, half_formatted, _split_options(context.get("mkfsOptions", "")))
        if not stage.access.is_read_only:
            filesystems.check(device, kind)
            filesystems.grow_unmounted(device, kind)
        options = filesystems.mount_options(kind, read_only=stage.access.is_read_only)
        Path(stage.path).mkdir(parents=True, exist_ok=True)
        mounts.mount(device, stage.path, kind, [*options, *stage.access.flags])
        crash_if_armed(CrashPoint.STAGE_MOUNTED)
        if not stage.access.is_read_only:
            filesystems.grow_mounted(device, stage.path, kind)

    def unstage(self, stage: StageRecord, directory: Path) -> None:
        mounts.unmount(stage.path)
        crash_if_armed(CrashPoint.UNSTAGE_UNMOUNTED)
        for mapper in self._mappers_of(stage, directory):
            mapper.unmap(_image(stage), directory)

    def release(self, stage: StageRecord, directory: Path) -> None:
        """Detach what a daemon that has ended left attached."""
        mapper = self._mappers[stage.mapper]
        if not mapper.is_open(_image(stage), directory):
            mapper.unmap(_image(stage), directory)

    def device(self, stage: StageRecord, directory: Path) -> str | None:
        devices = (mapper.device(_image(stage), directory) for mapper in self._mappers_of(stage, directory))
        return next(devices, None)

    def _mappers_of(self, stage: StageRecord, directory: Path) -> list[Mapper]:
        """The mapper on record; without a record those that have a device of the image."""
        if stage.mapper:
            return [self._mappers[stage.mapper]]
        known = (mapper for mapper in self._mappers.values() if not mapper.missing())
        return [mapper for mapper in known if mapper.device(_image(stage), directory)]

    def expand(self, stage: StageRecord, directory: Path) -> int:
        """The size of the device, after device and file system have grown to the size of the image."""
        device = self.device(stage, directory)
        if device is None:
            raise CsiError(
                GrpcCode.FAILED_PRECONDITION, f"volume {stage.volume} is not mapped on this node: stage it again"
            )
        self._mappers[stage.mapper].refresh(device, directory)
        if not stage.access.is_block and not stage.access.is_read_only:
            mount = mounts.at(stage.path)
            if mount is None:
                raise CsiError(
                    GrpcCode.FAILED_PRECONDITION,
                    f"volume {stage.volume} is not mounted at {stage.path}: stage it again",
                )
            filesystems.grow_mounted(device, stage.path, mount.filesystem)
        return filesystems.device_bytes(device)

    def problem(self, stage: StageRecord, directory: Path) -> str:
        return self._mappers[stage.mapper].problem(directory)

    def _check_exclusive(
        self, cluster: CephCluster, stage: StageRecord, *, own_clients: int, patience_seconds: float
    ) -> bool:
        """Whether mkfs was interrupted. Raises if the image does not exist, or if other clients have it open."""
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                with (
                    cluster.doing(f"reading the state of image {stage.pool}/{stage.image}"),
                    reading(cluster.ioctx(stage.pool), stage.image) as image,
                ):
                    watchers = {watcher["addr"] for watcher in image.watchers_list()}
                    lockers = {locker[2] for locker in (image.list_lockers() or {}).get("lockers", ())}
                    half_formatted = FORMATTING in dict(image.metadata_list())
            except CsiError as error:
                if error.code is not GrpcCode.NOT_FOUND:
                    raise
                message = f"volume {stage.volume}: image {stage.pool}/{stage.image} does not exist"
                raise CsiError(GrpcCode.NOT_FOUND, message) from error
            conflicting = conflicting_clients(stage.access, watchers, lockers)
            if len(conflicting) <= own_clients:
                return half_formatted
            # A controller that snapshots or resizes it also opens it for a moment.
            if time.monotonic() > deadline:
                raise CsiError(GrpcCode.FAILED_PRECONDITION, in_use_message(stage, conflicting))
            time.sleep(_POLL_SECONDS)

    def _filesystem(
        self, cluster: CephCluster, stage: StageRecord, device: str, half_formatted: bool, mkfs_options: Sequence[str]
    ) -> str:
        """The type of the file system on the device; created if the device is blank."""
        current = "" if half_formatted else filesystems.detect(device)
        requested = stage.access.filesystem or current or filesystems.DEFAULT
        if current == requested:
            return current
        if current:
            raise CsiError(
                GrpcCode.INVALID_ARGUMENT,
                f"volume {stage.volume} contains {current}, not {requested}: set fsType to {current}, or use a new volume",
            )
        if stage.access.is_read_only:
            raise CsiError(
                GrpcCode.FAILED_PRECONDITION,
                f"volume {stage.volume} has no file system and is read-only: stage it writable first",
            )
        _set_formatting(cluster, stage, formatting=True)
        crash_if_armed(CrashPoint.STAGE_FORMATTING)
        filesystems.mkfs(device, requested, mkfs_options)
        crash_if_armed(CrashPoint.STAGE_FORMATTED)
        _set_formatting(cluster, stage, formatting=False)
        _log.info("file system created", volume=stage.volume, type=requested)
        return requested


def conflicting_clients(
    access: VolumeAccess, watchers: AbstractSet[str], lockers: AbstractSet[str]
) -> AbstractSet[str]:
    """Clients that conflict with the access: for a writer all clients, for a reader only writers.

    Every client with the image open watches it, also a reader whose mapper opens it for writing. A writer holds its
    lock as well; the lock of a client without a watch is that of a dead client.
    """
    if not access.is_single_node:
        return frozenset()
    return watchers & lockers if access.is_read_only else watchers


def in_use_message(stage: StageRecord, clients: AbstractSet[str]) -> str:
    return (
        f"volume {stage.volume} is open on another node ({', '.join(sorted(clients))}), which {stage.access.mode} forbids: "
        "unstage it there first, or fence that node with `ceph osd blocklist add` if it is lost"
    )


def _split_options(options: str) -> list[str]:
    try:
        return shlex.split(options)
    except ValueError as error:
        raise CsiError(GrpcCode.INVALID_ARGUMENT, f"parameter mkfsOptions: {error}") from error


def _image(stage: StageRecord) -> MappedImage:
    return MappedImage(stage.pool, stage.image)


def _set_formatting(cluster: CephCluster, stage: StageRecord, *, formatting: bool) -> None:
    import rbd  # noqa: PLC0415 - a system package, present where Ceph is

    with (
        cluster.doing(f"setting metadata of image {stage.pool}/{stage.image}"),
        rbd.Image(cluster.ioctx(stage.pool), stage.image) as image,
    ):
        if formatting:
            image.metadata_set(FORMATTING, stage.access.filesystem or filesystems.DEFAULT)
        else:
            image.metadata_remove(FORMATTING)
