"""Binaries of a lab: built once from their Go modules into a cache.

A build is one directory, named after the Kubernetes version and a hash of our Go sources, and moved into place whole:
what is there is complete. `build` makes it.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from zonewise.errors import UsageError, ZonewiseError
from zonewise.lab import paths

DEFAULT_VERSION = "v1.36.3"
SOURCES = Path(__file__).parent / "controlplane"
BINARY = "lab"
PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
    "kwok",
)
STAGES = "kwok-stages.yaml"
_VERSION = re.compile(r"v1\.\d+\.\d+")


class BinariesError(ZonewiseError):
    pass


@dataclass(frozen=True)
class Binaries:
    """A finished build: one file, a symlink per program, and kwok's stages."""

    directory: Path

    def path(self, program: str) -> str:
        return str(self.directory / program)

    @property
    def stages(self) -> Path:
        return self.directory / STAGES


def find(version: str = DEFAULT_VERSION) -> Binaries:
    directory = build_directory(version)
    if not directory.is_dir():
        wanted = "" if version == DEFAULT_VERSION else f" --kube-version {version}"
        raise BinariesError(
            f"Kubernetes {version} is not built yet: run `zonewise lab setup{wanted}` (some minutes, once)"
        )
    return Binaries(directory)


def build_directory(version: str, sources: Path = SOURCES) -> Path:
    if not _VERSION.fullmatch(version):
        raise UsageError(f"a Kubernetes version has the form {DEFAULT_VERSION}, not {version!r}")
    return paths.cache_root() / "control-plane" / f"{version}-{sources_hash(sources)}"


def sources_hash(sources: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path for path in sources.rglob("*") if path.is_file()):
        digest.update(str(file.relative_to(sources)).encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
