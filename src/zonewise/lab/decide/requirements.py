"""Requirements of a lab's nodes: what a machine lacks, a sentence each with what to do. Pure.

Nodes are kubelet, containerd and runc in namespaces of the machine's kernel. Simulated nodes (kwok) need none of this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

_CAPABILITIES: Final = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
"""The bit of each; see capability.h. A container's root may lack them."""
_NAMESPACES: Final = {"net": "CONFIG_NET_NS", "pid": "CONFIG_PID_NS", "uts": "CONFIG_UTS_NS"}
_ELSEWHERE: Final = "start this container with --privileged, or run the lab on the machine itself"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    is_root: bool
    capabilities: int
    """Bits of the effective set."""
    namespaces: frozenset[str]
    """Kinds that the kernel has, as /proc/self/ns names them."""
    has_cgroups: bool
    has_overlay: bool
    """The file system, as a part of the kernel or as a module."""
    read_only: tuple[str, ...] = ()
    """Paths that nodes write to, and can't."""
    on_overlay: tuple[str, ...] = ()
    """Variables of the environment that name directories of the lab which are on the file system overlay."""
    missing_packages: tuple[str, ...] = ()


def lacks(facts: MachineFacts) -> Iterator[str]:
    if not facts.is_root:
        yield "nodes need root: run as root, or take --nodes 0 (with --kwok-nodes, perhaps)"
    elif missing := [name for name, bit in _CAPABILITIES.items() if not facts.capabilities >> bit & 1]:
        yield f"nodes need {' and '.join(missing)}, which root does not have here: {_ELSEWHERE}"
    for kind, option in _NAMESPACES.items():
        if kind not in facts.namespaces:
            yield f"nodes need {kind} namespaces, which this kernel does not have: use one with {option}"
    if not facts.has_cgroups:
        yield "nodes need cgroups, and none are mounted at /sys/fs/cgroup: mount -t cgroup2 none /sys/fs/cgroup"
    if not facts.has_overlay:
        yield "nodes need the file system overlay, which this kernel does not have: use one with CONFIG_OVERLAY_FS"
    for path in facts.read_only:
        yield f"nodes need to write to {path}, which is read-only: {_ELSEWHERE}"
    for variable in facts.on_overlay:
        yield (
            f"nodes need ${variable} on another file system than overlay, on which containerd can't lay images: "
            "in a container, set it to a directory of a volume"
        )
    if facts.missing_packages:
        names = " ".join(facts.missing_packages)
        yield f"nodes need packages that are not installed: apt-get install {names}, or their like on your system"


def effective_capabilities(status: str) -> int:
    """From the text of /proc/self/status; see proc_pid_status(5)."""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(fields.get("CapEff", "0"), 16)


def has_filesystem(name: str, filesystems: str) -> bool:
    """From the text of /proc/filesystems."""
    return name in filesystems.split()


def filesystem_of(path: PurePath, mountinfo: str) -> str:
    """Type of the file system that an absolute path without links is on; see proc_pid_mountinfo(5).

    Of several mounts on one point the last counts.
    """
    found, deepest = "", -1
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        point = PurePath(re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), before.split()[4]))
        if path.is_relative_to(point) and len(point.parts) >= deepest:
            found, deepest = after.split()[0], len(point.parts)
    return found
