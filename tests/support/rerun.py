"""Pytest plugin: prints failures as they happen, and writes the tests to run again to `.pytest_cache/again`.

`make test` runs that file once more with `pytest @FILE` and records what passes then in `tests/flaky.txt`.
`--last-failed` does not work here: xdist appends the group to a test's id, and forgets a test whose worker died.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

AGAIN: Final = Path(__file__).parents[2] / ".pytest_cache/again"
_GROUP: Final = re.compile(r"@[\w-]+$")


class RerunList:
    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal
        self._collected: dict[str, None] = {}
        self._reported: set[str] = set()
        self._failed: set[str] = set()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._collected.update(dict.fromkeys(ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reported.add(report.nodeid)
        if report.failed:
            self._failed.add(report.nodeid)
            self._terminal.write_line("")
            self._terminal.write_line(f"{report.when} of {report.nodeid}: {report.longreprtext[-2000:]}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, sched: Any) -> None:
        """Remove finished groups from the queue: xdist hands over all of a dead worker's groups, and waits for ever."""
        for scope, unit in list(sched.workqueue.items()):
            unit.update({crashitem: True} if crashitem in unit else {})
            if all(unit.values()):
                del sched.workqueue[scope]

    def pytest_sessionfinish(self) -> None:
        """Tests that never ran, because their worker died, run again as well."""
        again = [test for test in self._collected if test in self._failed or test not in self._reported]
        AGAIN.parent.mkdir(exist_ok=True)
        AGAIN.write_text("".join(f"{_GROUP.sub('', test)}\n" for test in again))
