"""Daemons of volumes: known by their lock, signalled only while they hold it, in a cgroup of their own."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from zonewise.ceph.node import cgroups, daemons, mounts
from zonewise.errors import UsageError

CGROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    daemons.kill(tmp_path)


def test_repeated_starts_run_one_daemon(daemon: Path) -> None:
    command = ["sh", "-c", "touch ready; exec sleep 1000"]
    for _ in range(3):
        daemons.start(daemon, command, (daemon / "ready").exists)
    process_id = daemons.pid(daemon)
    assert process_id is not None
    assert Path(f"/proc/{process_id}/cwd").readlink() == daemon
    daemons.kill(daemon)
    assert not daemons.running(daemon)
    assert daemons.pid(daemon) is None


def test_daemon_outlives_a_killed_parent(daemon: Path) -> None:
    program = (
        "import os, pathlib, signal, sys; from zonewise.ceph.node import daemons; d = pathlib.Path(sys.argv[1])\n"
        "daemons.start(d, ['sh', '-c', 'touch ready; exec sleep 1000'], (d / 'ready').exists)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    result = subprocess.run([sys.executable, "-c", program, str(daemon)], check=False)
    assert result.returncode == -signal.SIGKILL
    assert daemons.running(daemon)


def test_early_exit_is_reported_with_its_output(daemon: Path) -> None:
    with pytest.raises(daemons.DaemonError, match="no such image"):
        daemons.start(daemon, ["sh", "-c", "echo no such image >&2; exit 1"], lambda: False)


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """A name for a cgroup, which is removed from all hierarchies at the end."""
    path = CGROUPS / f"zonewise-{uuid.uuid4().hex[:8]}"
    yield path
    for directory in cgroups.locate(path, mounts.table()):
        if directory.exists():
            os.rmdir(directory)  # noqa: PTH106 - a cgroup


@pytest.fixture
def container(cgroup: Path) -> Iterator[list[Path]]:
    """A container's cgroups, in all hierarchies."""
    directories = cgroups.locate(cgroup.with_name(f"{cgroup.name}-container"), mounts.table())
    cgroups.create(directories)
    yield directories
    for directory in directories:
        os.rmdir(directory)  # noqa: PTH106 - a cgroup


PLUGIN = """
import os, pathlib, sys
from zonewise.ceph.node import cgroups, daemons
directory, cgroup, *container = map(pathlib.Path, sys.argv[1:])
for one in container:
    (one / "cgroup.procs").write_text(str(os.getpid()))
daemons.start(directory, ["sh", "-c", "touch ready; exec sleep 1000"], (directory / "ready").exists, cgroup=cgroups.prepare(cgroup))
sys.stdin.read()
"""


def test_daemon_outlives_the_container_of_its_plugin(daemon: Path, cgroup: Path, container: list[Path]) -> None:
    """A runtime kills what is in any cgroup of a container, of whichever hierarchy."""
    arguments = [str(daemon), str(cgroup), *map(str, container)]
    with subprocess.Popen([sys.executable, "-c", PLUGIN, *arguments], stdin=subprocess.PIPE) as plugin:
        while not daemons.running(daemon) or not (daemon / "ready").exists():
            assert plugin.poll() is None
            time.sleep(0.02)
        members = {int(pid) for one in container for pid in (one / "cgroup.procs").read_text().split()}
        assert plugin.pid in members
        for process_id in members:
            os.kill(process_id, signal.SIGKILL)
    assert daemons.running(daemon)
    daemons.kill(daemon)


def test_container_that_daemons_cannot_leave_is_refused(daemon: Path, cgroup: Path, container: list[Path]) -> None:
    inside = container[0] / cgroup.name
    arguments = [str(daemon), str(inside), *map(str, container)]
    try:
        result = subprocess.run(
            [sys.executable, "-c", PLUGIN, *arguments], input="", capture_output=True, text=True, check=False
        )
    finally:
        os.rmdir(inside)  # noqa: PTH106 - a cgroup
    assert "daemons would stay in this container's cgroup" in result.stderr
    assert not daemons.running(daemon)


def test_directory_without_cgroups_is_refused(tmp_path: Path) -> None:
    """It would be created there as plain files, and keep nobody alive."""
    with pytest.raises(UsageError, match="no cgroup file system"):
        cgroups.prepare(tmp_path / "zonewise-csi")
