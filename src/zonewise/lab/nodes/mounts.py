"""Mounts in the calling process's own mount namespace, by system call: a node's root takes thirty of them. See mount(2)."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from zonewise.errors import ZonewiseError
from zonewise.lab.decide import image_plan

_RDONLY: Final = 0x1
_REMOUNT: Final = 0x20
_BIND: Final = 0x1000
_REC: Final = 0x4000
_SHARED: Final = 0x100000
_DETACH: Final = 2
_SYSTEM: Final = ("/bin", "/etc", "/lib", "/lib64", "/run", "/sbin", "/tmp", "/usr", "/var/lib", "/var/tmp")  # noqa: S108
"""Programs, certificates, name resolution, apt's lists and scratch space."""
_LINKED: Final = ("/etc/hosts", "/etc/resolv.conf")
"""May be links to another file system, as to /mnt/wsl on WSL."""
_libc = ctypes.CDLL(None, use_errno=True)


class MountError(ZonewiseError):
    pass


def mount(kind: str, target: Path, options: str = "", source: str = "") -> None:
    _mount(source or kind, target, kind, 0, options)


def bind(source: Path, target: Path, *, recursive: bool = False, read_only: bool = False) -> None:
    _mount(str(source), target, "", _BIND | (_REC if recursive else 0), "")
    if read_only:
        _mount("", target, "", _BIND | _REMOUNT | _RDONLY, "")


def share(target: Path) -> None:
    """From now on mounts of one container can be seen by others that ask for it, as volumes need."""
    _mount("", target, "", _SHARED | _REC, "")


def detach(target: Path) -> None:
    """With all that is mounted below it; what is still in use stays until it no longer is. See MNT_DETACH."""
    _check(_libc.umount2(os.fsencode(target), _DETACH), f"umount of {target}")


def detach_foreign(needed: Iterable[str]) -> None:
    """Detach what holds none of these paths, nor what they link to, nothing of the system and nothing of the kernel's.

    A mount namespace begins with a copy of every mount, and a copy keeps a volume busy after it was unmounted elsewhere.
    """
    kept = with_targets((*needed, tempfile.gettempdir(), *_SYSTEM, *_LINKED))
    for point in image_plan.foreign_mounts(Path("/proc/self/mountinfo").read_text(), kept):
        with suppress(MountError):  # it went with the one above it
            detach(Path(point))


def with_targets(paths: Iterable[str]) -> set[str]:
    """The paths, which hold the links, and where they lead to: mount points are named without links."""
    return {name for path in paths for name in (path, os.path.realpath(path))}


def change_root(root: Path) -> None:
    """Make this mount the root of the namespace and of every process in it. The old one goes, with all of its mounts."""
    os.chdir(root)
    _check(
        _libc.pivot_root(b".", b"."), f"pivot_root to {root}"
    )  # stacks the old root on the new one; see pivot_root(2)
    _check(_libc.umount2(b".", _DETACH), f"umount of what was the root before {root}")
    os.chdir("/")


def _mount(source: str, target: Path, kind: str, flags: int, options: str) -> None:
    arguments = (os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), os.fsencode(options))
    _check(_libc.mount(*arguments), f"mount of {source or 'flags'} at {target}")


def _check(result: int, action: str) -> None:
    if result != 0:
        raise MountError(f"{action} failed: {os.strerror(ctypes.get_errno())}")
