"""Text output of `zonewise csi doctor`: only repaired findings count as repaired."""

from __future__ import annotations

from zonewise.ceph.decide.journal_report import FsckFindingReport
from zonewise.cli.csi_doctor import finding_lines

WRONG = FsckFindingReport("Lost", "p/one", "is gone")
LEFT = FsckFindingReport("Orphan", "p/two", "is in no journal", left="the journal has it now")
REPAIRED = FsckFindingReport("Orphan", "p/three", "is in no journal", done="removed")


def test_findings_left_alone_are_not_counted_as_repaired() -> None:
    lines = list(finding_lines([WRONG, LEFT, REPAIRED], repair=True, away=False))
    assert [line.split()[0] for line in lines[:-1]] == ["wrong", "left", "repaired"]
    assert lines[1].endswith("p/two is in no journal: left alone: the journal has it now")
    assert lines[2].endswith("p/three is in no journal: removed")
    assert lines[-1] == "3 findings, 1 repaired"


def test_no_findings_with_unavailable_pools_says_so() -> None:
    assert list(finding_lines([WRONG], repair=False, away=False))[-1] == "1 findings"
    assert list(finding_lines([], repair=False, away=False)) == ["nothing is wrong"]
    assert list(finding_lines([], repair=True, away=True)) == ["nothing is wrong in what could be examined"]
