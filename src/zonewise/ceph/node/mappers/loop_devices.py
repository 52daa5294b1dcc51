"""Loop devices: found by their backing file in sysfs, attached, resized and detached."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Final

from zonewise.ceph.node import host_command
from zonewise.ceph.node.mappers import MapperError

_DEVICES: Final = Path("/sys/block")
_TIMEOUT_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.02


def find(file: Path) -> str | None:
    """The device of this file, if it has one."""
    path = os.path.realpath(file.parent) + f"/{file.name}"
    for backing in _DEVICES.glob("loop*/loop/backing_file"):
        try:
            if backing.read_text().rstrip("\n") == path:
                return f"/dev/{backing.parts[3]}"
        except OSError:
            continue  # just detached
    return None


def attach(file: Path, *, read_only: bool) -> str:
    existing = find(file)
    if existing is not None:
        return existing
    _, output = host_command.run(
        "losetup", "--find", "--show", "--direct-io=on", *(["--read-only"] if read_only else []), str(file)
    )
    device = output.strip().splitlines()[-1]
    _ensure_node(device)
    if not read_only:
        _make_writable(device)
    return device


def refresh(device: str, size: int) -> None:
    """Adapt it to its file, which has grown. The first attempt may still see the old size."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        host_command.run("losetup", "--set-capacity", device)
        if size_bytes(device) >= size:
            return
        if time.monotonic() > deadline:
            raise MapperError(f"{device} has {size_bytes(device)} bytes, but its image has {size}")
        time.sleep(_POLL_SECONDS)


def detach(file: Path) -> None:
    """Waits until the last user has closed the device and the kernel has detached it: no write may come late."""
    device = find(file)
    if device is None:
        return
    _make_writable(device)
    host_command.run("losetup", "--detach", device)
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while find(file) is not None:
        if time.monotonic() > deadline:
            raise MapperError(f"{device} is still open on this node: stop the process that uses it, then retry")
        time.sleep(_POLL_SECONDS)


def size_bytes(device: str) -> int:
    return int((_DEVICES / Path(device).name / "size").read_text()) * 512


def _make_writable(device: str) -> None:
    """The kernel keeps the read-only flag of a loop device for its next use."""
    if (_DEVICES / Path(device).name / "ro").read_text().strip() != "0":
        host_command.run("blockdev", "--setrw", device)


def _ensure_node(device: str) -> None:
    """A container with a /dev of its own gets no nodes for new devices."""
    path = Path(device)
    if path.exists():
        return
    major, minor = (_DEVICES / path.name / "dev").read_text().split(":")
    os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(int(major), int(minor)))
