"""Which mounts a node needs to see a directory of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from zonewise.lab.nodes.node_root import _steps

MOUNTS = frozenset(map(Path, ("/", "/home", "/home/ann", "/home/ann/big", "/tmp", "/tmp/deep")))
PATHS = {
    "on the root": ("/opt/zonewise", ["/opt/zonewise"]),
    "in a home of its own": ("/home/ann/.cache/zonewise", ["/home", "/home/ann", "/home/ann/.cache/zonewise"]),
    "a mount itself": ("/home/ann", ["/home", "/home/ann"]),
    "in a directory that is the node's own": ("/tmp/deep/state", ["/tmp/deep/state"]),
}


@pytest.mark.parametrize(("path", "expected"), PATHS.values(), ids=PATHS)
def test_mounts_above_a_directory_come_first(path: str, expected: list[str]) -> None:
    assert [str(step) for step in _steps(Path(path), MOUNTS)] == expected
