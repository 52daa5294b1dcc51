"""Reading of clones while librbd's threads are preempted: a clone that is closed too early aborts the process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.preload import compile_preload
from support.process import PROGRAMS
from zonewise.lab.ceph.cluster import LabCeph

LONG = os.environ.get("ZONEWISE_FAULTS") == "long"


@pytest.fixture(scope="module")
def slow_locks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_preload("slow_locks.c", tmp_path_factory.mktemp("preload"))


def read_clones(ceph: LabCeph, preload: Path, how: str, seconds: float) -> subprocess.CompletedProcess[str]:
    """MALLOC_PERTURB_ overwrites freed memory, so that a thread which uses it fails."""
    return subprocess.run(
        [sys.executable, PROGRAMS / "read_clones.py", ceph.conf, ceph.pool("zone-a"), how, str(seconds)],
        env={**os.environ, "LD_PRELOAD": str(preload), "MALLOC_PERTURB_": "90"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.timeout(600)
def test_reading_clones_never_aborts_the_process(ceph_cluster: LabCeph, slow_locks: Path) -> None:
    result = read_clones(ceph_cluster, slow_locks, "reading", 300 if LONG else 15)
    assert result.returncode == 0, result.stderr[-4000:]
    assert int(result.stdout) > 0


@pytest.mark.skipif(not LONG, reason="the other test fails without the wait, too")
def test_librbd_aborts_on_clones_closed_at_once(ceph_cluster: LabCeph, slow_locks: Path) -> None:
    """If this fails, librbd is mended, and `librbd.reading` need not wait any more."""
    assert read_clones(ceph_cluster, slow_locks, "bare", 120).returncode == -signal.SIGABRT
