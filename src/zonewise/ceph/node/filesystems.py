"""File systems on block devices: detect, create, check and grow them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from zonewise.ceph.decide.access import FILESYSTEMS
from zonewise.ceph.node import host_command
from zonewise.errors import ZonewiseError

DEFAULT: Final = FILESYSTEMS[0]
_NOTHING_FOUND: Final = 2  # blkid(8)
_CORRECTED: Final = (0, 1)  # e2fsck(8): clean, or errors corrected
_SUPERBLOCK, _SUPERBLOCK_BYTES = 1024, 1024  # of ext4, see the kernel's Documentation/filesystems/ext4/super.rst
_EXT4_64BIT: Final = 0x80
_FORMAT_SECONDS: Final = 300.0
_PROBED_BYTES: Final = 1 << 20


class FilesystemError(ZonewiseError):
    pass


def detect(device: str) -> str:
    """The type of the file system on the device; empty if it is blank. Never uses blkid's cache.

    blkid also finds nothing if it can't read: so a device only counts as blank if it reads as zeros.
    """
    code, output = host_command.run("blkid", "--probe", "--output", "export", device, accept=(0, _NOTHING_FOUND))
    if code == _NOTHING_FOUND:
        return "" if is_blank(device) else "unknown"
    facts = dict(line.partition("=")[::2] for line in output.splitlines())
    return facts.get("TYPE") or facts.get("PTTYPE") or "unknown"


def is_blank(device: str) -> bool:
    """Whether start and end are zeros, as in an unwritten image. Raises OSError if they can't be read."""
    with Path(device).open("rb", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        for start in (0, max(0, size - _PROBED_BYTES)):
            file.seek(start)
            if any(file.read(_PROBED_BYTES)):
                return False
    return True


def mkfs(device: str, kind: str, extra_options: Sequence[str] = ()) -> None:
    """Without discarding first: a blank image has nothing to discard."""
    if kind == "xfs":
        host_command.run("mkfs.xfs", "-f", "-K", "-q", *extra_options, device, timeout_seconds=_FORMAT_SECONDS)
    else:
        extended = "nodiscard,lazy_itable_init=1,lazy_journal_init=1"
        host_command.run(
            "mkfs.ext4", "-F", "-q", "-m", "0", "-E", extended, *extra_options, device, timeout_seconds=_FORMAT_SECONDS
        )


def check(device: str, kind: str) -> None:
    """Before a writable mount. xfs replays its log on mount."""
    if kind == "ext4":
        host_command.run("e2fsck", "-p", device, accept=_CORRECTED, timeout_seconds=_FORMAT_SECONDS)


def grow_unmounted(device: str, kind: str) -> bool:
    """Whether it had to grow: after a clone into a larger volume, or an expansion while not staged."""
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
            if "Permission denied" not in error.output:
                raise
            raise FilesystemError(
                "growing a mounted ext4 needs the capability SYS_RESOURCE, which this process lacks: "
                "it grows when the volume is staged next"
            ) from error


def mount_options(kind: str, *, read_only: bool) -> list[str]:
    """nouuid: a clone has the UUID of its source. Read-only mounts must not replay the journal."""
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
    """Size of an ext4 file system, from its superblock."""
    blocks = int.from_bytes(superblock[0x4:0x8], "little")
    if int.from_bytes(superblock[0x60:0x64], "little") & _EXT4_64BIT:
        blocks |= int.from_bytes(superblock[0x150:0x154], "little") << 32
    return blocks << (10 + int.from_bytes(superblock[0x18:0x1C], "little"))


def _has_room(device: str) -> bool:
    with Path(device).open("rb", buffering=0) as file:
        file.seek(_SUPERBLOCK)
        size = ext4_bytes(file.read(_SUPERBLOCK_BYTES))
    return device_bytes(device) - size >= 1 << 20  # less than a block group's worth is not worth a pass over the disk
