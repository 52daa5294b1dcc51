"""Whose a path or a command line is, by the names of labs in it."""

from __future__ import annotations

import pytest

from support.lab import footprint

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


def test_orphans_and_settings_can_be_read() -> None:
    assert all(what.startswith(("/", "zw")) for what in footprint.orphans())
    assert footprint.settings()["vm/panic_on_oom"] in {"0", "1", "2"}
