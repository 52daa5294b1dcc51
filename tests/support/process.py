"""Process under test: lines on stdout, JSON log lines on stderr, health over HTTP."""

import json
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import Queue
from typing import IO, Any

PROGRAMS = Path(__file__).parent / "programs"
PATIENCE_SECONDS = 60.0


class Program:
    def __init__(self, name: str, *arguments: object, environ: Mapping[str, str] = {}) -> None:
        """`environ` is added to the environment."""
        command = [sys.executable, str(PROGRAMS / name), *map(str, arguments)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ},
        )
        self.output: Queue[str] = Queue()
        self.lines: list[dict[str, Any]] = []
        self._readers = [
            threading.Thread(target=_each_line, args=(self.process.stdout, lambda line: self.output.put(line.strip()))),
            threading.Thread(
                target=_each_line, args=(self.process.stderr, lambda line: self.lines.append(_parsed(line)))
            ),
        ]
        for reader in self._readers:
            reader.start()

    @property
    def events(self) -> list[str]:
        return [line["event"] for line in list(self.lines)]

    def line(self, event: str) -> dict[str, Any]:
        """Wait for the first log line of that event."""
        return wait_for(lambda: self._find(event) or self._expect_more(event))

    def _find(self, event: str) -> dict[str, Any] | None:
        return next((line for line in list(self.lines) if line["event"] == event), None)

    def _expect_more(self, event: str) -> None:
        if not any(reader.is_alive() for reader in self._readers):
            assert self._find(event), f"the process ended without {event!r}; log: {self.lines}"

    def next_line(self) -> str:
        return self.output.get(timeout=PATIENCE_SECONDS)

    def probe(self, path: str) -> tuple[int, str]:
        port = self.line("process started")["health_port"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def scrape(self, token: str) -> tuple[int, str]:
        """Of /metrics over TLS."""
        return scrape(f"https://127.0.0.1:{self.line('metrics served')['port']}/metrics", token)

    def wait_ready(self) -> None:
        wait_for(self._is_ready)

    def _is_ready(self) -> bool:
        """A probe that times out on a busy machine means not ready, not failed."""
        with suppress(TimeoutError):
            return self.probe("/readyz")[0] == 200
        return False

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        code = self.process.wait(timeout=PATIENCE_SECONDS)
        for reader in self._readers:
            reader.join(PATIENCE_SECONDS)
        return code

    def remove(self) -> None:
        self.process.kill()
        self.end()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def scrape(url: str, token: str, header: str = "Authorization") -> tuple[int, str]:
    """Status and text; the certificate is not checked."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    headers = {header: f"Bearer {token}" if header == "Authorization" else token} if token else {}
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, f"condition not met within {PATIENCE_SECONDS:g} s"
        time.sleep(0.02)
    return value


def _each_line(stream: IO[str], take: Callable[[str], None]) -> None:
    for line in stream:
        take(line)


def _parsed(line: str) -> dict[str, Any]:
    """A line that is not JSON is Python's own output, such as a traceback."""
    try:
        parsed: dict[str, Any] = json.loads(line)
    except ValueError:
        return {"event": line.rstrip(), "level": "raw"}
    return parsed
