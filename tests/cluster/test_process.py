"""Process lifecycle with real processes and signals."""

import signal
from collections.abc import Callable, Iterator

import pytest

from support.process import PATIENCE_SECONDS, Program, wait_for


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def start_one(scenario: str, *, unready_seconds: float = 0.0, grace_seconds: float = PATIENCE_SECONDS) -> Program:
        programs.append(Program("lifecycle.py", scenario, unready_seconds, grace_seconds))
        return programs[-1]

    yield start_one
    for program in programs:
        program.remove()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_unwinds_the_process_with_exit_code_0(start: Callable[..., Program], number: signal.Signals) -> None:
    program = start("clean")
    program.wait_ready()
    program.signal(number)
    assert program.end() == 0
    assert [program.next_line(), program.next_line()] == ["inner ends", "outer ends"]
    assert program.events == ["process started", "process stopping", "process ended"]
    assert program.lines[1]["signal"] == number.name


def test_readiness_fails_before_the_work_stops(start: Callable[..., Program]) -> None:
    program = start("clean", unready_seconds=2 * PATIENCE_SECONDS)
    program.wait_ready()
    program.signal(signal.SIGTERM)
    wait_for(lambda: program.probe("/readyz")[0] == 500)
    assert "[-]phase failed: the process is stopping" in program.probe("/readyz")[1]
    assert program.probe("/livez") == (200, "ok\n")
    assert program.output.empty(), "the work was not cancelled yet"


def test_health_is_served_until_the_work_has_ended(start: Callable[..., Program]) -> None:
    program = start("slow")
    program.wait_ready()
    program.signal(signal.SIGTERM)
    assert program.next_line() == "ending"
    assert program.probe("/readyz")[0] == 500
    assert program.probe("/livez")[0] == 200
    assert program.process.stdin is not None
    program.process.stdin.write("\n")
    program.process.stdin.flush()
    assert program.next_line() == "ended"
    assert program.end() == 0


def test_hanging_process_is_killed_after_its_grace_period(start: Callable[..., Program]) -> None:
    program = start("stubborn", grace_seconds=0.5)
    program.wait_ready()
    program.signal(signal.SIGTERM)
    assert program.end() == 1
    assert program.next_line() == "not yet"
    assert "main" in program.line("process did not end in its grace and is cut off")["hanging"]


@pytest.mark.parametrize(("scenario", "line"), [("stubborn", "not yet"), ("blocking", "blocked")])
def test_second_signal_ends_the_process_at_once(start: Callable[..., Program], scenario: str, line: str) -> None:
    program = start(scenario)
    program.wait_ready()
    program.signal(signal.SIGTERM)
    assert program.next_line() == line
    program.signal(signal.SIGTERM)
    assert program.end() == 128 + signal.SIGTERM


def test_returning_main_exits_with_code_0(start: Callable[..., Program]) -> None:
    program = start("returning")
    assert program.end() == 0
    assert program.next_line() == "done"


@pytest.mark.parametrize(
    ("scenario", "error", "traceback"),
    [
        ("broken", "a bug of ours", True),
        ("misconfigured", 'kubeconfig /x: no context "y"; choose one of: z', False),
    ],
)
def test_failing_main_is_logged_and_exits_with_code_1(
    start: Callable[..., Program], scenario: str, error: str, traceback: bool
) -> None:
    program = start(scenario)
    assert program.end() == 1
    failed = program.line("process failed")
    assert failed["error"] == error
    assert ("exception" in failed) == traceback


def test_failure_during_shutdown_is_logged(start: Callable[..., Program]) -> None:
    program = start("fails_while_ending")
    program.wait_ready()
    program.signal(signal.SIGTERM)
    assert program.end() == 1
    assert program.line("process failed")["error"] == "could not clean up"
