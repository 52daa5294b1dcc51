"""The kernel's limit of inotify instances, which a lab raises and never lowers."""

from __future__ import annotations

from pathlib import Path

import pytest

from zonewise.lab.nodes import machine


@pytest.mark.parametrize(("before", "after"), [(128, 8192), (8192, 8192), (65536, 65536)])
def test_limit_of_watchers_is_raised_where_it_is_lower(
    before: int, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "max_user_instances"
    limit.write_text(f"{before}\n")
    monkeypatch.setattr(machine, "_WATCHERS", limit)
    machine.allow_watchers()
    assert int(limit.read_text()) == after


def test_limit_must_be_writable_only_where_it_is_too_low(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "max_user_instances"
    monkeypatch.setattr(machine, "_WATCHERS", limit)
    monkeypatch.setattr(machine.os, "access", lambda path, _mode: path != limit)
    monkeypatch.setattr(machine.os, "geteuid", lambda: 0)
    for value, read_only in (("128", True), ("8192", False)):
        limit.write_text(value)
        assert (str(limit) in machine.facts().read_only) is read_only
