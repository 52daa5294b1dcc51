"""Processes that carry volumes: known by the lock they hold, ended by name only while they hold it, in a cgroup of their own."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from zonewise.ceph.node import daemons

CGROUPS = Path("/sys/fs/cgroup")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    daemons.kill(tmp_path)


def test_one_runs_however_often_it_is_started(daemon: Path) -> None:
    command = ["sh", "-c", "touch ready; exec sleep 1000"]
    for _ in range(3):
        daemons.start(daemon, command, (daemon / "ready").exists)
    number = daemons.pid(daemon)
    assert number is not None
    assert Path(f"/proc/{number}/cwd").readlink() == daemon
    daemons.kill(daemon)
    assert not daemons.running(daemon)
    assert daemons.pid(daemon) is None


def test_it_outlives_who_started_it(daemon: Path) -> None:
    program = (
        "import os, pathlib, signal, sys; from zonewise.ceph.node import daemons; d = pathlib.Path(sys.argv[1])\n"
        "daemons.start(d, ['sh', '-c', 'touch ready; exec sleep 1000'], (d / 'ready').exists)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(daemon)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert daemons.running(daemon)


def test_what_ends_at_once_is_told_with_its_last_words(daemon: Path) -> None:
    with pytest.raises(daemons.DaemonError, match="no such image"):
        daemons.start(daemon, ["sh", "-c", "echo no such image >&2; exit 1"], lambda: False)


def test_it_lives_in_the_cgroup_that_it_is_given(daemon: Path) -> None:
    root = next(path for path in (CGROUPS / "unified", CGROUPS / "pids", CGROUPS) if (path / "cgroup.procs").exists())
    cgroup = root / f"zonewise-{uuid.uuid4().hex[:8]}"
    try:
        daemons.start(daemon, ["sh", "-c", "touch ready; exec sleep 1000"], (daemon / "ready").exists, cgroup=cgroup)
        assert (cgroup / "cgroup.procs").read_text().split() == [str(daemons.pid(daemon))]
    finally:
        daemons.kill(daemon)
        os.rmdir(cgroup)  # noqa: PTH106 - a directory of the kernel's
