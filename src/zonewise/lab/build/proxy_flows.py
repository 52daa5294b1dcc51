"""Flow tables of kube-proxy's own nftables tests: recorded once from its Go module into the cache.

Its tests hold states of a cluster, and for each the packets that are sent and where they must arrive. They are run with a
few functions replaced, which write all of it as JSON lines. `make setup` records them, unless they are there; `python -m
zonewise.lab.build.proxy_flows` does only that. It took four seconds of CPU time after a build of the lab's programs, three minutes
with an empty cache of Go.
"""

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from zonewise.errors import ZonewiseError
from zonewise.lab import paths
from zonewise.lab.build import binaries, build, go_copy
from zonewise.lab.build.binaries import DEFAULT_VERSION, BinariesError
from zonewise.lab.build.build import GoToolchain
from zonewise.lab.progress import ProgressReporter

SOURCES: Final = Path(__file__).parent / "proxyflows"
_PACKAGE: Final = "k8s.io/kubernetes/pkg/proxy/nftables"
_FILE: Final = "flows.jsonl"
_REPLACED: Final[Mapping[str, tuple[str, ...]]] = {
    "proxier.go": (
        "OnServiceUpdate",
        "OnEndpointSliceAdd",
        "OnEndpointSliceUpdate",
        "OnEndpointSliceDelete",
        "syncProxyRules",
    ),
    "proxier_test.go": ("NewFakeProxier",),
    "helpers_test.go": ("runPacketFlowTests",),
}
"""The functions that those of recorder.go stand in for, by file of the package."""


def find() -> Path:
    """The recorded events."""
    file = _directory() / _FILE
    if not file.is_file():
        raise BinariesError(f"kube-proxy's flow tables are not in {file}: run `make setup`")
    return file


def ensure(reporter: ProgressReporter) -> Path:
    """The recorded events, recorded now unless they are there."""
    if build.once(_directory(), SOURCES, reporter, lambda go, result: _record(go, result, reporter)):
        reporter.step(f"kube-proxy's flow tables are in {_directory()}")
    return find()


def _directory() -> Path:
    return paths.cache_root() / "kube-proxy-flows" / f"{DEFAULT_VERSION}-{binaries.sources_hash(SOURCES)}"


def _record(go: GoToolchain, result: Path, reporter: ProgressReporter) -> None:
    """In a copy of the lab's module, whose packages are compiled already."""
    reporter.step("recording kube-proxy's flow tables: a minute, once")
    recorder = (go.module / "recorder.go").rename(go.module / "recorder_test.go")
    for name in ("go.mod", "go.sum"):
        shutil.copy(binaries.SOURCES / name, go.module)
    package = Path(go.run(["list", "-f", "{{.Dir}}", _PACKAGE]).strip())
    copied = go.module / package.name
    copied.mkdir()
    go_copy.copy_package(package, copied, _REPLACED)
    recorder.rename(copied / recorder.name)
    go.run(["test", "-mod=mod", "-trimpath", "-vet=off", "-count=1", f"./{copied.name}", f"-record={result / _FILE}"])


def main() -> None:
    reporter = ProgressReporter(sys.stderr)
    try:
        ensure(reporter)
    except ZonewiseError as error:
        reporter.close()
        sys.exit(f"setup: {error}")


if __name__ == "__main__":
    main()
