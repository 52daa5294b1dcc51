"""Dashboard processes, and a monitor of forbidden page behaviour, for browser tests."""

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
class PageMonitor:
    """Records requests to other origins, and errors."""

    origin: str
    foreign: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def follow(self, page: Page) -> None:
        page.on("request", lambda request: self._on_request(request.url))
        page.on("console", lambda message: message.type == "error" and self._on_error(message.text))
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _on_error(self, text: str) -> None:
        """Refusals that a test provokes are no errors of the page."""
        if not text.startswith("Failed to load resource: the server responded with a status of 4"):
            self.errors.append(text)

    def _on_request(self, url: str) -> None:
        parts = urlsplit(url)
        if f"{parts.scheme}://{parts.netloc}" != self.origin:
            self.foreign.append(url)


@dataclass
class Dashboard:
    url: str
    process: subprocess.Popen[str]


def start_dashboard(log: Path, *arguments: str) -> Dashboard:
    command = [
        sys.executable,
        "-c",
        "from zonewise.cli.main import main; main()",
        "dashboard",
        "--port",
        "0",
        *arguments,
    ]
    with log.open("a") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    match = re.search(r"https?://\S+", line)
    assert match, f"it printed {line!r}; {log.read_text()}"
    return Dashboard(match[0], process)


def stop_dashboard(dashboard: Dashboard) -> None:
    dashboard.process.send_signal(signal.SIGTERM)
    dashboard.process.communicate(timeout=PATIENCE_SECONDS)
    assert dashboard.process.returncode == 0
