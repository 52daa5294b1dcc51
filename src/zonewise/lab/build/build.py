"""Go builds of the lab's binaries: fetch modules, compile, move the result into the cache in one step.

An interrupted build continues where it stopped, because Go keeps what it fetched and compiled. Two builds at once wait for
each other, and the second finds the first one's result.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from zonewise.lab.build import binaries, gomod
from zonewise.lab.build.binaries import BINARY, DEFAULT_VERSION, PROGRAMS, SOURCES, STAGES, Binaries, BinariesError
from zonewise.lab.progress import Estimate, ProgressReporter, duration

_STAGE_FILES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
)
_LINKING_WEIGHT = 0.04  # of all sources: what linking took beside compiling
GO_HOME = Path("/usr/local/go")  # where Go's own installer puts it; often not in PATH
_INSTALL_GO = "install it from https://go.dev/dl/ and put it into PATH"
_ENVIRONMENT = {"CGO_ENABLED": "0", "GOWORK": "off"}


def ensure(version: str, reporter: ProgressReporter, sources: Path = SOURCES) -> Binaries:
    """The build of this version, made now unless it is there."""
    directory = binaries.build_directory(version, sources)
    if once(directory, sources, reporter, lambda go, result: _build(go, version, sources, result, reporter)):
        reporter.step(f"Kubernetes {version} is in {directory}")
    return Binaries(directory)


def once(directory: Path, sources: Path, reporter: ProgressReporter, make: Callable[[GoToolchain, Path], None]) -> bool:
    """Whether `make` had to fill the directory now, with Go in a copy of the sources; what is there is complete."""
    if directory.is_dir():
        return False
    directory.parent.mkdir(parents=True, exist_ok=True)
    with locked(directory.with_name(f"{directory.name}.lock"), reporter):
        if directory.is_dir():
            return False
        _remove_abandoned(directory)
        with tempfile.TemporaryDirectory(prefix=_scratch_prefix(directory), dir=directory.parent) as scratch:
            module, result = Path(scratch, "module"), Path(scratch, "result")
            result.mkdir()
            shutil.copytree(sources, module)
            make(GoToolchain(module), result)
            result.rename(directory)
    return True


def _build(go: GoToolchain, version: str, sources: Path, result: Path, reporter: ProgressReporter) -> None:
    reporter.step(f"building Kubernetes {version} with {go.version()}: some minutes, once")
    if version != DEFAULT_VERSION:
        gomod.select(go.module, version, go.run)
    compile_packages(go, ["."], [f"-ldflags={linker_flags(version)}"], result / BINARY, reporter)
    for program in PROGRAMS:
        (result / program).symlink_to(BINARY)
    if version == DEFAULT_VERSION:
        _write_stages(go, result / STAGES)
    else:
        _borrow_kwok(ensure(DEFAULT_VERSION, reporter, sources), result)


def _borrow_kwok(default: Binaries, result: Path) -> None:
    """See gomod for why. Builds stand side by side, so the links are relative."""
    (result / "kwok").unlink()
    for name in ("kwok", STAGES):
        (result / name).symlink_to(Path("..", default.directory.name, name))


def _scratch_prefix(directory: Path) -> str:
    return f"zonewise-build-{directory.name}-"


def _remove_abandoned(directory: Path) -> None:
    """Remains of a killed build of the same version; with the lock held no other build uses them."""
    for scratch in directory.parent.glob(f"{_scratch_prefix(directory)}*"):
        shutil.rmtree(scratch, ignore_errors=True)


class GoToolchain:
    """The Go command, run inside one module."""

    def __init__(self, module: Path) -> None:
        command = shutil.which("go") or shutil.which(GO_HOME / "bin" / "go")
        if command is None:
            raise BinariesError(f"Go {_wanted(module)} or newer is needed to build the lab's programs: {_INSTALL_GO}")
        self._command = command
        self.module = module

    def version(self) -> str:
        """As Go chose it for this module; what can't read our go.mod is too old."""
        try:
            self.run(["list", "-m"])
            return self.run(["env", "GOVERSION"]).strip()
        except BinariesError as error:
            raise BinariesError(f"Go {_wanted(self.module)} or newer is needed: {_INSTALL_GO} ({error})") from error

    def run(self, arguments: Sequence[str], on_message: Callable[[str], None] = lambda _line: None) -> str:
        """Its output; each line of its messages goes to on_message, the last ones into the error if it fails."""
        messages: list[str] = []
        with tempfile.TemporaryFile("w+") as output, self._start(arguments, output) as process:
            try:
                for line in process.stderr or ():
                    messages.append(line.strip())
                    on_message(messages[-1])
                process.wait()
            finally:
                process.terminate()  # no effect once it ended; on Ctrl-C no compiler is left running
            output.seek(0)
            answer = output.read()
            if process.returncode != 0:
                raise BinariesError(f"`go {arguments[0]}` failed: {_cause(messages, answer)}")
            return answer

    def _start(self, arguments: Sequence[str], output: IO[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self._command, *arguments],
            cwd=self.module,
            env={**os.environ, **_ENVIRONMENT},
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
        )


def _cause(messages: Sequence[str], answer: str) -> str:
    """Asked for JSON, Go puts the cause there, and prints no message."""
    try:
        error = json.loads(answer)["Error"]
    except (ValueError, KeyError, TypeError):
        error = ""
    return " ".join(_complaints(messages)[:3]) or " ".join(error.split()) or "it did not say why"


def _complaints(messages: Sequence[str]) -> list[str]:
    """What is neither a package that was compiled (one word) nor a module that was fetched."""
    return [line for line in messages if " " in line and not line.startswith("go: downloading")]


def _wanted(module: Path) -> str:
    match = re.search(r"^go (\d+\.\d+)", (module / "go.mod").read_text(), re.MULTILINE)
    return match[1] if match else ""


def compile_packages(
    go: GoToolchain, packages: Sequence[str], options: Sequence[str], output: Path, reporter: ProgressReporter
) -> None:
    """Compile commands into the file, or the existing directory, `output`."""
    chosen = ["-trimpath", *options]
    weights = _stale_packages(go, packages, chosen, reporter)
    reporter.step(f"compiling {len(weights)} packages")
    estimate = Estimate(weights, linking=int(sum(weights.values()) * _LINKING_WEIGHT) + 1)
    begin = time.monotonic()

    def show(package: str) -> None:
        estimate.add(package)
        left = estimate.seconds_left(time.monotonic() - begin)
        when = f", about {duration(left)} left" if left is not None else ""
        reporter.advance(f"{estimate.count} of {len(weights)} packages compiled{when}", estimate.fraction)

    go.run(["build", "-v", *chosen, "-o", str(output), *packages], show)


def _stale_packages(
    go: GoToolchain, packages: Sequence[str], options: Sequence[str], reporter: ProgressReporter
) -> dict[str, int]:
    """Which packages Go will compile, with the size of their sources; asking makes Go fetch the modules."""
    expected = len(gomod.required((go.module / "go.mod").read_text()))
    fetched = 0

    def show(message: str) -> None:
        nonlocal fetched
        if message.startswith("go: downloading"):
            fetched += 1
            reporter.advance(f"{fetched} modules fetched", min(1.0, fetched / expected))

    template = '{{if .Stale}}{{.ImportPath}}\t{{.Dir}}\t{{join .GoFiles " "}}{{end}}'
    listing = go.run(["list", "-deps", *options, "-f", template, *packages], show)
    return dict(_weigh(*line.split("\t")) for line in listing.splitlines() if line)


def _weigh(package: str, directory: str, files: str) -> tuple[str, int]:
    return package, sum(Path(directory, name).stat().st_size for name in files.split())


def linker_flags(version: str) -> str:
    """Without a version linked in, clients see v0.0.0."""
    major, minor, _ = version.removeprefix("v").split(".")
    facts = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "modules",
        "buildDate": "1970-01-01T00:00:00Z",  # the same sources give the same binary
    }
    names = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(["-s", "-w", *(f"-X {name}.{key}={value}" for name in names for key, value in facts.items())])


def _write_stages(go: GoToolchain, path: Path) -> None:
    """kwok's stages for nodes and pods; they ship in its module."""
    root = Path(go.run(["list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"]).strip(), "kustomize", "stage")
    path.write_text("".join(f"---\n{(root / file).read_text()}" for file in _STAGE_FILES))


@contextmanager
def locked(path: Path, reporter: ProgressReporter) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            reporter.step("waiting for another build to finish")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
