"""Cgroup hierarchies of machines with v1, v2 and both."""

from __future__ import annotations

from pathlib import Path

import pytest

from zonewise.lab.decide.cgroup_hierarchies import Hierarchy, controllers_to_enable, hierarchies, node_cgroup

V1 = """\
sysfs /sys sysfs rw 0 0
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/cpuset cgroup rw,relatime,cpuset 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,relatime,xattr,name=systemd 0 0
"""
V2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid,nodev,noexec,relatime,nsdelegate 0 0\n"
HYBRID = f"{V1}cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n"
ELSEWHERE = f"{V2}cgroup /mnt/old cgroup rw,memory 0 0\ncgroup2 /sys/fs/cgroups cgroup2 rw 0 0\n"
ROOT = Path("/sys/fs/cgroup")
OLD = (
    Hierarchy(ROOT / "cpu,cpuacct", unified=False),
    Hierarchy(ROOT / "cpuset", unified=False, has_cpusets=True),
    Hierarchy(ROOT / "systemd", unified=False),
)
MACHINES = {
    "v1": (V1, OLD),
    "v2": (V2, (Hierarchy(ROOT, unified=True),)),
    "hybrid": (HYBRID, (*OLD, Hierarchy(ROOT / "unified", unified=True))),
    "mounts elsewhere do not count": (ELSEWHERE, (Hierarchy(ROOT, unified=True),)),
    "no cgroups": ("proc /proc proc rw 0 0\n", ()),
}


@pytest.mark.parametrize(("mounts", "expected"), MACHINES.values(), ids=MACHINES)
def test_hierarchies_follow_from_the_mounts(mounts: str, expected: tuple[Hierarchy, ...]) -> None:
    assert hierarchies(mounts) == expected


def test_cgroups_of_labs_and_nodes_are_apart() -> None:
    assert node_cgroup("shop", "zone-a-1") == "zonewise-shop/zone-a-1"
    assert len({node_cgroup(lab, node) for lab in ("a", "b") for node in ("x", "y")}) == 4


CONTROLLERS = {
    "all that the kubelet uses": (
        "cpuset cpu io memory hugetlb pids misc",
        "",
        ["cpu", "cpuset", "hugetlb", "memory", "pids"],
    ),
    "without those enabled before": ("cpu memory pids", "memory pids", ["cpu"]),
    "none that the machine lacks": ("cpu", "", ["cpu"]),
    "nothing where all are enabled": ("cpu io\n", "cpu\n", []),
}


@pytest.mark.parametrize(("available", "enabled", "expected"), CONTROLLERS.values(), ids=CONTROLLERS)
def test_controllers_are_passed_on_to_nodes(available: str, enabled: str, expected: list[str]) -> None:
    assert controllers_to_enable(available, enabled) == expected
