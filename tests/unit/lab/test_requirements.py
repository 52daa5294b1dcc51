"""What a machine lacks for nodes: a line for each lack, which says what to do."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import PurePath
from typing import Any

import pytest

from zonewise.lab.decide import requirements
from zonewise.lab.decide.requirements import MachineFacts, lacks

MACHINE = MachineFacts(
    is_root=True,
    capabilities=(1 << 41) - 1,
    namespaces=frozenset({"cgroup", "mnt", "net", "pid", "uts"}),
    has_cgroups=True,
    has_overlay=True,
)
LACKS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "nothing": ({}, []),
    "root": ({"is_root": False, "capabilities": 0}, ["need root: run as root, or take --nodes 0"]),
    "a capability": ({"capabilities": 1 << 21}, ["need CAP_NET_ADMIN, .* --privileged"]),
    "both capabilities": ({"capabilities": 0}, ["need CAP_NET_ADMIN and CAP_SYS_ADMIN, .* --privileged"]),
    "namespaces": (
        {"namespaces": frozenset({"mnt", "net"})},
        ["pid namespaces, .* CONFIG_PID_NS", "uts namespaces, .* CONFIG_UTS_NS"],
    ),
    "cgroups": ({"has_cgroups": False}, ["cgroups, .*: mount -t cgroup2"]),
    "overlay": ({"has_overlay": False}, ["overlay, .* CONFIG_OVERLAY_FS"]),
    "a file to write to": (
        {"read_only": ("/sys/fs/cgroup",)},
        ["to write to /sys/fs/cgroup, which is read-only: .* --privileged"],
    ),
    "another file system than overlay": (
        {"on_overlay": ("ZONEWISE_CACHE", "ZONEWISE_STATE")},
        [
            r"\$ZONEWISE_CACHE on another file system .* a volume",
            r"\$ZONEWISE_STATE on another file system .* a volume",
        ],
    ),
    "packages": ({"missing_packages": ("iptables", "runc")}, ["apt-get install iptables runc"]),
    "root and cgroups": ({"is_root": False, "has_cgroups": False}, ["root", "cgroups"]),
}


@pytest.mark.parametrize(("changes", "expected"), LACKS.values(), ids=LACKS)
def test_each_lack_is_a_line_with_what_to_do(changes: dict[str, Any], expected: list[str]) -> None:
    lines = list(lacks(replace(MACHINE, **changes)))
    assert len(lines) == len(expected)
    for line, pattern in zip(lines, expected, strict=True):
        assert "\n" not in line
        assert re.search(pattern, line)


def test_capabilities_are_read_from_the_process_status() -> None:
    status = "Name:\tpython: x\nCapPrm:\t000001ffffffffff\nCapEff:\t0000000000201000\n"
    assert requirements.effective_capabilities(status) == 1 << 12 | 1 << 21
    assert requirements.effective_capabilities("Name:\tpython\n") == 0


def test_file_systems_are_found_by_their_whole_name() -> None:
    assert requirements.has_filesystem("overlay", "nodev\tproc\n\text4\nnodev\toverlay\n")
    assert not requirements.has_filesystem("overlay", "nodev\toverlayfs\n")


MOUNTINFO = """\
21 1 0:20 / / rw - overlay overlay rw,lowerdir=/a
22 21 0:21 / /dev/shm rw shared:3 - tmpfs tmpfs rw
23 21 8:1 / /root/my\\040cache rw - ext4 /dev/vda rw
24 21 8:2 / /data rw master:1 - ext4 /dev/vdb rw
25 24 0:30 / /data rw - xfs /dev/vdc rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/root/.cache/zonewise", "overlay"),
        ("/dev/shm", "tmpfs"),
        ("/dev/shm2", "overlay"),
        ("/root/my cache/zonewise", "ext4"),
        ("/data/below/it", "xfs"),
    ],
)
def test_file_system_of_a_path_is_that_of_the_nearest_and_last_mount(path: str, kind: str) -> None:
    assert requirements.filesystem_of(PurePath(path), MOUNTINFO) == kind
