import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from support.lab.machine import until
from zonewise.lab import processes
from zonewise.lab.processes import Process

IGNORES_SIGTERM = ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    processes.stop(processes.recorded(tmp_path), 0)


def wrote(directory: Path, name: str, text: str) -> bool:
    log = processes.log_path(directory, name)
    return log.exists() and text in log.read_text()


def test_output_goes_to_the_log_and_the_session_is_its_own(directory: Path) -> None:
    process = processes.spawn(directory, "talker", ["sh", "-c", 'echo "out $(pwd)"; echo err >&2'], cwd=Path("/"))
    assert process.wait(30)
    assert processes.log_path(directory, "talker").read_text() == "out /\nerr\n"
    other = processes.spawn(directory, "sleeper", ["sleep", "100"])
    assert os.getsid(other.pid) == other.pid


def test_anybody_finds_it_again_by_its_record(directory: Path) -> None:
    process = processes.spawn(directory, "sleeper", ["sleep", "100"])
    until(lambda: processes.find(directory, "sleeper"))
    assert processes.find(directory, "sleeper") == process
    assert process.running
    assert process.memory_bytes > 0
    assert processes.recorded(directory) == [process]


def test_stop_escalates_to_sigkill(directory: Path) -> None:
    process = processes.spawn(directory, "stubborn", IGNORES_SIGTERM)
    until(lambda: wrote(directory, "stubborn", "ready"))
    processes.stop([process], 0.2)
    assert not process.running
    assert process.memory_bytes == 0


def test_stop_ends_a_paused_process_by_sigterm(directory: Path) -> None:
    process = processes.spawn(
        directory, "polite", ["sh", "-c", "trap 'echo bye; exit' TERM; echo ready; while :; do sleep 0.05; done"]
    )
    until(lambda: wrote(directory, "polite", "ready"))
    process.signal(signal.SIGSTOP)
    until(lambda: process.paused)
    processes.stop([process], 30)
    assert wrote(directory, "polite", "bye")


def test_a_reused_pid_is_never_signalled(directory: Path) -> None:
    somebody = processes.spawn(directory, "somebody", ["sleep", "100"])
    predecessor = replace(somebody, started_ticks=somebody.started_ticks - 1)
    assert not predecessor.running
    assert not predecessor.signal(signal.SIGKILL)
    assert predecessor.wait(0)
    processes.stop([predecessor], 0)
    assert somebody.running


def test_a_record_of_an_earlier_boot_matches_no_process(directory: Path) -> None:
    process = processes.spawn(directory, "sleeper", ["sleep", "100"])
    record = directory / processes.RECORDS / "sleeper"
    until(lambda: processes.find(directory, "sleeper"))
    record.write_text(record.read_text().replace(processes.boot_id(), "another-boot"))
    assert processes.find(directory, "sleeper") is None
    processes.stop([process], 0)


def test_a_killed_parent_leaves_a_record(directory: Path) -> None:
    program = (
        "import os, signal, sys, pathlib; from zonewise.lab import processes;"
        "processes.spawn(pathlib.Path(sys.argv[1]), 'orphan', ['sleep', '100']); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program, str(directory)], check=False)
    until(lambda: processes.find(directory, "orphan"))
    found = processes.recorded(directory)
    assert [process.name for process in found] == ["orphan"]
    processes.close(directory, 1)
    assert not found[0].running


def test_nothing_starts_after_close(directory: Path) -> None:
    """What a killed parent was about to start finds its record's place gone."""
    processes.spawn(directory, "first", ["sleep", "100"])
    processes.close(directory, 1)
    assert not (directory / processes.RECORDS).exists()
    late = subprocess.run(
        ["sh", "-c", processes._RECORD_THEN_EXEC, str(directory / processes.RECORDS / "late"), "/", "echo", "started"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert late.returncode != 0
    assert late.stdout == ""
    assert all(not process.running for process in processes.recorded(directory))


def test_a_missing_program_ends_at_once_and_says_so(directory: Path) -> None:
    process = processes.spawn(directory, "nothing", ["/no/such/program"])
    assert process.wait(30)
    assert wrote(directory, "nothing", "/no/such/program")


@pytest.mark.parametrize("command", ["plain", "with space", "bad) R 1 (name"])
def test_start_time_survives_any_command_name(command: str) -> None:
    after = ["S", *map(str, range(4, 53))]
    assert processes.start_time(f"42 ({command}) {' '.join(after)}") == ("S", 22)


def test_an_ended_process_needs_no_waiting() -> None:
    gone = Process("gone", 2**22 - 3, 1)
    assert not gone.running
    assert gone.wait(0)
    assert not gone.signal(signal.SIGTERM)
