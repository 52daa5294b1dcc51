"""What failed is said when it fails, and what has to be judged once more is written down, for pytest to be given as @FILE.

`--last-failed` does not do: what belongs to a group of xdist is called otherwise when it has run than when it is looked for, and a
test whose worker died is forgotten when another worker passes it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

AGAIN = Path(__file__).parents[2] / ".pytest_cache/again"
_GROUP = re.compile(r"@[\w-]+$")


class Verdicts:
    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal
        self._collected: dict[str, None] = {}
        self._seen: set[str] = set()
        self._failed: set[str] = set()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._collected.update(dict.fromkeys(ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seen.add(report.nodeid)
        if report.failed:
            self._failed.add(report.nodeid)
            self._terminal.write_line("")
            self._terminal.write_line(f"{report.when} of {report.nodeid}: {report.longreprtext[-2000:]}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, sched: Any) -> None:
        """xdist hands on all that the dead worker ever had, and waits for ever for who is given what is done already."""
        for scope, unit in list(sched.workqueue.items()):
            unit.update({crashitem: True} if crashitem in unit else {})
            if all(unit.values()):
                del sched.workqueue[scope]

    def pytest_sessionfinish(self) -> None:
        """With those that nobody came to, should the workers have died before."""
        again = [each for each in self._collected if each in self._failed or each not in self._seen]
        AGAIN.parent.mkdir(exist_ok=True)
        AGAIN.write_text("".join(f"{_GROUP.sub('', each)}\n" for each in again))
