"""How a process lives and ends: real processes, real signals."""

import signal
from collections.abc import Callable, Iterator

import pytest

from support.process import PATIENCE_SECONDS, Program, wait_for


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def start_one(way: str, *, unready_seconds: float = 0.0, grace_seconds: float = PATIENCE_SECONDS) -> Program:
        programs.append(Program("lifecycle.py", way, unready_seconds, grace_seconds))
        return programs[-1]

    yield start_one
    for program in programs:
        program.remove()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_process_from_the_inside_out_with_code_0(
    start: Callable[..., Program], number: signal.Signals
) -> None:
    program = start("clean")
    program.wait_ready()
    program.signal(number)
    assert program.end() == 0
    assert [program.next_word(), program.next_word()] == ["inner ends", "outer ends"]
    assert program.events == ["process started", "process stopping", "process ended"]
    assert program.lines[1]["signal"] == number.name


def test_readiness_goes_off_before_the_work_stops(start: Callable[..., Program]) -> None:
    program = start("clean", unready_seconds=2 * PATIENCE_SECONDS)
    program.wait_ready()
    program.signal(signal.SIGTERM)
    wait_for(lambda: program.probe("/readyz")[0] == 500)
    assert "[-]phase failed: the process is stopping" in program.probe("/readyz")[1]
    assert program.probe("/livez") == (200, "ok\n")
    assert program.words.empty(), "nothing has been asked to end yet"


def test_health_is_served_until_the_work_has_ended(start: Callable[..., Program]) -> None:
    program = start("slow")
    program.wait_ready()
    program.signal(signal.SIGTERM)
    assert program.next_word() == "ending"
    assert program.probe("/readyz")[0] == 500
    assert program.probe("/livez")[0] == 200
    assert program.process.stdin is not None
    program.process.stdin.write("\n")
    program.process.stdin.flush()
    assert program.next_word() == "ended"
    assert program.end() == 0


def test_what_hangs_is_cut_off_after_its_grace(start: Callable[..., Program]) -> None:
    program = start("stubborn", grace_seconds=0.5)
    program.wait_ready()
    program.signal(signal.SIGTERM)
    assert program.end() == 1
    assert program.next_word() == "not yet"
    assert "main" in program.line("process did not end in its grace and is cut off")["hanging"]


@pytest.mark.parametrize(("way", "word"), [("stubborn", "not yet"), ("blocking", "blocked")])
def test_a_second_signal_ends_it_at_once(start: Callable[..., Program], way: str, word: str) -> None:
    program = start(way)
    program.wait_ready()
    program.signal(signal.SIGTERM)
    assert program.next_word() == word
    program.signal(signal.SIGTERM)
    assert program.end() == 128 + signal.SIGTERM


def test_a_main_that_returns_ends_the_process_with_code_0(start: Callable[..., Program]) -> None:
    program = start("returning")
    assert program.end() == 0
    assert program.next_word() == "done"


@pytest.mark.parametrize(
    ("way", "error", "traceback"),
    [
        ("broken", "a bug of ours", True),
        ("misconfigured", 'kubeconfig /x: no context "y"; choose one of: z', False),
    ],
)
def test_a_main_that_fails_is_logged_and_ends_with_code_1(
    start: Callable[..., Program], way: str, error: str, traceback: bool
) -> None:
    program = start(way)
    assert program.end() == 1
    failed = program.line("process failed")
    assert failed["error"] == error
    assert ("exception" in failed) == traceback


def test_a_failure_while_ending_is_not_hidden(start: Callable[..., Program]) -> None:
    program = start("fails_while_ending")
    program.wait_ready()
    program.signal(signal.SIGTERM)
    assert program.end() == 1
    assert program.line("process failed")["error"] == "could not clean up"
