"""Check of the `-o json` output of a command against its published schema."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from zonewise.cli import schemas


def described(command: str, printed: str) -> Any:
    """`printed` decoded; fails if it has a field that is not in the schema of `command`, or of another type."""
    document = json.loads(printed)
    struct = msgspec.json.decode(printed, type=schemas.struct_of(command))
    paths = {field.path for field in schemas.fields(command)}
    rows, prefix = (document, ".[].") if isinstance(document, list) else ([document], ".")
    assert {f"{prefix}{key}" for row in rows for key in row} <= paths
    assert json.loads(msgspec.json.encode(struct)) == document, "a field is not in the schema"
    return document
