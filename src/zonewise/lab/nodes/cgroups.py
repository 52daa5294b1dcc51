"""Cgroups of nodes: make, join, remove. In every hierarchy of the machine, v1 and v2 (`decide.cgroup_hierarchies`)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
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


def end(lab: str) -> None:
    """End every process in the lab's cgroups, frozen ones too, and wait until all have gone. Fine when there are none."""
    roots = _roots(lab)
    _until(lambda: not _kill(roots), roots)


def remove(lab: str) -> None:
    """End every process in the lab's cgroups, wait until all have gone, and remove the cgroups. Fine when there are none."""
    roots = _roots(lab)
    _until(lambda: _remove(roots), roots)


def _roots(lab: str) -> list[Path]:
    return [hierarchy.path / lab_cgroup(lab) for hierarchy in known()]


def _until(holds: Callable[[], bool], roots: Sequence[Path]) -> None:
    deadline = time.monotonic() + _EMPTY_WITHIN_SECONDS
    while not holds():
        if time.monotonic() > deadline:
            left = ", ".join(str(root) for root in roots if root.exists())
            raise CgroupError(f"{left} can't be removed: processes {sorted(_all(roots))} do not end after SIGKILL")
        time.sleep(0.02)


def _remove(roots: Sequence[Path]) -> bool:
    _kill(roots)
    for cgroup in _tree(roots):
        with suppress(OSError):  # processes in it are ending
            cgroup.rmdir()
    return not any(root.exists() for root in roots)


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


def _kill(roots: Sequence[Path]) -> set[int]:
    """The processes that it found. A process is in a cgroup of each hierarchy, and frozen by one of them."""
    _thaw(roots)
    for root in roots:
        with suppress(OSError):  # v1, or a kernel before 5.14, or it has gone
            (root / "cgroup.kill").write_text("1")
    left = _all(roots)
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)  # reap it if it is ours
    return left


def _thaw(roots: Sequence[Path]) -> None:
    """v1: SIGKILL does not end what is frozen, and a runc that is killed while it kills or pauses leaves its container so."""
    for cgroup in _tree(roots):
        state = cgroup / "freezer.state"
        with suppress(OSError):  # it has gone
            if state.exists():
                state.write_text("THAWED")


def _all(roots: Sequence[Path]) -> set[int]:
    return {pid for cgroup in _tree(roots) for pid in _pids(cgroup)}


def _pids(cgroup: Path) -> list[int]:
    """Without 0: that is a process of a namespace that we don't see."""
    try:
        return [pid for pid in map(int, (cgroup / _PROCESSES).read_text().split()) if pid]
    except OSError:  # it has gone
        return []


def _tree(roots: Sequence[Path]) -> Iterator[Path]:
    """Children before their parents."""
    for root in roots:
        for directory, _, _ in os.walk(root, topdown=False):
            yield Path(directory)
