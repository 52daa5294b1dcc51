"""Images in the cache: found by their sources, refused without them, removed when others are used."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from zonewise.errors import UsageError
from zonewise.lab.build import container_images, debian_base
from zonewise.lab.build.container_images import ImageBuildError, ImageTarget
from zonewise.lab.build.debian_base import DebianBase
from zonewise.lab.decide import image_plan
from zonewise.lab.progress import ProgressReporter

REPORTER = ProgressReporter(io.StringIO())


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZONEWISE_CACHE", str(tmp_path))
    directory = tmp_path / "images"
    directory.mkdir()
    return directory


def built(cache: Path, target: ImageTarget) -> Path:
    """An archive as a build of the present sources leaves it, on a base of the cache."""
    suite = image_plan.suite(Path("/etc/os-release").read_text())
    (cache / f"base-{suite}-{image_plan.bootstrap_hash(suite)}-0123456789ab.tar").touch()
    base = debian_base.find(cache)
    assert base is not None
    assert base.name == "localhost/zonewise-base:0123456789ab"
    key = image_plan.sources_hash(container_images._read(container_images.SOURCES), base.digest)
    archive = cache / image_plan.archive_name(target, key)
    archive.write_bytes(b"archive")
    return archive


def test_archive_of_the_same_sources_is_not_built_again(cache: Path) -> None:
    archive = built(cache, ImageTarget.PROGRAMS)
    image = container_images.ensure(ImageTarget.PROGRAMS, REPORTER)
    assert image.path == archive
    assert image.name.endswith(archive.stem.partition("-")[2])
    assert container_images.report(image, archive).bytes == len(b"archive")


def test_archives_not_used_for_long_are_removed(cache: Path) -> None:
    others = [cache / f"zonewise-{number:012x}.tar" for number in range(4)]
    for age, path in enumerate(others):
        path.touch()
        os.utime(path, (1000 - age, 1000 - age))
    beside = cache / f"zonewise-csi-{0:012x}.tar"
    beside.touch()
    archive = built(cache, ImageTarget.PROGRAMS)
    container_images.ensure(ImageTarget.PROGRAMS, REPORTER)
    assert sorted(cache.glob("zonewise-*.tar")) == sorted([archive, *others[:2], beside])


def test_base_is_kept_until_a_new_one_is_made(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built(cache, ImageTarget.PROGRAMS)
    (cache / "storage").mkdir()
    before = debian_base.find(cache)
    assert before is not None
    new = before.path.with_name(before.path.name.replace(before.digest, "ba9876543210"))

    def fail(*_: object) -> DebianBase:
        raise ImageBuildError("no mirror")

    def make(*_: object) -> DebianBase:
        new.touch()
        return DebianBase(new)

    monkeypatch.setattr(container_images, "_prepare", lambda _: None)
    monkeypatch.setattr(debian_base, "_make", fail)
    with pytest.raises(ImageBuildError, match="no mirror"):
        container_images.ensure(ImageTarget.PROGRAMS, REPORTER, renew=True)
    assert before.path.exists()
    assert (cache / "storage").exists()
    monkeypatch.setattr(debian_base, "_make", make)
    debian_base.renew(cache, REPORTER)
    assert list(cache.glob("base-*")) == [new]


def test_package_without_sources_says_where_images_are_built(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no Containerfile: run this in a clone"):
        container_images.ensure(ImageTarget.PROGRAMS, REPORTER, sources=tmp_path)
    assert not list(cache.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_build_needs_root(cache: Path) -> None:
    os.seteuid(65534)
    try:
        with pytest.raises(UsageError, match="needs root"):
            container_images._prepare(REPORTER)
    finally:
        os.seteuid(0)
