"""Root file system of a node: the machine's directories read-only, and its own /etc, /var, /run, /tmp, /proc, /sys.

Kubelet, containerd, CNI and pods with hostPath volumes find the default paths of a node, and nothing that they write
reaches the machine: /var and /tmp are directories of the lab, the rest is memory. All mounts are of the node's mount
namespace and go with its last process. The machine's other mounts are not in it, so none is kept in use by a node.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from zonewise.lab.decide.kubelet_config import KERNEL_SETTINGS
from zonewise.lab.nodes import mounts

_OWN: Final = frozenset({"dev", "etc", "proc", "run", "sys", "tmp", "var"})
_VAR: Final = ("lib", "log", "tmp", "cache", "spool")
_IN_MEMORY: Final = "size=16m,mode=755"
_SHARED_BY_ALL: Final = 0o1777  # as /tmp


def enter(directory: Path, etc: dict[str, str], writable: Path, readable: Sequence[Path]) -> None:
    """Make the node's root below `directory` and move into it. `etc` are files; the paths given stay where they are."""
    root = directory / "root"
    root.mkdir(exist_ok=True)
    mounts.mount("tmpfs", root, _IN_MEMORY)
    _bind_machine(root)
    _make_own(root, directory, etc)
    points = _mount_points()
    for path in readable:
        _keep(root, path, points, read_only=True)
    _keep(root, writable, points, read_only=False)
    mounts.change_root(root)
    mounts.share(Path("/"))


def _bind_machine(root: Path) -> None:
    """Only the file system of each directory, without what is mounted below it."""
    for entry in Path("/").iterdir():
        target = root / entry.name
        if entry.name in _OWN:
            continue
        if entry.is_symlink():
            target.symlink_to(entry.readlink())
        elif entry.is_dir():
            target.mkdir()
            mounts.bind(entry, target, read_only=True)


def _make_own(root: Path, directory: Path, etc: dict[str, str]) -> None:
    for name in _OWN:
        (root / name).mkdir()
    _make_etc(root, etc)
    for name in ("var", "tmp"):
        (directory / name).mkdir(exist_ok=True)
        mounts.bind(directory / name, root / name)
    (root / "tmp").chmod(_SHARED_BY_ALL)
    for name in _VAR:
        (root / "var" / name).mkdir(exist_ok=True)
    (root / "var/tmp").chmod(_SHARED_BY_ALL)
    for name in ("run", "lock"):
        if not (root / "var" / name).is_symlink():
            (root / "var" / name).symlink_to({"run": "/run", "lock": "/run/lock"}[name])
    mounts.mount("tmpfs", root / "run", "mode=755")
    mounts.bind(Path("/dev"), root / "dev", recursive=True)
    mounts.mount("tmpfs", root / "dev/shm", f"mode={_SHARED_BY_ALL:o}")
    mounts.mount("proc", root / "proc")
    _hide_settings(root)
    _keep_whole_proc(root)
    mounts.mount("sysfs", root / "sys")
    mounts.bind(Path("/sys/fs/cgroup"), root / "sys/fs/cgroup", recursive=True)


def _hide_settings(root: Path) -> None:
    """Of the machine's kernel: the kubelet finds the values that it wants in files of the node, and sets none."""
    for name, value in KERNEL_SETTINGS.items():
        setting, file = root / "proc/sys" / name, root / ".sysctl" / name
        if setting.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{value}\n")
            mounts.bind(file, setting)


def _keep_whole_proc(root: Path) -> None:
    """Pods with `hostUsers: false` get a /proc only where one without anything mounted on it exists; see mount_too_revealing."""
    (root / ".proc").mkdir()
    mounts.mount("proc", root / ".proc")


def _make_etc(root: Path, etc: dict[str, str]) -> None:
    """The machine's, with changes in memory."""
    upper, work = root / ".etc/upper", root / ".etc/work"
    upper.mkdir(parents=True)
    work.mkdir()
    mounts.mount("overlay", root / "etc", f"lowerdir=/etc,upperdir={upper},workdir={work}")
    for name, text in etc.items():
        file = root / "etc" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)  # it may be a link into /run
        file.write_text(text)


def _keep(root: Path, path: Path, points: frozenset[Path], *, read_only: bool) -> None:
    """Bind what `path` is on from the top down, as a home directory may be a file system of its own."""
    for step in _steps(path, points):
        target = root / step.relative_to("/")
        target.mkdir(parents=True, exist_ok=True)
        mounts.bind(step, target, read_only=read_only or step != path)


def _steps(path: Path, points: frozenset[Path]) -> Iterator[Path]:
    if path.parts[1] not in _OWN:
        yield from (parent for parent in reversed(path.parents) if parent in points and parent != Path("/"))
    yield path


def _mount_points() -> frozenset[Path]:
    """See proc_pid_mountinfo(5); blanks in paths are escaped."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return frozenset(Path(line.split()[4].encode().decode("unicode_escape")) for line in lines)


def host_name(name: str) -> None:
    """Of the calling process's UTS namespace."""
    Path("/proc/sys/kernel/hostname").write_text(name)
    os.environ["HOSTNAME"] = name
