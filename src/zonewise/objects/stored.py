"""Stored documents: the rules of every format that one release writes and another reads. Pure.

1. A format has a version: the field `version`, or 1 where there is none, as 0.1 wrote it.
2. Readers skip unknown fields, so a version may get new ones; what an older reader would misread is a new version.
3. A newer version than a reader knows is refused: not acted on, not replaced, not removed.
4. What is no document at all, or has other types, is torn: its reader sets it aside by name and reads the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from zonewise.errors import ZonewiseError

T = TypeVar("T")


class Stored(msgspec.Struct, frozen=True, tag_field="version", tag=1):
    """Base of the structs that are stored as JSON; a new version of one is its own `tag`."""


class StoredError(ZonewiseError):
    """A stored document can't be used."""


class NewerError(StoredError):
    """It is left as it is."""


class TornError(StoredError):
    pass


class _Head(msgspec.Struct, frozen=True):
    version: int = 1


def read(data: bytes | str, type_: type[T], what: str, dec_hook: Callable[[type, Any], Any] | None = None) -> T:
    """The document; `what` names it in an error. Raises NewerError or TornError."""
    try:
        return msgspec.json.decode(data, type=type_, dec_hook=dec_hook)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        config = getattr(type_, "__struct_config__", None)
        require_known(_version(data), config.tag if config else 1, what)
        raise TornError(f"{what} can't be read: {error}") from error


def require_known(version: int, newest: int, what: str) -> None:
    if version > newest:
        raise NewerError(
            f"{what} has format version {version}, and this release knows {newest}: it is left alone; "
            "run the release that wrote it, or a later one"
        )


def _version(data: bytes | str) -> int:
    """0 if it is unknown."""
    try:
        return msgspec.json.decode(data, type=_Head).version
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0
