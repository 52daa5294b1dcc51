"""Mount ownership: whether a mount is a volume of this driver, judged by the mount alone, since its record may be lost.

Paths come from requests. A mount of anything else is never unmounted.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from zonewise.ceph.node import mounts
from zonewise.ceph.node.mounts import Mount

_DEVICES: Final = Path("/sys/dev/block")
_CLIENTS: Final = frozenset({"ceph", "fuse.ceph-fuse"})
_DEVICE_NODE_FILESYSTEMS: Final = frozenset({"devtmpfs", "tmpfs"})
"""A block volume is published by binding its device node, which is on one of these."""


def foreign_mount(point: str, state: Path) -> Mount | None:
    """A mount at this path that is not of this driver. `state` has the backing files of its loop devices."""
    path = mounts.canonical_path(point)
    return next((mount for mount in mounts.table() if mount.point == path and not _is_ours(mount, state)), None)


def _is_ours(mount: Mount, state: Path) -> bool:
    if mount.filesystem in _CLIENTS:
        return True
    device = _DEVICES / (_bound_device(mount.point) if mount.filesystem in _DEVICE_NODE_FILESYSTEMS else mount.device)
    if not device.exists():
        return False
    if device.resolve().name.startswith(("rbd", "nbd")):
        return True
    try:
        return (device / "loop" / "backing_file").read_text().startswith(f"{state.resolve()}/")
    except OSError:
        return False


def _bound_device(point: str) -> str:
    """major:minor of a bound block device node; "none" if it is something else."""
    status = os.lstat(point)
    if not stat.S_ISBLK(status.st_mode):
        return "none"
    return f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
