"""What a command prints with `-o json` against the schema that is published for it."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from zonewise.cli import schemas


def described(command: str, printed: str) -> Any:
    """`printed` as read; fails where it has a field that `command`'s schema does not, or another type."""
    read = json.loads(printed)
    account = msgspec.json.decode(printed, type=schemas.account_of(command))
    known = {field.path for field in schemas.fields(command)}
    rows, before = (read, ".[].") if isinstance(read, list) else ([read], ".")
    assert {f"{before}{key}" for row in rows for key in row} <= known
    assert json.loads(msgspec.json.encode(account)) == read, "what is not described is lost on the way"
    return read
