"""OCI image archives made from files in memory, without a registry or an image builder. Pure.

An archive is a tar with an image layout (OCI image specification, "Image Layout"): blobs named after their hash, and an index.
The same files give the same digest.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

Json = dict[str, Any]
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
_LAYER: Final = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True, slots=True)
class ImageFiles:
    """What is in an image, by path without the leading slash."""

    programs: Mapping[str, bytes] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    directories: Mapping[str, int] = field(default_factory=dict)
    """With their modes."""
    setuid: frozenset[str] = frozenset()
    """Paths of programs that run as their owner, root."""


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes with their hash: a layer (a tar archive, which many images may share), a configuration or a manifest."""

    content: bytes
    digest: str


@dataclass(frozen=True, slots=True)
class Image:
    name: str
    layers: Sequence[Blob]
    """The lowest first."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The image configuration's `config`: Entrypoint, Cmd, Env, User, Labels."""


def archive(name: str, files: ImageFiles, settings: Mapping[str, Any], architecture: str) -> bytes:
    """An archive of one image with one layer."""
    return archive_of([Image(name, [layer(files)], settings)], architecture)


def archive_of(images: Sequence[Image], architecture: str) -> bytes:
    """An archive of many images. It has a layer that they share once."""
    blobs: dict[str, bytes] = {}
    manifests = [_add_image(image, architecture, blobs) for image in images]
    index = {"schemaVersion": 2, "manifests": manifests}
    return _tar({"oci-layout": _encode({"imageLayoutVersion": "1.0.0"}), "index.json": _encode(index), **blobs})


def _add_image(image: Image, architecture: str, blobs: dict[str, bytes]) -> Json:
    """Adds what the image consists of to `blobs`; returns its entry in the index."""
    config = _document(
        {
            "architecture": architecture,
            "os": "linux",
            "config": dict(image.settings),
            "rootfs": {"type": "layers", "diff_ids": [layer.digest for layer in image.layers]},
        }
    )
    manifest = _document(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, config),
            "layers": [_descriptor(_LAYER, layer) for layer in image.layers],
        }
    )
    for part in (*image.layers, config, manifest):
        blobs[f"blobs/{part.digest.replace(':', '/')}"] = part.content
    names = {
        "io.containerd.image.name": image.name,
        "org.opencontainers.image.ref.name": image.name.rpartition(":")[2],
    }
    return {**_descriptor(_MANIFEST, manifest), "annotations": names}


def blob(content: bytes) -> Blob:
    return Blob(content, f"sha256:{hashlib.sha256(content).hexdigest()}")


def layer(files: ImageFiles) -> Blob:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, mode in sorted(files.directories.items()):
            tar.addfile(_entry(path, tarfile.DIRTYPE, mode))
        for path, content in sorted(files.programs.items()):
            mode = 0o4755 if path in files.setuid else 0o755
            tar.addfile(_entry(path, tarfile.REGTYPE, mode, len(content)), io.BytesIO(content))
        for path, text in sorted(files.texts.items()):
            content = text.encode()
            tar.addfile(_entry(path, tarfile.REGTYPE, 0o644, len(content)), io.BytesIO(content))
        for path, target in sorted(files.links.items()):
            link = _entry(path, tarfile.SYMTYPE, 0o777)
            link.linkname = target
            tar.addfile(link)
    return blob(stream.getvalue())


def _entry(path: str, kind: bytes, mode: int, size: int = 0) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.type, entry.mode, entry.size = kind, mode, size
    return entry


def _tar(files: Mapping[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, content in files.items():
            tar.addfile(_entry(path, tarfile.REGTYPE, 0o644, len(content)), io.BytesIO(content))
    return stream.getvalue()


def _descriptor(media_type: str, content: Blob) -> Json:
    return {"mediaType": media_type, "digest": content.digest, "size": len(content.content)}


def _document(fields: Json) -> Blob:
    return blob(_encode(fields))


def _encode(document: Json) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
