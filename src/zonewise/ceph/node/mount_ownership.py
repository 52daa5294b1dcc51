"""Whether what is mounted somewhere is a volume of this driver's, told by the mount alone: the record of it may be lost.

A path comes from a request. What stands there without being ours is never unmounted.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from zonewise.ceph.node import mounts
from zonewise.ceph.node.mounts import Mount

_DEVICES = Path("/sys/dev/block")
_CLIENTS = frozenset({"ceph", "fuse.ceph-fuse"})
_NODES_IN = frozenset({"devtmpfs", "tmpfs"})
"""Where a device's node is: bound into a pod, it is the published block volume."""


def stranger(point: str, state: Path) -> Mount | None:
    """What is mounted there and not ours. `state` is where the files of our loop devices are."""
    path = mounts.where(point)
    return next((mount for mount in mounts.table() if mount.point == path and not _is_ours(mount, state)), None)


def _is_ours(mount: Mount, state: Path) -> bool:
    if mount.filesystem in _CLIENTS:
        return True
    device = _DEVICES / (_bound_device(mount.point) if mount.filesystem in _NODES_IN else mount.device)
    if not device.exists():
        return False
    if device.resolve().name.startswith(("rbd", "nbd")):
        return True
    try:
        return (device / "loop" / "backing_file").read_text().startswith(f"{state.resolve()}/")
    except OSError:
        return False


def _bound_device(point: str) -> str:
    """Its number as sysfs has it; "none" where no block device is bound."""
    found = os.lstat(point)
    if not stat.S_ISBLK(found.st_mode):
        return "none"
    return f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
