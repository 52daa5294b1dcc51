"""Whose a path or a command line is, by the names of labs in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.lab import footprint
from zonewise.lab.decide.cgroup_hierarchies import Hierarchy

CASES = {
    "a network namespace": ("nsfs /run/netns/zw-one nsfs rw", True),
    "one of a node": ("/run/netns/zw-one.node.zone-a-1", True),
    "a cgroup": ("4:memory:/zonewise-one/zone-a-1/kubepods\n", True),
    "a lab whose name begins alike": ("/run/netns/zw-one-more", False),
    "a longer name": ("0::/zonewise-one2/zone-a-1", False),
    "a name that ends alike": ("/run/netns/zw-not-zw-one", False),
    "another program": ("zonewise --name one", False),
}


@pytest.mark.parametrize(("text", "expected"), CASES.values(), ids=CASES)
def test_names_of_a_lab_are_found_as_whole_words(text: str, expected: bool) -> None:
    assert footprint.bears(text, ["two", "one"]) is expected
    assert not footprint.bears(text, [])


def test_orphans_are_what_labs_without_a_slot_have_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, named, groups = tmp_path / "slots", tmp_path / "netns", tmp_path / "cgroup"
    for directory in (registry, named, groups):
        directory.mkdir()
    for lab in ("orphan", "owned"):
        (tmp_path / "labs" / lab).mkdir(parents=True)
        (named / f"zw-{lab}.node.zone-a-1").touch()
        (groups / f"zonewise-{lab}").mkdir()
    (registry / "3").symlink_to(tmp_path / "labs/owned")
    monkeypatch.setattr(footprint.slots, "default_registry", lambda: registry)
    monkeypatch.setattr(footprint, "_NAMESPACES", named)
    monkeypatch.setattr(footprint.cgroups, "known", lambda: (Hierarchy(groups, unified=True),))
    left = {str(named / "zw-orphan.node.zone-a-1"), str(groups / "zonewise-orphan")}
    assert {what for what in footprint.orphans() if what.startswith(str(tmp_path))} == left
    assert footprint.orphans(["orphan", "other"]) == left
    assert footprint.orphans(["owned", "other"]) == set()


SETTINGS = {
    "as before": ("0", "0", False),
    "what a router writes": ("0", "1", True),
    "what only others write": ("1", "0", False),
}


@pytest.mark.parametrize(("before", "after", "expected"), SETTINGS.values(), ids=SETTINGS)
def test_setting_is_reported_if_a_lab_may_have_written_it(before: str, after: str, expected: bool) -> None:
    name = "net/ipv4/ip_forward"
    assert footprint.written_by_labs({name: before}, {name: after}) == ({name: after} if expected else {})


def test_settings_can_be_read() -> None:
    assert footprint.settings()["vm/panic_on_oom"] in {"0", "1", "2"}
