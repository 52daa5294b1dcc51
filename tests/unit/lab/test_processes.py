import fcntl
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


def log_contains(directory: Path, name: str, text: str) -> bool:
    log = processes.log_path(directory, name)
    return log.exists() and text in log.read_text()


def test_output_goes_to_the_log_in_a_new_session(directory: Path) -> None:
    process = processes.spawn(directory, "talker", ["sh", "-c", 'echo "out $(pwd)"; echo err >&2'], cwd=Path("/"))
    assert process.wait(30)
    assert processes.log_path(directory, "talker").read_text() == "out /\nerr\n"
    sleeper = processes.spawn(directory, "sleeper", ["sleep", "100"])
    assert os.getsid(sleeper.pid) == sleeper.pid


def test_descriptors_of_the_caller_are_not_passed_on(directory: Path) -> None:
    """A caller's lock would stay held as long as the lab runs."""
    lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(lock, True)
    fcntl.flock(lock, fcntl.LOCK_EX)
    process = processes.spawn(directory, "sleeper", ["sleep", "60"])
    try:
        os.close(lock)
        other = os.open(directory / "lock", os.O_RDWR)
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
        until(lambda: {entry.name for entry in Path(f"/proc/{process.pid}/fd").iterdir()} == {"0", "1", "2"})
    finally:
        processes.stop([process], 5)


def test_process_is_found_by_its_record(directory: Path) -> None:
    process = processes.spawn(directory, "sleeper", ["sleep", "100"])
    until(lambda: processes.find(directory, "sleeper"))
    assert processes.find(directory, "sleeper") == process
    assert process.running
    assert process.memory_bytes > 0
    assert processes.recorded(directory) == [process]


def test_stop_escalates_to_sigkill(directory: Path) -> None:
    process = processes.spawn(directory, "stubborn", IGNORES_SIGTERM)
    until(lambda: log_contains(directory, "stubborn", "ready"))
    processes.stop([process], 0.2)
    assert not process.running
    assert process.memory_bytes == 0


def test_stop_ends_a_paused_process_by_sigterm(directory: Path) -> None:
    process = processes.spawn(
        directory, "polite", ["sh", "-c", "trap 'echo bye; exit' TERM; echo ready; while :; do sleep 0.05; done"]
    )
    until(lambda: log_contains(directory, "polite", "ready"))
    process.signal(signal.SIGSTOP)
    until(lambda: process.paused)
    processes.stop([process], 30)
    assert log_contains(directory, "polite", "bye")


def test_reused_pid_is_never_signalled(directory: Path) -> None:
    process = processes.spawn(directory, "process", ["sleep", "100"])
    predecessor = replace(process, started_ticks=process.started_ticks - 1)
    assert not predecessor.running
    assert not predecessor.signal(signal.SIGKILL)
    assert predecessor.wait(0)
    processes.stop([predecessor], 0)
    assert process.running


def test_record_of_an_earlier_boot_matches_no_process(directory: Path) -> None:
    process = processes.spawn(directory, "sleeper", ["sleep", "100"])
    record = directory / processes.RECORDS / "sleeper"
    until(lambda: processes.find(directory, "sleeper"))
    record.write_text(record.read_text().replace(processes.boot_id(), "another-boot"))
    assert processes.find(directory, "sleeper") is None
    processes.stop([process], 0)


def test_process_of_a_killed_parent_has_a_record(directory: Path) -> None:
    program = (
        "import os, signal, sys, pathlib; from zonewise.lab import processes;"
        "processes.spawn(pathlib.Path(sys.argv[1]), 'orphan', ['sleep', '100']); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", program, str(directory)], check=False)
    until(lambda: processes.find(directory, "orphan"))
    recorded = processes.recorded(directory)
    assert [process.name for process in recorded] == ["orphan"]
    processes.close(directory, 1)
    assert not recorded[0].running


def test_nothing_starts_after_close(directory: Path) -> None:
    """A process that a killed parent was about to start finds no record directory and exits."""
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


def test_missing_program_ends_at_once_and_is_logged(directory: Path) -> None:
    process = processes.spawn(directory, "nothing", ["/no/such/program"])
    assert process.wait(30)
    assert log_contains(directory, "nothing", "/no/such/program")


@pytest.mark.parametrize("command", ["plain", "with space", "bad) R 1 (name"])
def test_start_time_is_parsed_for_any_command_name(command: str) -> None:
    after = ["S", *map(str, range(4, 53))]
    assert processes.start_time(f"42 ({command}) {' '.join(after)}") == ("S", 22)


def test_ended_process_is_not_running() -> None:
    ended = Process("gone", 2**22 - 3, 1)
    assert not ended.running
    assert ended.wait(0)
    assert not ended.signal(signal.SIGTERM)
