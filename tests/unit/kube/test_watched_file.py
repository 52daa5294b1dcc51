"""Watched files: reread when replaced, last content kept while missing."""

import os
from pathlib import Path

import pytest

from zonewise.kube.client.watched_file import WatchedFile, content_of, source_of
from zonewise.kube.wire.errors import ConfigError


def test_replaced_file_is_reread(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    file = WatchedFile(path)
    assert file.content() == b"first"
    (tmp_path / "next").write_text("other")
    (tmp_path / "next").replace(path)
    assert file.content() == b"other"


def test_file_written_in_place_is_reread(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    file = WatchedFile(path)
    file.content()
    path.write_text("longer than before")
    assert file.content() == b"longer than before"


def test_volume_swapped_by_symlink_is_reread(tmp_path: Path) -> None:
    """As the kubelet does for projected tokens."""
    for generation in ("one", "two"):
        (tmp_path / generation).mkdir()
        (tmp_path / generation / "token").write_text(generation)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "token").symlink_to("..data/token")
    file = WatchedFile(tmp_path / "token")
    assert file.content() == b"one"
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").replace(tmp_path / "..data")
    assert file.content() == b"two"


def test_unchanged_file_is_not_reread(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    file = WatchedFile(path)
    assert file.content() is file.content()


def test_undetectable_change_is_read_after_forget(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    file = WatchedFile(path)
    file.content()
    before = path.stat()
    path.write_text("other")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.content() == b"first"
    file.forget()
    assert file.content() == b"other"


def test_missing_file_keeps_its_content(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first")
    file = WatchedFile(path)
    file.content()
    path.unlink()
    assert file.content() == b"first"
    path.write_text("second")
    assert file.content() == b"second"


def test_file_that_never_existed_raises_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="token cannot be read: No such file or directory"):
        WatchedFile(tmp_path / "token").content()


def test_inline_data_is_its_own_content() -> None:
    assert content_of(source_of(b"pem")) == b"pem"
    assert content_of(source_of(None)) == b""
