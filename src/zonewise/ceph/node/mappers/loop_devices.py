"""Loop devices: found by the file behind them, which the kernel tells in sysfs."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

from zonewise.ceph.node import host_command
from zonewise.ceph.node.mappers import MapperError

_DEVICES = Path("/sys/block")
_DETACHED_WITHIN_SECONDS = 10.0
_POLL_SECONDS = 0.02


def find(file: Path) -> str | None:
    """The device of this file, if it has one."""
    wanted = os.path.realpath(file.parent) + f"/{file.name}"
    for backing in _DEVICES.glob("loop*/loop/backing_file"):
        try:
            if backing.read_text().rstrip("\n") == wanted:
                return f"/dev/{backing.parts[3]}"
        except OSError:
            continue  # detached while we looked
    return None


def attach(file: Path, *, read_only: bool) -> str:
    found = find(file)
    if found is not None:
        return found
    _, output = host_command.run(
        "losetup", "--find", "--show", "--direct-io=on", *(["--read-only"] if read_only else []), str(file)
    )
    device = output.strip().splitlines()[-1]
    _ensure_node(device)
    if not read_only:
        _make_writable(device)
    return device


def refresh(device: str, size: int) -> None:
    """Let it see that its file has grown. The first look may still see the old size."""
    deadline = time.monotonic() + _DETACHED_WITHIN_SECONDS
    while True:
        host_command.run("losetup", "--set-capacity", device)
        if size_bytes(device) >= size:
            return
        if time.monotonic() > deadline:
            raise MapperError(f"{device} has {size_bytes(device)} bytes although its image has {size}")
        time.sleep(_POLL_SECONDS)


def detach(file: Path) -> None:
    """The kernel detaches a device when its last user closes it: here that is waited for, so that no write comes late."""
    device = find(file)
    if device is None:
        return
    _make_writable(device)
    host_command.run("losetup", "--detach", device)
    deadline = time.monotonic() + _DETACHED_WITHIN_SECONDS
    while find(file) is not None:
        if time.monotonic() > deadline:
            raise MapperError(
                f"{device} is still in use by somebody on this node: end what has it open, then try again"
            )
        time.sleep(_POLL_SECONDS)


def size_bytes(device: str) -> int:
    return int((_DEVICES / Path(device).name / "size").read_text()) * 512


def _make_writable(device: str) -> None:
    """The kernel keeps the mark of a device that was set read-only even when its next owner is somebody else."""
    if (_DEVICES / Path(device).name / "ro").read_text().strip() != "0":
        host_command.run("blockdev", "--setrw", device)


def _ensure_node(device: str) -> None:
    """In a container with a /dev of its own nobody makes nodes for devices that are new."""
    path = Path(device)
    if path.exists():
        return
    major, minor = (_DEVICES / path.name / "dev").read_text().split(":")
    os.mknod(path, stat.S_IFBLK | 0o600, os.makedev(int(major), int(minor)))
