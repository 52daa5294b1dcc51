"""The report of `zonewise doctor`: the fields of its JSON.

Alerts depend on the codes: they are added to, and keep their meaning.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Final

import msgspec


class FindingLevel(StrEnum):
    """`Wrong` makes the exit code 1; `Note` is informational; `Unknown` could not be checked."""

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
    """`fix` says what to do; `objects` names what is concerned."""

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


def fine(group: CheckGroup, code: str, sentence: str, objects: tuple[str, ...] = ()) -> Finding:
    return Finding(group, code, FindingLevel.FINE, sentence, objects=objects)


def note(group: CheckGroup, code: str, sentence: str, fix: str, objects: tuple[str, ...] = ()) -> Finding:
    return Finding(group, code, FindingLevel.NOTE, sentence, fix, objects)


def wrong(group: CheckGroup, code: str, sentence: str, fix: str, objects: tuple[str, ...] = ()) -> Finding:
    return Finding(group, code, FindingLevel.WRONG, sentence, fix, objects)


def unknown(group: CheckGroup, code: str, sentence: str, fix: str, objects: tuple[str, ...] = ()) -> Finding:
    return Finding(group, code, FindingLevel.UNKNOWN, sentence, fix, objects)


_VERB: Final = re.compile(r"\{(\w+)\}")
_SINGULAR: Final = {"are": "is", "have": "has"}


def counted(number: int, noun: str, words: str) -> str:
    """`words` have their verbs in braces, which agree with the number: `{have} no zone label`."""
    if number == 1:
        return f"1 {noun} {_VERB.sub(lambda verb: _SINGULAR.get(verb[1], f'{verb[1]}s'), words)}"
    return f"{number} {noun}s {_VERB.sub(lambda verb: verb[1], words)}"
