"""Images of Kubernetes' end-to-end tests in one archive, made without a registry into the cache.

User-space tools come from Debian by mmdebstrap, in one layer that several images share; the rest is static programs.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from support.conformance import recipes
from support.conformance.programs import SuitePrograms
from support.conformance.recipes import RecipeInputs
from zonewise.errors import ZonewiseError
from zonewise.lab import paths
from zonewise.lab.build import build, node_runtime, setup
from zonewise.lab.decide import image_plan, oci_image
from zonewise.lab.nodes import images as lab_images
from zonewise.lab.progress import ProgressReporter

_SUITE: Final = "bookworm"
_KEPT: Final = 2
_SCRATCH: Final = "zonewise-build-"
_PACKAGES: Final = {"mmdebstrap": "mmdebstrap"}
_LEFT_OUT: Final = ("/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/man/*")
_SOURCES: Final = (Path(recipes.__file__), Path(__file__), Path(oci_image.__file__))


def ensure(programs: SuitePrograms, reporter: ProgressReporter) -> Path:
    """The archive, made now unless it is there."""
    inputs = [str(programs.directory), str(programs.coredns), str(node_runtime.find())]
    archive = _directory() / f"images-{_hash(*inputs, *(file.read_text() for file in _SOURCES))}.tar"
    if not archive.exists():
        _ensure_locked(archive, programs, reporter)
    os.utime(archive)  # those used last are kept
    return archive


def _ensure_locked(archive: Path, programs: SuitePrograms, reporter: ProgressReporter) -> None:
    """One lock for all archives: whoever holds it knows that no other build has temporary files."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with build.locked(archive.parent / "lock", reporter):
        if archive.exists():
            return
        remove_abandoned(archive.parent)
        _write(archive, programs, reporter)
        remove_unused(archive.parent)


def remove_abandoned(directory: Path) -> None:
    """What builds left that were killed."""
    for path in directory.glob("*.new"):
        path.unlink()
    for path in directory.glob(f"{_SCRATCH}*"):
        shutil.rmtree(path)


def remove_unused(directory: Path) -> None:
    for kind in ("images", "debian"):
        archives = ((path.stat().st_mtime, path) for path in directory.glob(f"{kind}-*.tar"))
        for path in image_plan.unused(archives, _KEPT):
            path.unlink()


def _write(archive: Path, programs: SuitePrograms, reporter: ProgressReporter) -> None:
    listed = subprocess.check_output([programs.suite, "--list-images"], text=True).split()
    debian = _debian(reporter)
    reporter.step("writing the archive of test images")
    made = recipes.images(listed, _files(programs, debian))
    content = oci_image.archive_of(made, lab_images.architecture())
    scratch = archive.with_suffix(".new")
    scratch.write_bytes(content)
    scratch.rename(archive)
    reporter.step(f"{len(made)} test images ({len(content) >> 20} MiB) are in {archive}")


def _files(programs: SuitePrograms, debian: Path) -> RecipeInputs:
    binaries = {**programs.in_images, "coredns": programs.coredns, "pause": node_runtime.find() / "pause"}
    return RecipeInputs(
        programs={name: path.read_bytes() for name, path in binaries.items()},
        porter={path.name: path.read_text() for path in programs.porter_files},
        busybox=lab_images.busybox(),
        debian=oci_image.blob(debian.read_bytes()),
    )


def _debian(reporter: ProgressReporter) -> Path:
    """The layer with Debian's tools; a new list of packages makes a new one."""
    layer = _directory() / f"debian-{_hash(_SUITE, *recipes.PACKAGES, *recipes.USERS, *_LEFT_OUT)}.tar"
    if layer.exists():
        os.utime(layer)
        return layer
    if missing := setup.missing_packages(_PACKAGES):
        setup.install(missing, "Kubernetes' end-to-end tests", reporter)
    reporter.step(f"fetching {len(recipes.PACKAGES)} Debian packages for test images: a minute, once")
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=layer.parent) as scratch:
        made = Path(scratch, "layer.tar")
        _run_mmdebstrap(made)
        made.rename(layer)
    return layer


def _run_mmdebstrap(target: Path) -> None:
    command = shutil.which("mmdebstrap")
    if command is None:
        raise ZonewiseError("mmdebstrap is needed to make the test images: install the package mmdebstrap")
    options = [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    hooks = [f'--customize-hook=chroot "$1" {command}' for command in (*recipes.USERS, "mkdir -p /uploads")]
    done = subprocess.run(
        [command, "--variant=minbase", f"--include={','.join(recipes.PACKAGES)}", *options, *hooks, _SUITE, target],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise ZonewiseError(f"the layer of Debian's tools could not be made: {done.stderr.strip()[-400:]}")


def _directory() -> Path:
    return paths.cache_root() / "e2e-images"


def _hash(*inputs: str) -> str:
    return hashlib.sha256("\0".join((platform.machine(), *inputs)).encode()).hexdigest()[:12]
