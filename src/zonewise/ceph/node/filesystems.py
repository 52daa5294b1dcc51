"""File systems on a block device: what is there, making one, checking it, and letting it fill a device that has grown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from zonewise.ceph.decide.access import FILESYSTEMS
from zonewise.ceph.node import host_command
from zonewise.errors import ZonewiseError

DEFAULT = FILESYSTEMS[0]
_NOTHING_FOUND = 2  # blkid(8)
_CORRECTED = (0, 1)  # e2fsck(8): clean, or errors corrected
_SUPERBLOCK, _SUPERBLOCK_BYTES = 1024, 1024  # of ext4, see the kernel's Documentation/filesystems/ext4/super.rst
_EXT4_64BIT = 0x80
_FORMAT_SECONDS = 300.0
_PROBED_BYTES = 1 << 20


class FilesystemError(ZonewiseError):
    pass


def found(device: str) -> str:
    """The kind of what is on the device; empty if it is blank. Its own look at the device, never a cached one.

    blkid finds nothing, too, where it can't read: so blank is only what reads as zeros.
    """
    code, output = host_command.run("blkid", "--probe", "--output", "export", device, accept=(0, _NOTHING_FOUND))
    if code == _NOTHING_FOUND:
        return "" if is_blank(device) else "unknown"
    facts = dict(line.partition("=")[::2] for line in output.splitlines())
    return facts.get("TYPE") or facts.get("PTTYPE") or "unknown"


def is_blank(device: str) -> bool:
    """Whether beginning and end are zeros, as of an image that nobody has written to; OSError where they can't be read."""
    with Path(device).open("rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        for start in (0, max(0, size - _PROBED_BYTES)):
            file.seek(start)
            if any(file.read(_PROBED_BYTES)):
                return False
    return True


def make(device: str, kind: str, more: Sequence[str] = ()) -> None:
    """Without discarding first: images are thin, and blank ones hold nothing to discard."""
    if kind == "xfs":
        host_command.run("mkfs.xfs", "-f", "-K", "-q", *more, device, timeout_seconds=_FORMAT_SECONDS)
    else:
        extended = "nodiscard,lazy_itable_init=1,lazy_journal_init=1"
        host_command.run(
            "mkfs.ext4", "-F", "-q", "-m", "0", "-E", extended, *more, device, timeout_seconds=_FORMAT_SECONDS
        )


def check(device: str, kind: str) -> None:
    """Before a writable mount. xfs does so itself, by replaying its log."""
    if kind == "ext4":
        host_command.run("e2fsck", "-p", device, accept=_CORRECTED, timeout_seconds=_FORMAT_SECONDS)


def grow_unmounted(device: str, kind: str) -> bool:
    """Whether it had to grow: a volume that was cloned into a larger one, or expanded while nobody had it."""
    if kind != "ext4" or not _has_room(device):
        return False
    host_command.run("e2fsck", "-f", "-p", device, accept=_CORRECTED, timeout_seconds=_FORMAT_SECONDS)
    host_command.run("resize2fs", device, timeout_seconds=_FORMAT_SECONDS)
    return True


def grow_mounted(device: str, point: str, kind: str) -> None:
    """No change if it fills its device."""
    if kind == "xfs":
        host_command.run("xfs_growfs", "-d", point, timeout_seconds=_FORMAT_SECONDS)
    elif kind == "ext4" and _has_room(device):
        try:
            host_command.run("resize2fs", device, timeout_seconds=_FORMAT_SECONDS)
        except host_command.CommandError as error:
            if "Permission denied" not in error.said:
                raise
            raise FilesystemError(
                "ext4 grows while mounted only with the capability SYS_RESOURCE, which this process lacks: "
                "it will grow when the volume is staged next"
            ) from error


def mount_options(kind: str, *, read_only: bool) -> list[str]:
    """A clone has the UUID of its source, and a reader must not replay a journal: others may read, too."""
    options = ["nouuid"] if kind == "xfs" else []
    if read_only:
        options += ["ro", "norecovery" if kind == "xfs" else "noload"]
    return options


def device_bytes(device: str) -> int:
    descriptor = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.lseek(descriptor, 0, os.SEEK_END)
    finally:
        os.close(descriptor)


def ext4_bytes(superblock: bytes) -> int:
    """How large an ext4 file system is, by its superblock."""
    blocks = int.from_bytes(superblock[0x4:0x8], "little")
    if int.from_bytes(superblock[0x60:0x64], "little") & _EXT4_64BIT:
        blocks |= int.from_bytes(superblock[0x150:0x154], "little") << 32
    return blocks << (10 + int.from_bytes(superblock[0x18:0x1C], "little"))


def _has_room(device: str) -> bool:
    with Path(device).open("rb", buffering=0) as file:
        file.seek(_SUPERBLOCK)
        size = ext4_bytes(file.read(_SUPERBLOCK_BYTES))
    return device_bytes(device) - size >= 1 << 20  # less than a block group's worth is not worth a pass over the disk
