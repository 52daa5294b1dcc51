"""The lab's programs: built once from their Go modules into a cache, then found there."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from zonewise.lab import places

DEFAULT_VERSION = "v1.36.3"
SOURCES = Path(__file__).parent / "controlplane"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kwok")
STAGES = "kwok-stages.yaml"


class BinariesError(Exception):
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
    if not (directory / STAGES).exists():
        raise BinariesError(f"Kubernetes {version} is not built yet: run `zonewise lab setup --kube-version {version}`")
    return Binaries(directory)


def build_directory(version: str) -> Path:
    return places.cache_root() / "control-plane" / f"{version}-{sources_hash(SOURCES)}"


def sources_hash(sources: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(sources.iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
