"""Cgroups of daemons: found in every kind of host, and outside of the plugin's container."""

from pathlib import Path

import pytest

from zonewise.ceph.node import cgroups, mounts

V2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = (
    "25 23 0:22 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n"
    "26 25 0:23 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "27 25 0:24 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
HYBRID = V1 + "28 25 0:25 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("table", "path", "expected"),
    [
        pytest.param(V2, "/sys/fs/cgroup/own", ["/sys/fs/cgroup/own"], id="v2"),
        pytest.param(V2, "/sys/fs/cgroup/a/own", ["/sys/fs/cgroup/a/own"], id="v2, below another cgroup"),
        pytest.param(
            V1, "/sys/fs/cgroup/own", ["/sys/fs/cgroup/cpu,cpuacct/own", "/sys/fs/cgroup/memory/own"], id="v1"
        ),
        pytest.param(V1, "/sys/fs/cgroup/memory/own", ["/sys/fs/cgroup/memory/own"], id="one hierarchy of v1"),
        pytest.param(
            HYBRID,
            "/sys/fs/cgroup/own",
            [f"/sys/fs/cgroup/{name}/own" for name in ("cpu,cpuacct", "memory", "unified")],
            id="hybrid",
        ),
        pytest.param("25 23 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n", "/sys/fs/cgroup/own", [], id="no cgroups"),
        pytest.param(V2, "/tmp/own", [], id="elsewhere"),
    ],
)
def test_cgroup_is_located_in_all_hierarchies(table: str, path: str, expected: list[str]) -> None:
    assert cgroups.locate(Path(path), mounts.parse(table)) == [Path(one) for one in expected]


@pytest.mark.parametrize(
    ("container", "process", "is_host", "expected"),
    [
        pytest.param("0::/pods/x\n", "0::/own\n", True, [], id="left"),
        pytest.param("0::/pods/x\n", "0::/pods/x\n", True, ["v2"], id="not moved"),
        pytest.param("0::/pods/x\n", "0::/pods/x/own\n", True, ["v2"], id="below it"),
        pytest.param("0::/pods/x\n", "0::/pods/xy\n", True, [], id="beside it"),
        pytest.param("0::/\n", "0::/own\n", True, [], id="no container"),
        pytest.param("0::/\n", "0::/own\n", False, ["v2"], id="namespace of its own"),
        pytest.param("0::/\n", "0::/../own\n", False, [], id="left a namespace of its own"),
        pytest.param(
            "2:memory:/x\n1:cpu:/x\n0::/\n", "2:memory:/x\n1:cpu:/own\n0::/\n", True, ["memory"], id="one of v1"
        ),
    ],
)
def test_process_must_leave_every_cgroup_of_its_container(
    container: str, process: str, is_host: bool, expected: list[str]
) -> None:
    assert cgroups.inside(cgroups.parse(container), cgroups.parse(process), is_host=is_host) == expected
