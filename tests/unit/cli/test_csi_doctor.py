"""What `zonewise csi doctor` says of what it found: only what was repaired counts as repaired."""

from __future__ import annotations

from zonewise.ceph.decide.journal_report import FsckFindingReport
from zonewise.cli.csi_doctor import told

WRONG = FsckFindingReport("Lost", "p/one", "is gone")
LEFT = FsckFindingReport("Orphan", "p/two", "is in no journal", left="the journal has it now")
REPAIRED = FsckFindingReport("Orphan", "p/three", "is in no journal", done="removed")


def test_what_was_left_alone_is_not_repaired() -> None:
    lines = list(told([WRONG, LEFT, REPAIRED], repair=True, away=False))
    assert [line.split()[0] for line in lines[:-1]] == ["wrong", "left", "repaired"]
    assert lines[1].endswith("p/two is in no journal: left alone: the journal has it now")
    assert lines[2].endswith("p/three is in no journal: removed")
    assert lines[-1] == "3 findings, 1 repaired"


def test_nothing_is_wrong_only_with_what_could_be_looked_at() -> None:
    assert list(told([WRONG], repair=False, away=False))[-1] == "1 findings"
    assert list(told([], repair=False, away=False)) == ["nothing is wrong"]
    assert list(told([], repair=True, away=True)) == ["nothing is wrong in what could be looked at"]
