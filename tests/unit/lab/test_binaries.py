"""Build cache, with real Go and a module that builds in a second."""

import io
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.lab.machine import until
from zonewise.errors import UsageError
from zonewise.lab.build import binaries, build
from zonewise.lab.build.binaries import DEFAULT_VERSION, PROGRAMS, BinariesError
from zonewise.lab.progress import ProgressReporter

MAIN = 'package main\n\nimport "os"\n\nfunc main() { os.Stdout.WriteString(os.Args[0]) }\n'
GO_MOD = "module small\n\ngo 1.26\n\nrequire sigs.k8s.io/kwok v0.0.0\n\nreplace sigs.k8s.io/kwok => {kwok}\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZONEWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    kwok, sources = tmp_path / "kwok", tmp_path / "sources"
    for file in build._STAGE_FILES:
        (kwok / "kustomize/stage" / file).parent.mkdir(parents=True, exist_ok=True)
        (kwok / "kustomize/stage" / file).write_text(f"name: {file}\n")
    (kwok / "go.mod").write_text("module sigs.k8s.io/kwok\n")
    sources.mkdir()
    (sources / "go.mod").write_text(GO_MOD.format(kwok=kwok))
    (sources / "main.go").write_text(MAIN)
    return sources


def ensure(sources: Path) -> tuple[binaries.Binaries, str]:
    stream = io.StringIO()
    return build.ensure(DEFAULT_VERSION, ProgressReporter(stream), sources), stream.getvalue()


def test_build_runs_once_and_is_complete(sources: Path) -> None:
    built, output = ensure(sources)
    assert "building Kubernetes v1.36.3 with go1." in output
    for program in PROGRAMS:
        assert subprocess.check_output([built.path(program)], text=True).endswith(f"/{program}")
    assert built.stages.read_text().count("---\nname: ") == 5
    assert ensure(sources) == (built, "")
    assert sorted(path.suffix for path in built.directory.parent.iterdir() if path != built.directory) == [".lock"]


def test_changed_sources_get_another_build_directory(sources: Path) -> None:
    before = binaries.build_directory(DEFAULT_VERSION, sources)
    (sources / "main.go").write_text(MAIN + "// changed\n")
    assert binaries.build_directory(DEFAULT_VERSION, sources) != before
    assert binaries.build_directory("v1.35.4", sources).name.startswith("v1.35.4-")


def test_concurrent_builds_run_once(sources: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        (first, first_output), (second, second_output) = threads.map(ensure, [sources, sources])
    assert first == second
    assert (first_output + second_output).count("building Kubernetes") == 1


def test_killed_build_leaves_no_build_directory(sources: Path, cache: Path, tmp_path: Path) -> None:
    slow = tmp_path / "bin"
    slow.mkdir()
    (slow / "go").write_text('#!/bin/sh\n[ "$1" = build ] && exec sleep 100\nexec real-go "$@"\n')
    (slow / "go").chmod(0o755)
    go = subprocess.check_output(["sh", "-c", "PATH=$PATH:/usr/local/go/bin command -v go"], text=True).strip()
    (slow / "real-go").symlink_to(go)
    program = f"""
import sys, pathlib
from zonewise.lab import progress
from zonewise.lab.build import build
build.ensure({DEFAULT_VERSION!r}, progress.ProgressReporter(sys.stderr), pathlib.Path({str(sources)!r}))
"""
    log = tmp_path / "log"
    with log.open("w") as messages:
        victim = subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, "PATH": f"{slow}:{os.environ['PATH']}"},
            stderr=messages,
            start_new_session=True,
        )
    until(lambda: list(cache.glob("control-plane/zonewise-build-*/result")) or victim.poll() is not None)
    assert victim.poll() is None, log.read_text()
    os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()
    assert not binaries.build_directory(DEFAULT_VERSION, sources).exists()
    built, _ = ensure(sources)
    assert Path(built.path("kubectl")).exists()
    assert not list(cache.glob("control-plane/zonewise-build-*"))


def test_missing_go_is_reported(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(build, "GO_HOME", tmp_path / "nowhere")
    with pytest.raises(BinariesError, match=r"Go 1\.26 or newer is needed .* https://go\.dev/dl/"):
        ensure(sources)


def test_old_go_is_reported(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOTOOLCHAIN", "local")
    (sources / "go.mod").write_text((sources / "go.mod").read_text().replace("go 1.26", "go 1.99.0"))
    with pytest.raises(BinariesError, match=r"Go 1\.99 or newer is needed: install it"):
        ensure(sources)


def test_compiler_error_is_reported(sources: Path, cache: Path) -> None:
    (sources / "main.go").write_text("package main\n\nfunc main() { undefinedThing() }\n")
    with pytest.raises(BinariesError, match=r"`go build` failed: .*undefinedThing"):
        ensure(sources)
    assert not binaries.build_directory(DEFAULT_VERSION, sources).exists()


def test_missing_build_error_tells_how_to_build() -> None:
    with pytest.raises(
        BinariesError, match=r"v1\.35\.4 is not built yet: run `zonewise lab setup --kube-version v1\.35\.4`"
    ):
        binaries.find("v1.35.4")


@pytest.mark.parametrize("version", ["1.36.3", "v1.36", "latest", "v1.36.3/../x"])
def test_malformed_version_raises(version: str) -> None:
    with pytest.raises(UsageError, match=r"has the form v1\.36\.3"):
        binaries.build_directory(version)
