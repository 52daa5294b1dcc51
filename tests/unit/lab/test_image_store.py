"""Image stores: their keys, which of them are removed, and what a node gets from one."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from zonewise.errors import ZonewiseError
from zonewise.lab import paths
from zonewise.lab.decide import oci_image
from zonewise.lab.decide.image_store import DATABASES, SHARED, key, surplus
from zonewise.lab.nodes import image_store
from zonewise.lab.nodes.image_import import ImageImportConfig
from zonewise.lab.nodes.image_store import _remove_surplus as remove_surplus


def test_key_depends_on_the_runtime_and_the_set_of_archives() -> None:
    assert key("v2", ["a", "b"]) == key("v2", ["b", "a"])
    assert len({key("v2", ["a"]), key("v3", ["a"]), key("v2", ["a", "b"]), key("v2", ["b"])}) == 4


def test_surplus_stores_are_those_unused_for_longest() -> None:
    last_use = {"old": 1.0, "older": 0.5, "new": 3.0, "newer": 4.0}
    assert surplus(last_use, 2) == ["older", "old"]
    assert surplus(last_use, 4) == []
    assert surplus({}, 2) == []


def write_archive(path: Path, content: bytes, name: str = "example.test/image:1") -> Path:
    files = oci_image.ImageFiles(programs={"program": content})
    path.write_bytes(oci_image.archive(name, files, {}, "amd64"))
    return path


def test_digest_is_that_of_the_images_in_an_archive(tmp_path: Path) -> None:
    one, same = write_archive(tmp_path / "one.tar", b"1"), write_archive(tmp_path / "same.tar", b"1")
    assert image_store.digest(one) == image_store.digest(same)
    other = write_archive(tmp_path / "other.tar", b"2")
    renamed = write_archive(tmp_path / "renamed.tar", b"1", "example.test/other:1")
    assert len({image_store.digest(archive) for archive in (one, other, renamed)}) == 3


def test_digest_of_a_compressed_archive_is_that_of_the_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(f"compressed {name}".encode())
    assert image_store.digest(tmp_path / "a") != image_store.digest(tmp_path / "b")


def make_store(directory: Path) -> Path:
    for name in DATABASES:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("database")
    for name in SHARED:
        (directory / name / "1").mkdir(parents=True)
        (directory / name / "1" / "file").write_text("content")
    return directory


def test_nodes_have_their_own_databases_and_share_the_rest(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    for node in ("a", "b"):
        image_store.seed(store, tmp_path / node)
    for name in DATABASES:
        (tmp_path / "a" / name).write_text("changed by a")
        assert [(path / name).read_text() for path in (store, tmp_path / "b")] == ["database"] * 2
    for name in SHARED:
        (tmp_path / "a" / name / "1").unlink()
        assert (tmp_path / "b" / name / "1").readlink() == store / name / "1"
        assert (tmp_path / "b" / name / "1" / "file").read_text() == "content"


def test_a_node_that_starts_again_keeps_what_it_has(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    image_store.seed(store, tmp_path / "a")
    (tmp_path / "a" / DATABASES[0]).write_text("its own")
    image_store.seed(store, tmp_path / "a")
    assert (tmp_path / "a" / DATABASES[0]).read_text() == "its own"


def test_failure_of_an_import_has_the_end_of_both_logs(tmp_path: Path) -> None:
    log, containerd = tmp_path / "import.log", tmp_path / "root.log"
    log.write_text(f"Traceback\nzonewise.errors.ZonewiseError: containerd did not start: see {containerd}\n")
    expected = "zonewise.errors.ZonewiseError: containerd did not start"
    assert image_store.import_failure(log, containerd) == expected
    containerd.write_text("starting\nno space left on device\n")
    assert image_store.import_failure(log, containerd) == f"{expected}: starting no space left on device"


def fail_to_end(*_: object, timeout: float, **_others: object) -> None:
    raise subprocess.TimeoutExpired("unshare", timeout)


def test_import_that_does_not_end_is_an_error_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", fail_to_end)
    config = ImageImportConfig("/runtime", str(tmp_path / "root"), ("/a.tar",))
    with pytest.raises(ZonewiseError, match=r"could not be imported from /a\.tar within 900 seconds"):
        image_store._import(config, tmp_path)


def make_now(store: Path, *_: object) -> None:
    make_store(store)


def test_chosen_store_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "cache_root", lambda: tmp_path)
    monkeypatch.setattr(image_store, "_make", make_now)
    progress: list[str] = []
    for number in range(5):
        make_store(image_store.directory() / f"store-{number}")
    for _ in range(2):
        with image_store.ensure(Path("/runtime"), [], progress.append) as store:
            for name in ("store-0", "other-0", "other-1", "other-2"):
                (image_store.directory() / name).mkdir(exist_ok=True)
            os.utime(store, (0, 0))
            remove_surplus("store-0")
            assert store.is_dir()
    assert len(progress) == 1
    remove_surplus("store-0")
    assert not store.exists()
    assert image_store.lock(store).exists()


def test_what_killed_processes_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "cache_root", lambda: tmp_path)
    monkeypatch.setattr(image_store, "_make", make_now)
    left = [image_store.directory() / name for name in (".a-x_1", ".b-removed", ".c-x_1")]
    for entry in left:
        entry.mkdir(parents=True)
    with image_store.lock(image_store.directory() / "c").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # it is being made
        with image_store.ensure(Path("/runtime"), [], lambda _: None):
            assert [entry for entry in left if entry.exists()] == left[2:]


def test_store_in_use_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "cache_root", lambda: tmp_path)
    names = [f"store-{number}" for number in range(6)]
    for number, name in enumerate(names):
        os.utime(make_store(image_store.directory() / name), (number, number))
    with image_store.lock(image_store.directory() / names[0]).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        remove_surplus(names[1])
    kept = sorted(entry.name for entry in image_store.directory().iterdir() if entry.is_dir())
    assert kept == [names[0], names[1], *names[-2:]]
