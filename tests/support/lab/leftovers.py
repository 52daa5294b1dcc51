"""What a test run leaves behind: found by the run's id, which every process that it starts has in its environment.

`LeftoverCheck` runs in pytest's own process, once all workers have ended. It stops what the workers shared, fails the
run if anything else is still there, and ends that; also if labs that are gone left a namespace, a cgroup or a link, or
if the kernel has settings that labs write, and had others before. For a run that was killed, a reaper does so: a process in a session of its
own that waits for the end of pytest. Other runs have other ids.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Final

import pytest

from support.lab import footprint, shared_cluster

RUN_ID: Final = "PYTEST_XDIST_TESTRUNUID"
"""xdist gives it to its workers."""
_PYTEST_PID: Final = "ZONEWISE_TEST_PID"
_ENDING_SECONDS: Final = 10.0
_ENDS_WITH_PYTEST: Final = ("multiprocessing.forkserver", "multiprocessing.resource_tracker")


class LeftoverCheck:
    def __init__(self, config: pytest.Config) -> None:
        """A run within a test of another run has an id of its own."""
        self._orphans, self._settings = footprint.orphans(), footprint.settings()
        self._run = uuid.uuid4().hex
        config.option.testrunuid = os.environ[RUN_ID] = self._run
        os.environ[_PYTEST_PID] = str(os.getpid())
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # cleans up as Ctrl-C does

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None]:
        yield  # within, xdist ends its workers
        interrupted = session.exitstatus == pytest.ExitCode.INTERRUPTED
        if not interrupted:
            shared_cluster.remove(self._run)
        left = [] if interrupted else _left_in_the_end(self._run)
        end(self._run)
        changed = [] if interrupted else self._changed()
        if left:
            print("\nleft behind by the tests, and ended now:", *left, sep="\n  ")
        if changed:
            print("\nleft on the machine by a lab that is gone:", *changed, sep="\n  ")
        if left or changed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _changed(self) -> list[str]:
        written = footprint.written_by_labs(self._settings, footprint.settings())
        new = footprint.orphans() - self._orphans
        return [*sorted(new), *(f"{name} = {value}" for name, value in written.items())]


def _left_in_the_end(run: str) -> list[str]:
    """Processes, and the run's directory; some may be ending just now."""
    directory = shared_cluster.runs() / run
    deadline = time.monotonic() + _ENDING_SECONDS
    while True:
        left = [f"{pid} {command}" for pid, command in processes_of(run).items()]
        left += [str(directory)] if directory.exists() else []
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.05)


def processes_of(run: str) -> dict[int, str]:
    """Command lines by process id; not of this process, nor of what ends with it."""
    variable = f"{RUN_ID}={run}".encode()
    found = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if variable in (directory / "environ").read_bytes().split(b"\0"):
                found[int(directory.name)] = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended
            continue
    found.pop(os.getpid(), None)
    return {
        pid: command
        for pid, command in found.items()
        if command and not any(word in command for word in _ENDS_WITH_PYTEST)
    }


def end(run: str) -> None:
    """Everything of that run."""
    while found := processes_of(run):
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    shared_cluster.remove(run)


def start_reaper(run: str) -> None:
    """Without the run's id in its environment: it is not left behind."""
    environ = {name: value for name, value in os.environ.items() if name != RUN_ID}
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-m", "support.lab.leftovers", run, os.environ[_PYTEST_PID]]
    quiet = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    os.posix_spawn(sys.executable, command, environ, file_actions=quiet, setsid=True)


def reap(run: str, pytest_pid: int) -> None:
    try:
        handle = os.pidfd_open(pytest_pid)
        select.select([handle], [], [])
    except ProcessLookupError:
        pass
    end(run)


if __name__ == "__main__":
    reap(sys.argv[1], int(sys.argv[2]))
