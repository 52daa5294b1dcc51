"""Loop devices left by nodes: which are looked at."""

from __future__ import annotations

from pathlib import Path

from zonewise.lab.nodes.loop_devices import state_directory, without_path


def add(devices: Path, name: str, file: str) -> None:
    (devices / name / "loop").mkdir(parents=True)
    (devices / name / "loop" / "backing_file").write_text(f"{file}\n")


def test_devices_whose_file_has_a_path_are_left_alone(tmp_path: Path) -> None:
    add(tmp_path, "loop0", "/")
    add(tmp_path, "loop1", f"{state_directory('lab', 'zone-a-1')}/image")
    add(tmp_path, "loop2", "/")
    (tmp_path / "loop3").mkdir()
    assert without_path(tmp_path) == ["/dev/loop0", "/dev/loop2"]


def test_nodes_of_labs_have_directories_of_their_own() -> None:
    places = [(lab, node) for lab in ("a", "b") for node in ("zone-a-1", "zone-b-1")]
    assert len({state_directory(lab, node) for lab, node in places}) == 4
