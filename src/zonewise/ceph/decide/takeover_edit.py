"""Changes to the takeover map in its config map, that leave everything else in it as it was. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from zonewise.api.names import CSI_DRIVER
from zonewise.ceph.decide.domains import short_name
from zonewise.ceph.decide.takeover import DOCUMENT, MAP, VERSION

AUTOMATIC: Final = f"{CSI_DRIVER}/automatic"
"""Annotation: the entries that no person wrote, which are removed again without one."""


def edited(data: Mapping[str, str], added: Mapping[str, Sequence[str]], removed: Iterable[str] = ()) -> dict[str, str]:
    """The entries of the config map to write. A map that stands alone stays alone; else it is in the document."""
    if MAP in data:
        return {MAP: _text(_changed(json.loads(data[MAP]), added, removed))}
    document: dict[str, Any] = json.loads(data[DOCUMENT]) if DOCUMENT in data else {"version": VERSION}
    document[MAP] = _changed(document.get(MAP, {}), added, removed)
    return {DOCUMENT: _text(document)}


def _changed(before: Mapping[str, Any], added: Mapping[str, Sequence[str]], removed: Iterable[str]) -> dict[str, Any]:
    gone = {*removed, *added}
    return {key: value for key, value in before.items() if _named(key) not in gone} | {
        key: list(targets) for key, targets in added.items()
    }


def _named(key: str) -> str:
    """As `TakeoverMap` says it."""
    label, equals, value = key.rpartition("=")
    return f"{short_name(label)}{equals}{value}"


def _text(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


def automatic(annotations: Mapping[str, str]) -> frozenset[str]:
    """The entries that we wrote; nothing if somebody has spoiled the list: then all are a person's."""
    try:
        said = json.loads(annotations.get(AUTOMATIC, "[]"))
    except ValueError:
        return frozenset()
    return frozenset(each for each in said if isinstance(each, str)) if isinstance(said, list) else frozenset()
