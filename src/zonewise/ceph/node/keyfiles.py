"""Key files: private from the first byte, and removed when they are no longer needed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def temporary(path: Path, text: str) -> Iterator[Path]:
    write(path, text)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def write(path: Path, text: str) -> None:
    """Atomic: a daemon of an earlier process may be reading the old file."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    draft.rename(path)


def remove(directory: Path, *names: str) -> None:
    """Remove files that a killed process may have left."""
    for name in names:
        (directory / name).unlink(missing_ok=True)
        (directory / f"{name}.new").unlink(missing_ok=True)


def keyring(user: str, key: str) -> str:
    return f"[client.{user}]\n\tkey = {key}\n"
