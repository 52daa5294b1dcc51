"""Programs of Kubernetes' end-to-end tests: built once from their Go modules into the cache.

All come from one module of ours, `suite`, whose go.sum names the hash of every source. CoreDNS is the benchmarks' own.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.dns import coredns

from zonewise.lab import paths
from zonewise.lab.build import binaries, build
from zonewise.lab.build.binaries import DEFAULT_VERSION
from zonewise.lab.build.build import GoToolchain
from zonewise.lab.progress import ProgressReporter

SOURCES: Final = Path(__file__).parent / "suite"
SUITE: Final = "k8s.io/kubernetes/test/e2e"
_COMMANDS: Final = (
    "github.com/onsi/ginkgo/v2/ginkgo",
    "k8s.io/kubernetes/test/images/agnhost",
    "k8s.io/kubernetes/test/images/nonewprivs",
    "k8s.io/kubernetes/test/images/regression-issue-74839",
    "k8s.io/sample-apiserver",
)
_ETCD: Final = "go.etcd.io/etcd/server/v3"
IN_IMAGES: Final = ("agnhost", "etcd", "nonewprivs", "regression-issue-74839", "sample-apiserver")
"""Programs of this build that images are made of."""
_PORTER: Final = "k8s.io/kubernetes/test/images/agnhost/porter"
_PORTER_FILES: Final = ("localhost.crt", "localhost.key")


@dataclass(frozen=True, slots=True)
class SuitePrograms:
    """A finished build, and CoreDNS."""

    directory: Path
    coredns: Path

    @property
    def suite(self) -> Path:
        return self.directory / "e2e.test"

    @property
    def ginkgo(self) -> Path:
        return self.directory / "ginkgo"

    @property
    def in_images(self) -> dict[str, Path]:
        return {name: self.directory / name for name in IN_IMAGES}

    @property
    def porter_files(self) -> list[Path]:
        """A certificate and its key, which agnhost serves with."""
        return [self.directory / name for name in _PORTER_FILES]


def ensure(reporter: ProgressReporter) -> SuitePrograms:
    directory = paths.cache_root() / "e2e" / f"{DEFAULT_VERSION}-{binaries.sources_hash(SOURCES)}"
    if build.once(directory, SOURCES, reporter, lambda go, result: _build(go, result, reporter)):
        reporter.step(f"Kubernetes' end-to-end tests are in {directory}")
    return SuitePrograms(directory, coredns.ensure())


def _build(go: GoToolchain, result: Path, reporter: ProgressReporter) -> None:
    """The suite is linked last: `go test -c` reports no progress, so that what it imports is compiled before."""
    reporter.step(f"building Kubernetes' end-to-end tests {DEFAULT_VERSION} with {go.version()}: some minutes, once")
    options = [f"-ldflags={build.linker_flags(DEFAULT_VERSION)}"]
    imports = go.run(["list", "-f", '{{join .TestImports "\\n"}}', SUITE]).split()
    build.compile_packages(go, [*imports, *_COMMANDS], options, result, reporter)
    go.run(["build", "-trimpath", "-o", str(result / "etcd"), _ETCD])  # by itself it would be named v3
    reporter.step("linking e2e.test")
    go.run(["test", "-c", "-vet=off", "-trimpath", *options, "-o", str(result / "e2e.test"), SUITE])
    porter = Path(go.run(["list", "-f", "{{.Dir}}", _PORTER]).strip())
    for name in _PORTER_FILES:
        (result / name).write_bytes((porter / name).read_bytes())
