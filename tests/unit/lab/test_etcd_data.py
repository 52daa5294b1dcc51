"""Where the data of etcd goes: into memory where that has room, and where it is found again."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from zonewise.lab import paths
from zonewise.lab.controlplane import controlplane


class Usage(NamedTuple):
    free: int


def test_data_is_in_memory_only_with_room_and_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, lab = tmp_path / "memory", tmp_path / "lab"
    memory.mkdir()
    lab.mkdir()
    free = 64 << 20
    monkeypatch.setattr(paths, "MEMORY", memory)
    monkeypatch.setattr(controlplane.shutil, "disk_usage", lambda _path: Usage(free))
    on_disk = controlplane.data_directory(lab)
    assert on_disk.parent == lab
    free = 1 << 30
    in_memory = controlplane.data_directory(lab)
    assert in_memory.parent == memory
    in_memory.mkdir()
    free = 0
    assert controlplane.data_directory(lab) == in_memory
    in_memory.rmdir()
    on_disk.mkdir()
    free = 1 << 30
    assert controlplane.data_directory(lab) == on_disk


def test_data_is_on_disk_where_there_is_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "MEMORY", tmp_path / "none")
    assert controlplane.data_directory(tmp_path).parent == tmp_path
