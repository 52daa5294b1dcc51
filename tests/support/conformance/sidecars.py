"""Sidecars of CSI drivers and the snapshot controller, built from their Go modules into the cache, as images.

Each directory of `sidecars` is a Go module whose tools are the programs; its go.sum names the hash of every source. The
provisioner has one of its own, because it compiles with older libraries only. The manifests of the driver name newer versions
of the provisioner and the resizer, which Go's module proxy does not have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zonewise.lab import paths
from zonewise.lab.build import binaries, build
from zonewise.lab.build.build import GoToolchain
from zonewise.lab.decide import oci_image
from zonewise.lab.decide.oci_image import Image, ImageFiles
from zonewise.lab.nodes import images as lab_images
from zonewise.lab.progress import ProgressReporter

SOURCES: Final = Path(__file__).parent / "sidecars"
REPOSITORY: Final = "registry.k8s.io/sig-storage"
_PROVISIONER: Final = "provisioner"
_SNAPSHOTS: Final = "snapshots"
_ARCHIVE: Final = "images.tar"
_CRDS: Final = "crds"
_CRDS_MODULE: Final = "github.com/kubernetes-csi/external-snapshotter/client/v8"
_NOBODY: Final = "65532:65532"


@dataclass(frozen=True, slots=True)
class Sidecars:
    archives: tuple[Path, ...]
    crds: Path
    """The directory of the snapshots' kinds."""
    images: Mapping[str, str]
    """Names with their tags, by repository."""


def ensure(reporter: ProgressReporter) -> Sidecars:
    built = {module: _ensure(module, reporter) for module in (_PROVISIONER, _SNAPSHOTS)}
    images = {image.rpartition(":")[0]: image for module in built for image in image_names(module).values()}
    return Sidecars(tuple(directory / _ARCHIVE for directory in built.values()), built[_SNAPSHOTS] / _CRDS, images)


def image_names(module: str) -> dict[str, str]:
    """Image by program: a tool of the module, with the version that its go.mod requires."""
    go_mod = (SOURCES / module / "go.mod").read_text()
    required = dict(re.findall(r"^(?:require|\t) ?(\S+) (v\S+)", go_mod, re.MULTILINE))
    tools = re.findall(r"^(?:tool |\t)(\S+)/cmd/(\S+)$", go_mod, re.MULTILINE)
    return {program: f"{REPOSITORY}/{program}:{required[source]}" for source, program in tools}


def _ensure(module: str, reporter: ProgressReporter) -> Path:
    sources = SOURCES / module
    directory = paths.cache_root() / "sidecars" / f"{module}-{binaries.sources_hash(sources)}"
    build.once(directory, sources, reporter, lambda go, result: _build(module, go, result, reporter))
    return directory


def _build(module: str, go: GoToolchain, result: Path, reporter: ProgressReporter) -> None:
    names = image_names(module)
    reporter.step(f"building {', '.join(names)} with {go.version()}: some minutes, once")
    build.compile_packages(go, ["tool"], ["-ldflags=-s -w"], result, reporter)
    images = [_image(result / program, name) for program, name in names.items()]
    (result / _ARCHIVE).write_bytes(oci_image.archive_of(images, lab_images.architecture()))
    for program in names:
        (result / program).unlink()
    if module == _SNAPSHOTS:
        source = Path(go.run(["list", "-m", "-f", "{{.Dir}}", _CRDS_MODULE]).strip(), "config", "crd")
        (result / _CRDS).mkdir()
        for file in source.glob("snapshot.storage.k8s.io_*.yaml"):
            (result / _CRDS / file.name).write_bytes(file.read_bytes())


def _image(program: Path, name: str) -> Image:
    files = ImageFiles(programs={program.name: program.read_bytes()})
    return Image(name, [oci_image.layer(files)], {"Entrypoint": [f"/{program.name}"], "User": _NOBODY})
