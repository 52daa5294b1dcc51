"""Pytest plugin: one table of all faults that the tests injected, and of what they did to clients.

A test calls `report(...)` once per kind of fault. The table comes at the end of the run. If ZONEWISE_FAULT_REPORT names a
Markdown file, it replaces the table between the two marks in that file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest

FILE: Final = os.environ.get("ZONEWISE_FAULT_REPORT", "")
BEGIN, END = "<!-- faults: begin -->", "<!-- faults: end -->"
_PROPERTY: Final = "fault"
_COLUMNS: Final = ("component", "fault", "rounds", "requests", "lost", "refused", "worst gap", "violations")


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRow:
    """`requests`: what clients asked of the component meanwhile, in the unit of `what`. `lost`: those without a right answer.
    `refused`: those that failed closed, as declared for this fault.

    `gap_seconds`: the longest time without a right answer; None where requests are not made all the time.
    """

    component: str
    fault: str
    rounds: int
    requests: int
    what: str
    lost: int = 0
    refused: int = 0
    gap_seconds: float | None = None
    violations: int = 0

    def merged(self, other: FaultRow) -> FaultRow:
        """The same fault in another test."""
        gaps = [gap for gap in (self.gap_seconds, other.gap_seconds) if gap is not None]
        return replace(
            self,
            rounds=self.rounds + other.rounds,
            requests=self.requests + other.requests,
            lost=self.lost + other.lost,
            refused=self.refused + other.refused,
            gap_seconds=max(gaps, default=None),
            violations=self.violations + other.violations,
        )

    @property
    def cells(self) -> tuple[str, ...]:
        gap = "" if self.gap_seconds is None else f"{self.gap_seconds:.2f} s"
        requests = f"{self.requests:,} {self.what}"
        counts = (f"{self.rounds:,}", requests, f"{self.lost:,}", f"{self.refused:,}")
        return (self.component, self.fault, *counts, gap, str(self.violations))


Report = Callable[..., None]


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """Records a row; what it says is asserted by the test itself."""

    def add(**row: Any) -> None:
        request.node.user_properties.append((_PROPERTY, asdict(FaultRow(**row))))

    return add


@dataclass(eq=False)  # pytest hashes its plugins
class FaultTable:
    rows: list[FaultRow] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.rows += [FaultRow(**row) for name, row in report.user_properties if name == _PROPERTY]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        if not self.rows:
            return
        table = list(self._lines())
        terminalreporter.write_sep("=", "faults")
        for line in table:
            terminalreporter.write_line(line)
        if FILE and exitstatus == 0:
            path = Path(FILE)
            before, _, rest = path.read_text().partition(BEGIN)
            path.write_text("\n".join([before + BEGIN, *table, END + rest.partition(END)[2]]))

    def _lines(self) -> Iterator[str]:
        yield _line(_COLUMNS)
        yield _line(("---",) * len(_COLUMNS))
        rows: dict[tuple[str, str, str], FaultRow] = {}
        for row in sorted(self.rows, key=lambda row: (row.component, row.fault)):
            key = row.component, row.fault, row.what
            rows[key] = rows[key].merged(row) if key in rows else row
        yield from (_line(row.cells) for row in rows.values())


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
