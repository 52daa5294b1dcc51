"""Dashboards as processes, and what their pages did that they should not do: for the tests with a browser."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Page

PATIENCE_SECONDS = 90.0

OpenPage = Callable[..., Page]
"""`open_page(url)`, with options of a browser context, such as `color_scheme="dark"`; `live=False` for other pages."""


@dataclass
class Watched:
    """What a page did that it should not do."""

    origin: str
    foreign: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def follow(self, page: Page) -> None:
        page.on("request", lambda request: self._requested(request.url))
        page.on("console", lambda said: said.type == "error" and self._complained(said.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _complained(self, text: str) -> None:
        """A refusal that a test asks for is no fault of the page."""
        if not text.startswith("Failed to load resource: the server responded with a status of 4"):
            self.complaints.append(text)

    def _requested(self, url: str) -> None:
        parts = urlsplit(url)
        if f"{parts.scheme}://{parts.netloc}" != self.origin:
            self.foreign.append(url)


@dataclass
class Dashboard:
    url: str
    process: subprocess.Popen[str]


def started(log: Path, *arguments: str) -> Dashboard:
    command = [
        sys.executable,
        "-c",
        "from zonewise.cli.main import main; main()",
        "dashboard",
        "--port",
        "0",
        *arguments,
    ]
    with log.open("a") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"https?://\S+", line)
    assert found, f"it said {line!r}; {log.read_text()}"
    return Dashboard(found[0], process)


def ended(dashboard: Dashboard) -> None:
    dashboard.process.send_signal(signal.SIGTERM)
    dashboard.process.communicate(timeout=PATIENCE_SECONDS)
    assert dashboard.process.returncode == 0
