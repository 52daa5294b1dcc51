"""Cases of CoreDNS' own tests of its Kubernetes plugin: recorded once from its Go module into the cache.

Its tests hold a cluster's objects, and for each query the expected reply. They are run with a few functions replaced,
which write all of it as JSON lines, and they must pass: so each recorded reply is the one that its table expects.
`make setup` records them, unless they are there; `python -m bench.dns.coredns_cases` does only that.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bench.dns import coredns
from zonewise.errors import ZonewiseError
from zonewise.lab import paths
from zonewise.lab.build import binaries, build, go_copy
from zonewise.lab.build.binaries import BinariesError
from zonewise.lab.build.build import GoToolchain
from zonewise.lab.progress import ProgressReporter

SOURCES: Final = Path(__file__).parent / "recorder"
_PACKAGE: Final = "github.com/coredns/coredns/plugin/kubernetes"
_FILE: Final = "cases.jsonl"
_TESTS: Final = "tests.txt"
_REPLACED: Final[Mapping[str, tuple[str, ...]]] = {
    "handler.go": ("ServeDNS",),
    "kubernetes.go": ("Services", "endpointHostname"),
    "external.go": ("External",),
    "ns.go": ("nsAddrs",),
}
"""The functions that those of recorder.go stand in for, by file of the package."""


def find() -> Path:
    """The recorded cases."""
    file = _directory() / _FILE
    if not file.is_file():
        raise BinariesError(f"CoreDNS' cases are not in {file}: run `make setup`")
    return file


def test_names() -> list[str]:
    """All test functions of the plugin, recorded or not."""
    return find().with_name(_TESTS).read_text().split()


def ensure(reporter: ProgressReporter) -> Path:
    """The recorded cases, recorded now unless they are there."""
    if build.once(_directory(), SOURCES, reporter, lambda go, result: _record(go, result, reporter)):
        reporter.step(f"CoreDNS' cases are in {_directory()}")
    return find()


def version() -> str:
    """Of the CoreDNS that we compare with."""
    match = re.search(r"github\.com/coredns/coredns (v\S+)", (coredns.MODULE / "go.mod").read_text())
    if match is None:
        raise BinariesError(f"{coredns.MODULE / 'go.mod'} names no version of CoreDNS")
    return match[1]


def _directory() -> Path:
    return paths.cache_root() / "coredns-cases" / f"{version()}-{binaries.sources_hash(SOURCES)}"


def _record(go: GoToolchain, result: Path, reporter: ProgressReporter) -> None:
    """In a copy of CoreDNS' module, whose packages are compiled already."""
    reporter.step(f"recording the cases of CoreDNS {version()}: two minutes, once")
    recorder = (go.module / "recorder.go").rename(go.module / "recorder_test.go")
    for name in ("go.mod", "go.sum"):
        shutil.copy(coredns.MODULE / name, go.module)
    package = Path(go.run(["list", "-mod=mod", "-f", "{{.Dir}}", _PACKAGE]).strip())
    copied = go.module / package.name
    copied.mkdir()
    go_copy.copy_package(package, copied, _REPLACED)
    recorder.rename(copied / recorder.name)
    test = ["test", "-mod=mod", "-trimpath", "-vet=off", "-count=1", f"./{copied.name}"]
    listed = go.run([*test, "-list=^Test"])
    (result / _TESTS).write_text("".join(f"{name}\n" for name in re.findall(r"^Test\w+$", listed, re.MULTILINE)))
    go.run([*test, f"-record={result / _FILE}"])


def main() -> None:
    reporter = ProgressReporter(sys.stderr)
    try:
        ensure(reporter)
    except ZonewiseError as error:
        reporter.close()
        sys.exit(f"setup: {error}")


if __name__ == "__main__":
    main()
