"""kube-router, which enforces network policies on nodes: built once from its Go module into the cache.

The module is k3s' copy of it, in the newest version that could be fetched and checked against Go's checksum database. Its rules
are of iptables and ipset (`setup.POLICY_PACKAGES`); engines that decide in user space need nfnetlink_queue, which not every
kernel has.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from zonewise.lab import paths
from zonewise.lab.build import binaries, build
from zonewise.lab.build.binaries import BinariesError
from zonewise.lab.build.build import GoToolchain
from zonewise.lab.progress import ProgressReporter

SOURCES: Final = Path(__file__).parent / "kuberouter"
PROGRAM: Final = "kube-router"
VERSION: Final = "v2.6.2"
_VERSION_VARIABLE: Final = "github.com/cloudnativelabs/kube-router/v2/pkg/version.Version"


def directory(sources: Path = SOURCES) -> Path:
    return paths.cache_root() / PROGRAM / f"{VERSION}-{binaries.sources_hash(sources)}"


def find() -> Path:
    """The directory of the program."""
    built = directory()
    if not built.is_dir():
        raise BinariesError(
            f"{PROGRAM} {VERSION} is not built yet: `zonewise lab up --network-policies` builds it (some minutes, once)"
        )
    return built


def ensure(reporter: ProgressReporter) -> Path:
    built = directory()
    if build.once(built, SOURCES, reporter, lambda go, result: _build(go, result, reporter)):
        reporter.step(f"{PROGRAM} {VERSION} is in {built}")
    return built


def _build(go: GoToolchain, result: Path, reporter: ProgressReporter) -> None:
    reporter.step(f"building {PROGRAM} {VERSION} with {go.version()}: some minutes, once")
    build.compile_packages(go, ["tool"], [f"-ldflags=-s -w -X {_VERSION_VARIABLE}={VERSION}"], result, reporter)
