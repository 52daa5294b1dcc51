"""A real browser and real dashboards. In every test, pages must not contact other origins or log errors."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from support.dashboard.server import (
    PATIENCE_SECONDS,
    Dashboard,
    OpenPage,
    PageMonitor,
    start_dashboard,
    stop_dashboard,
)
from support.lab.shared_cluster import Run
from zonewise.lab.controlplane.controlplane import ControlPlane

_ALONE = pytest.mark.xdist_group("browser")


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker: a browser per worker would cost more than it saves."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(_ALONE)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Per module: its event loop conflicts with those of other tests."""
    chromium = shutil.which("chromium")
    assert chromium, "these tests need Debian's chromium: `make setup` installs it"
    expect.set_options(timeout=PATIENCE_SECONDS * 1000)
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    contexts: list[BrowserContext] = []
    monitors: list[PageMonitor] = []

    def open_one(url: str, *, live: bool = True, **options: Any) -> Page:
        context = browser.new_context(reduced_motion="reduce", ignore_https_errors=True, **options)
        context.set_default_timeout(PATIENCE_SECONDS * 1000)
        contexts.append(context)
        parts = urlsplit(url)
        monitors.append(PageMonitor(f"{parts.scheme}://{parts.netloc}"))
        page = context.new_page()
        monitors[-1].follow(page)
        page.goto(url)
        if live:
            page.wait_for_selector('#connection[data-state="live"]')
        return page

    yield open_one
    for context in contexts:
        context.close()
    for monitor in monitors:
        assert monitor.foreign == []
        assert monitor.errors == []


@pytest.fixture
def show_dump(tmp_path: Path) -> Iterator[Callable[[list[dict[str, Any]]], str]]:
    """`show_dump(objects)`: a dashboard's address."""
    running: list[Dashboard] = []

    def show(objects: list[dict[str, Any]]) -> str:
        file = tmp_path / "dump.json"
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
        running.append(start_dashboard(tmp_path / "dashboard.log", "-f", str(file)))
        return running[-1].url

    yield show
    for dashboard in running:
        stop_dashboard(dashboard)


@pytest.fixture(scope="module")
def plane(run_directory: Run) -> Iterator[ControlPlane]:
    """A private API server: nodes are cluster-wide."""
    plane = run_directory.private()
    yield plane
    run_directory.remove(plane)
