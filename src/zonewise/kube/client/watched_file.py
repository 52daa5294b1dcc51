"""Files that are replaced at run time: tokens, certificates, CAs. Read again only when they change."""

from __future__ import annotations

from pathlib import Path

from zonewise.kube.wire.access import Material
from zonewise.kube.wire.errors import ConfigError


class WatchedFile:
    """The newest readable content. A file that is away in the middle of a replacement keeps its last content."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fingerprint: tuple[int, int, int] | None = None
        self._content: bytes | None = None

    def content(self) -> bytes:
        try:
            self._read_if_changed()
        except OSError as error:
            if self._content is None:
                raise ConfigError(f"{self.path} cannot be read: {error.strerror}") from error
        assert self._content is not None
        return self._content

    def forget(self) -> None:
        """Read at the next use, changed or not."""
        self._fingerprint = None

    def _read_if_changed(self) -> None:
        status = self.path.stat()
        fingerprint = (status.st_mtime_ns, status.st_size, status.st_ino)
        if fingerprint != self._fingerprint:
            self._content = self.path.read_bytes()
            self._fingerprint = fingerprint


def source_of(material: Material | None) -> WatchedFile | bytes:
    match material:
        case Path():
            return WatchedFile(material)
        case _:
            return material or b""


def content_of(source: WatchedFile | bytes) -> bytes:
    return source.content() if isinstance(source, WatchedFile) else source
