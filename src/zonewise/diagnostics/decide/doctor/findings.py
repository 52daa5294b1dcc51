"""What `zonewise doctor` tells, as values: the fields of its JSON.

Users write alerts on the codes: one is never given another meaning, only added.
"""

from __future__ import annotations

import re
from enum import StrEnum

import msgspec


class FindingLevel(StrEnum):
    """`Wrong` makes the exit code 1; `Note` is worth knowing; `Unknown` could not be looked at."""

    FINE = "Fine"
    NOTE = "Note"
    WRONG = "Wrong"
    UNKNOWN = "Unknown"


class CheckGroup(StrEnum):
    CLUSTER = "Cluster"
    NODES = "Nodes"
    DATA_PLANE = "Data plane"
    ZONEWISE = "Zonewise"
    SERVICES = "Services"


class Finding(msgspec.Struct, frozen=True, rename="camel"):
    """`sentence` says what was found, `fix` what to do about it, `objects` whom it concerns."""

    group: CheckGroup
    code: str
    level: FindingLevel
    sentence: str
    fix: str = ""
    objects: tuple[str, ...] = ()


class Diagnosis(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    at: str
    server: str
    version: str
    installed: bool
    wrong: int
    notes: int
    findings: tuple[Finding, ...]


_VERB = re.compile(r"\{(\w+)\}")
_SINGULAR = {"are": "is", "have": "has"}


def counted(number: int, noun: str, words: str) -> str:
    """`words` with their verbs in braces, which follow the number: `{have} no zone label`."""
    if number == 1:
        return f"1 {noun} {_VERB.sub(lambda found: _SINGULAR.get(found[1], f'{found[1]}s'), words)}"
    return f"{number} {noun}s {_VERB.sub(lambda found: found[1], words)}"
