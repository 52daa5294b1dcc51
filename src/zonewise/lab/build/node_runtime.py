"""Container runtime of nodes: containerd, its shim, ctr and pause, built once into the cache.

All are compiled from one Go module of ours, whose go.sum names the hash of every source. runc and the CNI plugins are the
system's (`setup.NODE_PACKAGES`).
"""

from pathlib import Path

from zonewise.lab import paths
from zonewise.lab.build import binaries, build
from zonewise.lab.build.binaries import BinariesError
from zonewise.lab.build.build import GoToolchain
from zonewise.lab.progress import ProgressReporter

SOURCES = Path(__file__).parent / "containerd"
VERSION = "v2.4.2"
_COMMANDS = "github.com/containerd/containerd/v2/cmd"
_PACKAGES = (f"{_COMMANDS}/containerd", f"{_COMMANDS}/containerd-shim-runc-v2", f"{_COMMANDS}/ctr", "./pause")
_WITHOUT = "no_btrfs,no_devmapper,no_zfs,no_aufs"  # snapshotters: labs use overlayfs


def directory(sources: Path = SOURCES) -> Path:
    return paths.cache_root() / "containerd" / f"{VERSION}-{binaries.sources_hash(sources)}"


def find() -> Path:
    built = directory()
    if not built.is_dir():
        raise BinariesError(f"containerd {VERSION} is not built yet: run `zonewise lab setup` (some minutes, once)")
    return built


def ensure(reporter: ProgressReporter) -> Path:
    built = directory()
    if build.once(built, SOURCES, reporter, lambda go, result: _build(go, result, reporter)):
        reporter.step(f"containerd {VERSION} is in {built}")
    return built


def _build(go: GoToolchain, result: Path, reporter: ProgressReporter) -> None:
    reporter.step(f"building containerd {VERSION} with {go.version()}: some minutes, once")
    flags = f"-ldflags=-s -w -X github.com/containerd/containerd/v2/version.Version={VERSION}"
    build.compile_packages(go, _PACKAGES, [f"-tags={_WITHOUT}", flags], result, reporter)
