"""OCI image archives made from files in memory, without a registry or an image builder. Pure.

An archive is a tar with an image layout (OCI image specification, "Image Layout"): blobs named after their hash, and an index.
The same files give the same digest.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
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


def archive(name: str, files: ImageFiles, settings: Mapping[str, Any], architecture: str) -> bytes:
    """`settings` is the image configuration's `config`: Entrypoint, Cmd, Env, User, Labels."""
    layer = _layer(files)
    config = _encode(
        {
            "architecture": architecture,
            "os": "linux",
            "config": dict(settings),
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _encode(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, config),
            "layers": [_descriptor(_LAYER, layer)],
        }
    )
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]}
    index = {"schemaVersion": 2, "manifests": [{**_descriptor(_MANIFEST, manifest), "annotations": names}]}
    blobs = {f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}": blob for blob in (layer, config, manifest)}
    return _tar({"oci-layout": _encode({"imageLayoutVersion": "1.0.0"}), "index.json": _encode(index), **blobs})


def _layer(files: ImageFiles) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path, mode in sorted(files.directories.items()):
            tar.addfile(_entry(path, tarfile.DIRTYPE, mode))
        for path, content in sorted(files.programs.items()):
            tar.addfile(_entry(path, tarfile.REGTYPE, 0o755, len(content)), io.BytesIO(content))
        for path, text in sorted(files.texts.items()):
            content = text.encode()
            tar.addfile(_entry(path, tarfile.REGTYPE, 0o644, len(content)), io.BytesIO(content))
        for path, target in sorted(files.links.items()):
            link = _entry(path, tarfile.SYMTYPE, 0o777)
            link.linkname = target
            tar.addfile(link)
    return stream.getvalue()


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


def _descriptor(media_type: str, blob: bytes) -> Json:
    return {"mediaType": media_type, "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _encode(document: Json) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
