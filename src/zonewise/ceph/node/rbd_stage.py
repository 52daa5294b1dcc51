"""RBD volumes on a node: an image becomes a device, the device a file system, that a mount at the staging path.

Each step is skipped when the kernel shows that it was done, so a call may be repeated after a crash at any point.
"""

from __future__ import annotations

import random
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from zonewise.ceph.crash_points import CrashPoint, reach
from zonewise.ceph.decide.access import VolumeAccess
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.node import filesystems, mounts
from zonewise.ceph.node.mappers import MappedImage, Mapper, MapperClient
from zonewise.ceph.node.stage_records import StageRecord
from zonewise.errors import ZonewiseError
from zonewise.log import get_logger

if TYPE_CHECKING:
    from zonewise.ceph.backend.cluster import CephCluster

log = get_logger(__name__)

FORMATTING = "zonewise.formatting"
"""In the image's metadata while a file system is being made: what a killed mkfs left is not mistaken for one."""

_OTHERS_GONE_WITHIN_SECONDS = 10.0
_POLL_SECONDS = 0.2
_LUCK = random.SystemRandom()


class RbdStager:
    def __init__(self, mapper: Mapper, known: Iterable[Mapper]) -> None:
        self.mapper = mapper
        self._known = {each.name: each for each in known}

    def mapper_named(self, name: str) -> Mapper:
        """The one that a class asks for, else the node's."""
        if not name:
            return self.mapper
        if name not in self._known:
            raise CsiError(GrpcCode.INVALID_ARGUMENT, f"mounter {name!r} is none of {', '.join(self._known)}")
        return self._known[name]

    def stage(self, cluster: CephCluster, stage: StageRecord, directory: Path, context: Mapping[str, str]) -> None:
        mapper, image = self._known[stage.mapper], _image(stage)
        if not mapper.holds(image, directory):
            self._look(cluster, stage, ours=0, patience_seconds=_OTHERS_GONE_WITHIN_SECONDS)
        device = mapper.map(MapperClient.of(cluster), image, directory, read_only=stage.access.is_read_only)
        reach(CrashPoint.STAGE_MAPPED)
        if any(mounts.at(each) for each in (stage.targets if stage.access.is_block else (stage.path,))):
            return
        try:
            # Another node may have looked at the same moment. Of two that are there now at least one sees the other and
            # lets go; for how long they wait for each other is drawn, so that both do not do so for ever.
            patience = _OTHERS_GONE_WITHIN_SECONDS * _LUCK.uniform(0.2, 1.0)
            half_formatted = self._look(
                cluster, stage, ours=0 if stage.access.is_read_only else 1, patience_seconds=patience
            )
            if not stage.access.is_block:
                self._mount(cluster, stage, device, half_formatted, context)
        except Exception:
            if mounts.at(stage.path) is None:  # nobody unstages what was never staged, and others may want it
                with suppress(ZonewiseError, OSError):
                    mapper.unmap(image, directory)
            raise

    def _mount(
        self, cluster: CephCluster, stage: StageRecord, device: str, half_formatted: bool, context: Mapping[str, str]
    ) -> None:
        kind = self._filesystem(cluster, stage, device, half_formatted, _words(context.get("mkfsOptions", "")))
        if not stage.access.is_read_only:
            filesystems.check(device, kind)
            filesystems.grow_unmounted(device, kind)
        options = filesystems.mount_options(kind, read_only=stage.access.is_read_only)
        Path(stage.path).mkdir(parents=True, exist_ok=True)
        mounts.mount(device, stage.path, kind, [*options, *stage.access.flags])
        reach(CrashPoint.STAGE_MOUNTED)
        if not stage.access.is_read_only:
            filesystems.grow_mounted(device, stage.path, kind)

    def unstage(self, stage: StageRecord, directory: Path) -> None:
        mounts.unmount(stage.path)
        reach(CrashPoint.UNSTAGE_UNMOUNTED)
        self._known[stage.mapper].unmap(_image(stage), directory)

    def device(self, stage: StageRecord, directory: Path) -> str | None:
        return self._known[stage.mapper].device(_image(stage), directory)

    def expand(self, stage: StageRecord, directory: Path) -> int:
        """The device's size, after both it and the file system on it have grown to the image's."""
        device = self.device(stage, directory)
        if device is None:
            raise CsiError(GrpcCode.FAILED_PRECONDITION, f"volume {stage.volume} is not mapped on this node")
        self._known[stage.mapper].refresh(device, directory)
        if not stage.access.is_block and not stage.access.is_read_only:
            mount = mounts.at(stage.path)
            if mount is None:
                raise CsiError(GrpcCode.FAILED_PRECONDITION, f"volume {stage.volume} is not mounted at {stage.path}")
            filesystems.grow_mounted(device, stage.path, mount.filesystem)
        return filesystems.device_bytes(device)

    def trouble(self, stage: StageRecord, directory: Path) -> str:
        return self._known[stage.mapper].trouble(directory)

    def _look(self, cluster: CephCluster, stage: StageRecord, *, ours: int, patience_seconds: float) -> bool:
        """Whether a file system was being made on it. Refuses an image that is missing, or that more have open than we."""
        import rbd  # noqa: PLC0415 - a system package, present where Ceph is

        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                with (
                    cluster.doing(f"looking at image {stage.pool}/{stage.image}"),
                    rbd.Image(cluster.ioctx(stage.pool), stage.image, read_only=True) as image,
                ):
                    watchers = {watcher["addr"] for watcher in image.watchers_list()}
                    lockers = {locker[2] for locker in (image.list_lockers() or {}).get("lockers", ())}
                    half_formatted = FORMATTING in dict(image.metadata_list())
            except CsiError as error:
                if error.code is not GrpcCode.NOT_FOUND:
                    raise
                message = f"volume {stage.volume} has no image {stage.pool}/{stage.image}"
                raise CsiError(GrpcCode.NOT_FOUND, message) from error
            others = strangers(stage.access, watchers, lockers)
            if len(others) <= ours:
                return half_formatted
            # A controller that snapshots or resizes it has it open for a moment, too.
            if time.monotonic() > deadline:
                raise CsiError(GrpcCode.FAILED_PRECONDITION, in_use(stage, others))
            time.sleep(_POLL_SECONDS)

    def _filesystem(
        self, cluster: CephCluster, stage: StageRecord, device: str, half_formatted: bool, more: Sequence[str]
    ) -> str:
        """The kind of what is on the device, made now if that is nothing."""
        found = "" if half_formatted else filesystems.found(device)
        wanted = stage.access.filesystem or found or filesystems.DEFAULT
        if found == wanted:
            return found
        if found:
            raise CsiError(
                GrpcCode.INVALID_ARGUMENT,
                f"volume {stage.volume} holds {found}, not {wanted}: ask for {found}, or for a new volume",
            )
        if stage.access.is_read_only:
            raise CsiError(GrpcCode.FAILED_PRECONDITION, f"volume {stage.volume} is blank, so there is nothing to read")
        _mark(cluster, stage, formatting=True)
        reach(CrashPoint.STAGE_FORMATTING)
        filesystems.make(device, wanted, more)
        reach(CrashPoint.STAGE_FORMATTED)
        _mark(cluster, stage, formatting=False)
        log.info("file system made", volume=stage.volume, kind=wanted)
        return wanted


def strangers(access: VolumeAccess, watchers: AbstractSet[str], lockers: AbstractSet[str]) -> AbstractSet[str]:
    """Whose having the image open forbids what is asked for: for a writer everybody, for a reader who writes.

    Who has it open watches it, mere readers too if their mapper opens it for writing. Who writes holds its lock as well;
    the lock of one that watches no more is that of the dead.
    """
    if not access.is_one_node:
        return frozenset()
    return watchers & lockers if access.is_read_only else watchers


def in_use(stage: StageRecord, others: AbstractSet[str]) -> str:
    return (
        f"volume {stage.volume} is open elsewhere ({', '.join(sorted(others))}), which {stage.access.mode} forbids: "
        "unstage it there first, or fence that node with `ceph osd blocklist add` if it is lost"
    )


def _words(options: str) -> list[str]:
    try:
        return shlex.split(options)
    except ValueError as error:
        raise CsiError(GrpcCode.INVALID_ARGUMENT, f"parameter mkfsOptions: {error}") from error


def _image(stage: StageRecord) -> MappedImage:
    return MappedImage(stage.pool, stage.image)


def _mark(cluster: CephCluster, stage: StageRecord, *, formatting: bool) -> None:
    import rbd  # noqa: PLC0415

    with (
        cluster.doing(f"marking image {stage.pool}/{stage.image}"),
        rbd.Image(cluster.ioctx(stage.pool), stage.image) as image,
    ):
        if formatting:
            image.metadata_set(FORMATTING, stage.access.filesystem or filesystems.DEFAULT)
        else:
            image.metadata_remove(FORMATTING)
