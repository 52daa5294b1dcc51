"""Nodes of a lab without a record are ended only where they can't be another lab's of the same name."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from zonewise.lab import node_owner, records, slots, state
from zonewise.lab.node_owner import NameTakenError
from zonewise.lab.state import Lab, LabOptions

MINE, THEIRS = Path("/mine/labs/one"), Path("/theirs/labs/one")
TRACES = ["/run/netns/zw-one"]
OWNED: dict[str, tuple[list[str], set[Path], list[Path], bool]] = {
    "nothing is left": ([], set(), [], False),
    "nothing is left beside another lab": ([], set(), [THEIRS], False),
    "remains of nodes, and no other lab": (TRACES, set(), [], True),
    "nodes that run": (TRACES, {MINE}, [], True),
    "nodes that run, and another lab's record": (TRACES, {MINE}, [THEIRS], True),
    "another lab's nodes run": (TRACES, {THEIRS}, [THEIRS], False),
    "another lab's nodes run, from an unknown directory": (TRACES, {THEIRS}, [], False),
}
UNDECIDED: dict[str, tuple[set[Path], list[Path]]] = {
    "remains that may be another lab's": (set(), [THEIRS]),
    "nodes of both run": ({MINE, THEIRS}, [THEIRS]),
}


@pytest.mark.parametrize(("traces", "owners", "others", "expected"), OWNED.values(), ids=OWNED)
def test_nodes_are_the_labs_own(traces: list[str], owners: set[Path], others: list[Path], expected: bool) -> None:
    assert node_owner.judge(MINE, traces, owners, others) is expected


@pytest.mark.parametrize(("owners", "others"), UNDECIDED.values(), ids=UNDECIDED)
def test_undecided_nodes_are_an_error_that_names_both(owners: set[Path], others: list[Path]) -> None:
    with pytest.raises(NameTakenError, match=r"/run/netns/zw-one may belong to /theirs/labs/one: first end"):
        node_owner.judge(MINE, TRACES, owners, others)


@contextmanager
def node_init(config: Path) -> Iterator[None]:
    """A process with the command line of a node's first."""
    command = [sys.executable, "-c", "input()", "-m", "zonewise.lab.nodes.node_init", str(config)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield
        process.kill()


def test_running_nodes_tell_their_labs_directory(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "state")
    lab = tmp_path / "state/labs/owner-test"
    with (
        node_init(tmp_path / "link/labs/owner-test/nodes/zone-a-1/init.json"),
        node_init(tmp_path / "state/labs/owner-test-2/nodes/zone-a-1/init.json"),
        node_init(tmp_path / "owner-test/init.json"),
    ):
        assert node_owner.running("owner-test") == {lab}
        with pytest.raises(NameTakenError, match=f"runs already, from {lab.parent}: choose"):
            node_owner.require_free_name("owner-test", tmp_path / "other/labs/owner-test")
        node_owner.require_free_name("owner-test", lab)
    assert node_owner.running("owner-test") == set()


RECORDS = {
    "with nodes": (LabOptions(zones=("zone-a",), nodes_per_zone=1), True),
    "with kwok nodes": (LabOptions(zones=("zone-a",), kwok_nodes=1), False),
}


@pytest.mark.parametrize(("options", "expected"), RECORDS.values(), ids=RECORDS)
def test_record_of_another_lab_tells_whether_it_has_nodes(tmp_path: Path, options: LabOptions, expected: bool) -> None:
    Lab(name="one", directory=tmp_path, slot=0, binaries=tmp_path, options=options).save()
    assert state.may_have_nodes(tmp_path) is expected


@pytest.mark.parametrize("text", [None, "{", '{"version": 99}'], ids=["none", "torn", "newer"])
def test_lab_whose_record_tells_nothing_may_have_nodes(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        records.write_private(tmp_path / "lab.json", text.encode())
    before = sorted(tmp_path.iterdir())
    assert state.may_have_nodes(tmp_path)
    assert sorted(tmp_path.iterdir()) == before


class ClosedDirectory(type(Path())):  # type: ignore[misc]
    def exists(self) -> bool:
        raise PermissionError(13, "Permission denied")


def test_directory_that_may_not_be_read_counts_as_a_lab() -> None:
    assert node_owner._exists(ClosedDirectory("/root/.local/state/zonewise/labs/default"))


def test_registry_is_the_same_with_another_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert slots.default_registry() == Path("/tmp/zonewise-slots")
