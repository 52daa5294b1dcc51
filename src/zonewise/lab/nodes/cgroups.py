"""Cgroups of nodes: make, join, remove. In every hierarchy of the machine, v1 and v2 (`decide.cgroup_hierarchies`)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from zonewise.errors import ZonewiseError
from zonewise.lab.decide.cgroup_hierarchies import (
    CGROUPS,
    SYSTEM,
    Hierarchy,
    controllers_to_enable,
    hierarchies,
    lab_cgroup,
    node_cgroup,
)

_PROCESSES: Final = "cgroup.procs"
_EMPTY_WITHIN_SECONDS: Final = 15.0


class CgroupError(ZonewiseError):
    pass


def known() -> tuple[Hierarchy, ...]:
    return hierarchies(Path("/proc/mounts").read_text())


def make(lab: str, node: str) -> list[Path]:
    """The node's cgroups, one per hierarchy; returns those that its init joins."""
    found = known()
    if not found:
        raise CgroupError("nodes need cgroups, and none are mounted at /sys/fs/cgroup")
    for hierarchy in found:
        _make(hierarchy, f"{node_cgroup(lab, node)}/{SYSTEM}")
    return [hierarchy.path / node_cgroup(lab, node) / SYSTEM for hierarchy in found]


def join(cgroups: Sequence[Path]) -> None:
    """Move the calling process, and what it starts from now on."""
    for cgroup in cgroups:
        (cgroup / _PROCESSES).write_text("0")


def remove(lab: str) -> None:
    """End every process in the lab's cgroups, wait until all have gone, and remove the cgroups. Fine when there are none."""
    deadline = time.monotonic() + _EMPTY_WITHIN_SECONDS
    for hierarchy in known():
        root = hierarchy.path / lab_cgroup(lab)
        while root.exists():
            left = _kill(root)
            _remove_empty(root)
            if time.monotonic() > deadline:
                raise CgroupError(f"{root} can't be removed: processes {left} in it do not end after SIGKILL")
            if root.exists():
                time.sleep(0.02)


def _make(hierarchy: Hierarchy, name: str) -> None:
    cgroup = hierarchy.path
    for part in name.split("/"):
        if hierarchy.path == CGROUPS:
            _pass_controllers(cgroup)
        cgroup /= part
        cgroup.mkdir(exist_ok=True)
        if hierarchy.has_cpusets:
            _copy_cpusets(cgroup)


def _pass_controllers(cgroup: Path) -> None:
    """v2: to the cgroups below. The root of a container may be unable to, as it holds processes itself."""
    file = cgroup / "cgroup.subtree_control"
    for controller in controllers_to_enable((cgroup / "cgroup.controllers").read_text(), file.read_text()):
        try:
            file.write_text(f"+{controller}")
        except OSError as error:
            raise CgroupError(
                f"the controller {controller} can't be enabled in {file} ({error.strerror}): "
                "run the lab on the machine itself, or move the processes of that cgroup into one below it"
            ) from error


def _copy_cpusets(cgroup: Path) -> None:
    for file in ("cpuset.cpus", "cpuset.mems"):
        if not (cgroup / file).read_text().strip():
            (cgroup / file).write_text((cgroup.parent / file).read_text())


def _kill(root: Path) -> list[int]:
    left = [pid for cgroup in _tree(root) for pid in _pids(cgroup)]
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # reap it if it is ours
    return left


def _pids(cgroup: Path) -> list[int]:
    """Without 0: that is a process of a namespace that we don't see."""
    try:
        return [pid for pid in map(int, (cgroup / _PROCESSES).read_text().split()) if pid]
    except OSError:  # it has gone
        return []


def _remove_empty(root: Path) -> None:
    for cgroup in _tree(root):
        with suppress(OSError):  # processes in it are ending
            cgroup.rmdir()


def _tree(root: Path) -> Iterator[Path]:
    """Children before their parents."""
    for directory, _, _ in os.walk(root, topdown=False):
        yield Path(directory)
