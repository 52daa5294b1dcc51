"""The report of faults: one line per fault, written between the marks of a page."""

from pathlib import Path

import pytest

from support import fault_report
from support.fault_report import FaultRow, FaultTable


class Terminal:
    def write_sep(self, _separator: str, _title: str) -> None: ...
    def write_line(self, _line: str) -> None: ...


def test_rows_of_one_fault_are_added_up_and_replace_the_last_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "reliability.md"
    page.write_text("before\n<!-- faults: begin -->\nold\n<!-- faults: end -->\nafter\n")
    monkeypatch.setattr(fault_report, "FILE", str(page))
    facts = {"component": "dns", "fault": "killed", "what": "queries"}
    table = FaultTable([FaultRow(**facts, rounds=1, requests=900, gap_seconds=gap) for gap in (0.1, 0.25, None)])
    table.pytest_terminal_summary(Terminal(), 0)  # type: ignore[arg-type]
    assert page.read_text().splitlines() == [
        "before",
        "<!-- faults: begin -->",
        "| component | fault | rounds | requests | lost | refused | worst gap | violations |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| dns | killed | 3 | 2,700 queries | 0 | 0 | 0.25 s | 0 |",
        "<!-- faults: end -->",
        "after",
    ]
