"""Test runs clean up: in order, after an interrupt and after a kill; what tests leave behind fails the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.lab.leftovers import RUN_ID, processes_of
from support.lab.machine import until

ROOT = Path(__file__).parents[3]

LEAVES_A_PROCESS = """
import subprocess
def test_leak():
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
"""
CLEANS_UP = """
def test_clean(run_directory):
    from zonewise.lab import processes
    processes.spawn(run_directory.directory / "plane", "program", ["sleep", "1000"])
"""
HANGS = f"""
import os, subprocess, time
from pathlib import Path
def test_hang(run_directory):
    from zonewise.lab import processes
    processes.spawn(run_directory.directory / "plane", "program", ["sleep", "1000"])
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path("starting").write_text(os.environ["{RUN_ID}"])
    os.rename("starting", "started")
    time.sleep(1000)
"""


@contextmanager
def start(directory: Path, text: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Pytest with one test, in a state directory of its own."""
    (directory / "test_it.py").write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "conftest",
        "--rootdir",
        ".",
        "-c",
        os.devnull,
        *options,
        ".",
    ]
    paths = os.pathsep.join(map(str, (ROOT / "src", ROOT / "tests", ROOT)))
    environ = {**os.environ, "ZONEWISE_STATE": str(directory / "state"), "PYTHONPATH": paths}
    with subprocess.Popen(command, cwd=directory, env=environ, stdout=subprocess.PIPE, text=True) as run:
        try:
            yield run
        finally:
            run.kill()


def test_a_process_that_is_left_behind_fails_the_run_and_is_ended(tmp_path: Path) -> None:
    with start(tmp_path, LEAVES_A_PROCESS) as run:
        output, _ = run.communicate()
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 passed" in output
    leak = output.partition("left behind by the tests, and ended now:")[2].split()
    assert leak[1:] == ["sleep", "1000"]
    assert not Path("/proc", leak[0], "exe").exists(), "at most a zombie, which nobody has waited for yet"


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "with workers"])
def test_a_run_in_order_leaves_nothing_and_passes(tmp_path: Path, options: tuple[str, ...]) -> None:
    with start(tmp_path, CLEANS_UP, *options) as run:
        output, _ = run.communicate()
    assert run.returncode == 0, output
    assert not list((tmp_path / "state/test-runs").glob("*/"))


@pytest.mark.parametrize(
    ("options", "number"),
    [(("-n", "1"), signal.SIGINT), (("-n", "1"), signal.SIGTERM), (("-n", "1"), signal.SIGKILL), ((), signal.SIGKILL)],
)
def test_a_run_that_is_interrupted_or_killed_leaves_nothing(
    tmp_path: Path, options: tuple[str, ...], number: signal.Signals
) -> None:
    with start(tmp_path, HANGS, *options) as run:
        until((tmp_path / "started").exists)
        name = (tmp_path / "started").read_text()
        assert len(processes_of(name)) >= 2
        run.send_signal(number)
        run.communicate()
        assert run.returncode != 0
        until(lambda: not processes_of(name))
        until(lambda: not list((tmp_path / "state/test-runs").glob("*/")))
