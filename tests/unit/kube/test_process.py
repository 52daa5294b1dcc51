"""How a process lives and ends: real processes, real signals."""

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "programs" / "lifecycle.py"
PATIENCE_SECONDS = 60.0


class Program:
    """A running program, its words on stdout and its log lines on stderr."""

    def __init__(self, way: str, unready_seconds: float, grace_seconds: float) -> None:
        arguments = [sys.executable, str(PROGRAM), way, str(unready_seconds), str(grace_seconds)]
        self.process = subprocess.Popen(
            arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.words: Queue[str] = Queue()
        self.lines: list[dict[str, Any]] = []
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read_words, args=(self.process.stdout,)),
            threading.Thread(target=self._read_lines, args=(self.process.stderr,)),
        ]
        for reader in self._readers:
            reader.start()

    def _read_words(self, stream: Any) -> None:
        for word in stream:
            self.words.put(word.strip())

    def _read_lines(self, stream: Any) -> None:
        for line in stream:
            self.lines.append(json.loads(line))

    def said(self, event: str) -> dict[str, Any] | None:
        return next((line for line in list(self.lines) if line["event"] == event), None)

    def next_word(self) -> str:
        return self.words.get(timeout=PATIENCE_SECONDS)

    def probe(self, path: str) -> tuple[int, str]:
        started = wait_for(lambda: self.said("process started"))
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{started['health_port']}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def wait_ready(self) -> None:
        wait_for(lambda: self.probe("/readyz")[0] == 200)

    def end(self) -> int:
        code = self.process.wait(timeout=PATIENCE_SECONDS)
        for reader in self._readers:
            reader.join(PATIENCE_SECONDS)
        return code

    def kill(self) -> None:
        self.process.kill()
        self.end()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return value


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def start_one(way: str, *, unready_seconds: float = 0.0, grace_seconds: float = PATIENCE_SECONDS) -> Program:
        programs.append(Program(way, unready_seconds, grace_seconds))
        return programs[-1]

    yield start_one
    for program in programs:
        program.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_process_from_the_inside_out_with_code_0(
    start: Callable[..., Program], number: signal.Signals
) -> None:
    program = start("clean")
    program.wait_ready()
    program.process.send_signal(number)
    assert program.end() == 0
    assert [program.next_word(), program.next_word()] == ["inner ends", "outer ends"]
    assert [line["event"] for line in program.lines] == ["process started", "process stopping", "process ended"]
    assert program.lines[1]["signal"] == number.name


def test_readiness_goes_off_first_while_the_work_goes_on(start: Callable[..., Program]) -> None:
    program = start("clean", unready_seconds=2 * PATIENCE_SECONDS)
    program.wait_ready()
    program.process.send_signal(signal.SIGTERM)
    wait_for(lambda: program.probe("/readyz")[0] == 500)
    assert "[-]phase failed: the process is stopping" in program.probe("/readyz")[1]
    assert program.probe("/livez") == (200, "ok\n")
    assert program.words.empty(), "nothing has been asked to end yet"


def test_health_is_served_until_the_work_has_ended(start: Callable[..., Program]) -> None:
    program = start("slow")
    program.wait_ready()
    program.process.send_signal(signal.SIGTERM)
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
    program.process.send_signal(signal.SIGTERM)
    assert program.end() == 1
    assert program.next_word() == "not yet"
    cut_off = program.said("process did not end in its grace and is cut off")
    assert cut_off is not None
    assert "main" in cut_off["hanging"]


@pytest.mark.parametrize(("way", "word"), [("stubborn", "not yet"), ("blocking", "blocked")])
def test_a_second_signal_ends_it_at_once(start: Callable[..., Program], way: str, word: str) -> None:
    program = start(way)
    program.wait_ready()
    program.process.send_signal(signal.SIGTERM)
    assert program.next_word() == word
    program.process.send_signal(signal.SIGTERM)
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
    failed = program.said("process failed")
    assert failed is not None
    assert failed["error"] == error
    assert ("exception" in failed) == traceback


def test_a_failure_while_ending_is_not_hidden(start: Callable[..., Program]) -> None:
    program = start("fails_while_ending")
    program.wait_ready()
    program.process.send_signal(signal.SIGTERM)
    assert program.end() == 1
    failed = program.said("process failed")
    assert failed is not None
    assert failed["error"] == "could not clean up"
