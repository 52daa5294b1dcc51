"""Cgroup hierarchies of a machine: one (v2), one per controller (v1), or both (hybrid). Pure.

Kubelet and runc take a machine for v2 where /sys/fs/cgroup itself is that file system, and use v1 for every controller
otherwise. A node has a cgroup in every hierarchy, so that all of its processes can be found and removed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")
SYSTEM: Final = "system"
"""Below a node's own cgroup: its init, containerd, kubelet and the containers' shims. Containers are in the kubelet's `kubepods`."""


_USED: Final = frozenset({"cpu", "cpuset", "hugetlb", "memory", "pids"})
"""By the kubelet on v2, which refuses a cgroup that lacks one of them that the machine's root has."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    path: Path
    unified: bool
    has_cpusets: bool = False
    """v1 only: nothing can run in a new cgroup before it has processors and memory nodes."""


def hierarchies(mounts: str) -> tuple[Hierarchy, ...]:
    """From the text of /proc/mounts."""
    known = {}
    for line in mounts.splitlines():
        _, point, kind, options, *_ = line.split(" ")
        path = Path(point)
        if kind in ("cgroup", "cgroup2") and (path == CGROUPS or CGROUPS in path.parents):
            known[path] = Hierarchy(path, kind == "cgroup2", kind == "cgroup" and "cpuset" in options.split(","))
    return tuple(known.values())


def controllers_to_enable(available: str, enabled: str) -> list[str]:
    """v2: what a cgroup must pass on to those below, from its cgroup.controllers and cgroup.subtree_control."""
    return sorted(_USED & set(available.split()) - set(enabled.split()))


def lab_cgroup(lab: str) -> str:
    """Below every hierarchy's root. Labs' names are unique on a machine."""
    return f"zonewise-{lab}"


def node_cgroup(lab: str, node: str) -> str:
    return f"{lab_cgroup(lab)}/{node}"
