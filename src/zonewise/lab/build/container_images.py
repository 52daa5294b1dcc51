"""Container images of Zonewise, built from its sources on this machine without a registry, and kept in the cache.

An archive's name has a hash of all that the image is made of, and it is moved into place whole: what is there is complete.
Two builds at once wait for each other. Steps of earlier builds are used again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

import zonewise
from zonewise.errors import UsageError
from zonewise.lab import paths
from zonewise.lab.build import build, debian_base, setup
from zonewise.lab.build.buildah import SCRATCH, Buildah, ImageBuildError, OutdatedPackagesError
from zonewise.lab.build.debian_base import DebianBase
from zonewise.lab.decide import image_plan
from zonewise.lab.decide.image_plan import BuildArguments, ImageTarget
from zonewise.lab.progress import ProgressReporter

__all__ = ["ImageArchive", "ImageBuildError", "ImageReport", "ImageTarget", "ensure", "report"]

SOURCES: Final = Path(zonewise.__file__).parents[2]
_STORAGE: Final = "storage"
_KEPT_ARCHIVES: Final = 3
"""Of each target. More than one, because labs of other working trees may use theirs."""
_LARGEST_STORAGE_BYTES: Final = 6 << 30
_CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass(frozen=True, slots=True)
class ImageArchive:
    name: str
    """For `image:` in a pod."""
    path: Path
    """As `docker save` writes it."""


class ImageReport(msgspec.Struct, frozen=True, rename="camel"):
    """The JSON of `zonewise lab image build -o json`."""

    image: str
    archive: str
    bytes: int


def ensure(
    target: ImageTarget, reporter: ProgressReporter, *, renew: bool = False, sources: Path = SOURCES
) -> ImageArchive:
    """The image of these sources, built now unless it is there; `renew` builds it with the Debian packages of today."""
    read = _read(sources)
    directory = paths.cache_root() / "images"
    base = None if renew else debian_base.find(directory)
    archive = _archive(target, read, base, directory) if base else None
    if archive is None or not archive.path.is_file():
        directory.mkdir(parents=True, exist_ok=True)
        with build.locked(directory / "images.lock", reporter):
            archive = _make(target, read, directory, reporter, renew=renew)
    os.utime(archive.path)
    _remove_unused(target, directory)
    return archive


def report(built: ImageArchive, archive: Path) -> ImageReport:
    """Of the image and the archive that the user gets, which may be a copy."""
    return ImageReport(built.name, str(archive), archive.stat().st_size)


def _read(sources: Path) -> dict[str, bytes]:
    """All that an image is made of, by path."""
    absent = [name for name in image_plan.FILES if not (sources / name).is_file()]
    if absent:
        raise UsageError(
            f"images are built from the sources of zonewise, and {sources} has no {absent[0]}: "
            "run this in a clone of the repository, after `make setup`"
        )
    package = (str(path.relative_to(sources)) for path in (sources / image_plan.PACKAGE).rglob("*") if path.is_file())
    return {path: (sources / path).read_bytes() for path in (*image_plan.FILES, *filter(image_plan.is_source, package))}


def _archive(target: ImageTarget, read: dict[str, bytes], base: DebianBase, directory: Path) -> ImageArchive:
    key = image_plan.sources_hash(read, base.digest)
    name = image_plan.image_name(target, zonewise.__version__, key)
    return ImageArchive(name, directory / image_plan.archive_name(target, key))


def _make(
    target: ImageTarget, read: dict[str, bytes], directory: Path, reporter: ProgressReporter, *, renew: bool
) -> ImageArchive:
    """With the lock held. Packages that the mirror has replaced since the base was made can't be fetched: then the base is renewed."""
    _prepare(reporter)
    for abandoned in directory.glob(f"{SCRATCH}*"):  # by a killed build; with the lock held there is no other
        shutil.rmtree(abandoned, ignore_errors=True)
    if renew:
        debian_base.renew(directory, reporter)  # first, as it may fail: then all stays as it is
    if renew or _size(directory / _STORAGE) > _LARGEST_STORAGE_BYTES:
        shutil.rmtree(directory / _STORAGE, ignore_errors=True)
    try:
        return _attempt(target, read, directory, reporter, renew=renew)
    except OutdatedPackagesError:
        if renew:
            raise
        reporter.step("the mirror has newer packages")
        return _make(target, read, directory, reporter, renew=True)


def _attempt(
    target: ImageTarget, read: dict[str, bytes], directory: Path, reporter: ProgressReporter, *, renew: bool
) -> ImageArchive:
    base = debian_base.ensure(directory, reporter)
    archive = _archive(target, read, base, directory)
    if renew or not archive.path.is_file():
        buildah = Buildah(directory / _STORAGE, directory / f"{target.value}.log")
        _build(buildah, target, read, base, archive, reporter)
        reporter.step(f"{archive.name} is in {archive.path}")
    return archive


def _prepare(reporter: ProgressReporter) -> None:
    if os.geteuid() != 0:
        raise UsageError("building images needs root: run it with sudo")
    setup.prepare_images(reporter)
    missing = setup.missing_packages(setup.IMAGE_PACKAGES)
    if missing:
        raise ImageBuildError(
            f"building images needs {', '.join(missing)}: install them with your system's package tool"
        )


def _build(
    buildah: Buildah,
    target: ImageTarget,
    read: dict[str, bytes],
    base: DebianBase,
    archive: ImageArchive,
    reporter: ProgressReporter,
) -> None:
    reporter.step(f"building {archive.name}")
    digest = buildah.import_root(base.path, base.name)

    def show(line: str) -> None:
        progress = image_plan.progress(line)
        if progress:
            reporter.advance(*progress)

    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=archive.path.parent) as scratch:
        context, result = Path(scratch, "context"), Path(scratch, archive.path.name)
        _write(read, context)
        arguments = BuildArguments(
            f"{base.name.rpartition(':')[0]}@{digest}", zonewise.__version__, *_pip_settings(Path(scratch))
        )
        buildah.build(image_plan.build_arguments(target, archive.name, arguments, context), show)
        buildah.export(archive.name, result)
        result.rename(archive.path)


def _pip_settings(scratch: Path) -> tuple[str, bool]:
    """This machine's authorities, as a copy, and whether it names a package index: a build behind a proxy needs them."""
    certificates, copied = Path(os.environ.get("PIP_CERT", _CERTIFICATES)), scratch / "authorities.crt"
    if certificates.is_file():
        shutil.copyfile(certificates, copied)
    return (str(copied) if copied.exists() else ""), bool(os.environ.get("PIP_INDEX_URL"))


def _write(read: dict[str, bytes], context: Path) -> None:
    for path, content in read.items():
        (context / path).parent.mkdir(parents=True, exist_ok=True)
        (context / path).write_bytes(content)


def _size(storage: Path) -> int:
    return sum(path.lstat().st_size for path in storage.rglob("*"))


def _remove_unused(target: ImageTarget, directory: Path) -> None:
    archives = ((path.stat().st_mtime, path) for path in directory.glob(image_plan.archive_pattern(target)))
    for path in image_plan.unused(archives, _KEPT_ARCHIVES):
        path.unlink(missing_ok=True)
