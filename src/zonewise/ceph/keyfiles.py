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
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)


def keyring(user: str, key: str) -> str:
    return f"[client.{user}]\n\tkey = {key}\n"
