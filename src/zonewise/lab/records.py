"""Records on disk: msgspec structs as JSON, replaced atomically. A torn one is renamed, and counts as missing."""

import os
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from zonewise import stored_file

T = TypeVar("T")


def write(path: Path, record: msgspec.Struct) -> None:
    write_private(path, msgspec.json.format(msgspec.json.encode(record, enc_hook=_encode), indent=2))


def read(path: Path, type_: type[T]) -> T:
    """Raises FileNotFoundError, or NewerError for one of a newer release."""
    record = stored_file.read(path, type_, decode)
    if record is None:
        raise FileNotFoundError(f"no record {path}")
    return record


def write_private(path: Path, content: bytes) -> None:
    """Replace the file atomically; only its owner can ever read it."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    scratch.replace(path)


def _encode(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"records hold no {type(value).__name__}")


def decode(type_: type, value: Any) -> Any:
    if type_ is Path:
        return Path(value)
    raise NotImplementedError(f"records hold no {type_.__name__}")
