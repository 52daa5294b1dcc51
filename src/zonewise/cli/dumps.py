"""The option `-f DUMP`: reads a dump of a cluster from a file or from stdin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zonewise.errors import UsageError

if TYPE_CHECKING:
    from zonewise.dump import Views

file_option = click.option(
    "-f",
    "--file",
    "file",
    metavar="DUMP",
    type=click.Path(allow_dash=True),
    help="Read a YAML or JSON dump instead of a cluster; - for stdin.",
)


def source_of(file: str) -> str:
    return "stdin" if file == "-" else file


def bytes_of(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"{file} can't be read: {error.strerror}") from error


def read(file: str, views: Views) -> dict[str, list[Any]]:
    from zonewise import dump

    return dump.read(bytes_of(file), source_of(file), views)
