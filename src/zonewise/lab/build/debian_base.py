"""Debian root file system in which images are built, made by mmdebstrap once into the cache.

Its name has a hash of its content, so that an image's name says which Debian packages it was built with.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zonewise.lab.build import confined
from zonewise.lab.build.buildah import SCRATCH, ImageBuildError
from zonewise.lab.decide import image_plan
from zonewise.lab.progress import ProgressReporter

_DIGEST_LENGTH: Final = 12
_OS_RELEASE: Final = Path("/etc/os-release")


@dataclass(frozen=True, slots=True)
class DebianBase:
    path: Path

    @property
    def digest(self) -> str:
        return self.path.stem.rpartition("-")[2]

    @property
    def name(self) -> str:
        return f"localhost/zonewise-base:{self.digest}"


def find(directory: Path) -> DebianBase | None:
    made = sorted(directory.glob(f"{_prefix(_suite())}*.tar"))
    return DebianBase(made[0]) if made else None


def ensure(directory: Path, reporter: ProgressReporter) -> DebianBase:
    return find(directory) or _make(directory, reporter)


def renew(directory: Path, reporter: ProgressReporter) -> DebianBase:
    """Make it from the Debian packages of today. The one before goes only once the new one is there."""
    before = set(directory.glob(f"{_prefix(_suite())}*.tar"))
    base = _make(directory, reporter)
    for path in before - {base.path}:
        path.unlink()
    return base


def _make(directory: Path, reporter: ProgressReporter) -> DebianBase:
    reporter.step(f"making a Debian {_suite()} to build images in: about a minute, once")
    with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=directory) as scratch:
        archive = Path(scratch, "root.tar")
        with archive.open("wb") as file:
            done = subprocess.run(
                confined.argv(directory, "mmdebstrap", *image_plan.bootstrap_arguments(_suite())),
                env={**os.environ, "SOURCE_DATE_EPOCH": "0"},
                stdout=file,
                stderr=subprocess.PIPE,
                check=False,
            )
        if done.returncode:
            why = image_plan.failure(done.stderr.decode(errors="replace").splitlines())
            raise ImageBuildError(f"mmdebstrap could not make a Debian {_suite()}: {why}")
        with archive.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()[:_DIGEST_LENGTH]
        return DebianBase(archive.rename(directory / f"{_prefix(_suite())}{digest}.tar"))


def _prefix(suite: str) -> str:
    return f"base-{suite}-{image_plan.bootstrap_hash(suite)}-"


def _suite() -> str:
    return image_plan.suite(_OS_RELEASE.read_text() if _OS_RELEASE.exists() else "")
