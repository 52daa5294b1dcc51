"""Daemons of volumes: known by their lock, signalled only while they hold it, in a cgroup of their own."""

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


def test_daemon_runs_in_the_given_cgroup(daemon: Path) -> None:
    root = next(path for path in (CGROUPS / "unified", CGROUPS / "pids", CGROUPS) if (path / "cgroup.procs").exists())
    cgroup = root / f"zonewise-{uuid.uuid4().hex[:8]}"
    try:
        daemons.start(daemon, ["sh", "-c", "touch ready; exec sleep 1000"], (daemon / "ready").exists, cgroup=cgroup)
        assert (cgroup / "cgroup.procs").read_text().split() == [str(daemons.pid(daemon))]
    finally:
        daemons.kill(daemon)
        os.rmdir(cgroup)  # noqa: PTH106 - a cgroup
