"""Loop devices of volumes that were mounted in a node when it ended: the kernel keeps them, though their files are gone.

Each had a file that a daemon of the node served (FUSE). With the node's mounts the file has lost its path, and with the
daemon its content, by which such devices are known. No process can read from them any more, so those of other labs may go, too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from pathlib import Path
from typing import Final

_PLUGIN: Final = "/var/lib/kubelet/plugins/ceph.zonewise.dev"
_DEVICES: Final = Path("/sys/block")
_GET_STATUS: Final = 0x4C05  # LOOP_GET_STATUS64, see loop(4)
_STATUS_BYTES: Final = 232
_TIMEOUT_SECONDS: Final = 60


def state_directory(lab: str, node: str) -> str:
    """Of the storage driver on a node, as its pods see it. A device is found by its file's path, and nodes share the kernel's list."""
    return f"{_PLUGIN}/{lab}.{node}"


def detach_dead() -> None:
    """Once the nodes have ended. Fine when there are none."""
    for device in without_path(_DEVICES):
        if _is_dead(device):
            subprocess.run(["losetup", "--detach", device], capture_output=True, check=False, timeout=_TIMEOUT_SECONDS)


def without_path(devices: Path) -> list[str]:
    files = sorted(devices.glob("loop*/loop/backing_file"))
    return [f"/dev/{file.parts[-3]}" for file in files if _text(file) == "/"]


def _is_dead(device: str) -> bool:
    try:
        handle = os.open(device, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # detached just now
        return False
    try:
        fcntl.ioctl(handle, _GET_STATUS, bytearray(_STATUS_BYTES))
    except OSError as error:
        return error.errno == errno.ENOTCONN
    finally:
        os.close(handle)
    return False


def _text(file: Path) -> str:
    try:
        return file.read_text().rstrip("\n")
    except OSError:  # detached just now
        return ""
