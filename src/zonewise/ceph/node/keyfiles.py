"""Files with secrets in them: private from the first byte on, and there only while somebody has to read them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def present(path: Path, text: str) -> Iterator[Path]:
    write(path, text)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def write(path: Path, text: str) -> None:
    """In one step: a daemon that a predecessor of ours started may be reading the one before."""
    draft = path.with_name(f"{path.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    draft.rename(path)


def remove(directory: Path, *names: str) -> None:
    """What a predecessor that was killed may have left."""
    for name in names:
        (directory / name).unlink(missing_ok=True)
        (directory / f"{name}.new").unlink(missing_ok=True)


def keyring(user: str, key: str) -> str:
    return f"[client.{user}]\n\tkey = {key}\n"
