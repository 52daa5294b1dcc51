"""What the watcher tells serving processes: records, groups and places as updates of plain values (see `stream`)."""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from zonewise.dns.clients import Places
from zonewise.dns.records import Answer
from zonewise.dns.service import Alias, Content, Records, Varied, Zonal
from zonewise.dns.table import Update
from zonewise.dns.views import Profile

NAMES_PER_UPDATE: Final = 64
"""Few enough that a process which applies one is back at its queries at once."""

_FORM: Final = 2
"""Of marshal: later ones write shared objects differently, and then equal records are not equal bytes."""

Written = bytes
"""Records as serving processes keep them until somebody asks (see `table`); equal records are equal bytes."""

Change = tuple[bytes, Written | None]
"""A name and its records; None when it is gone."""


def write(found: Records, *, foreign: bool = False) -> Written:
    """Of foreign names only the given types are ours to answer."""
    return marshal.dumps((_contents(found), foreign), _FORM) if found or foreign else b""


def write_zonal(found: Zonal) -> Written:
    by_zone = {zone: (_contents(there), False) for zone, there in found.by_zone.items()}
    return marshal.dumps((by_zone, (_contents(found.everything), False)), _FORM)


def name_updates(kind: str, changes: Iterable[Change]) -> Iterator[Update]:
    """`kind` is names, zonal or pointers."""
    listed = list(changes)
    for begin in range(0, len(listed), NAMES_PER_UPDATE):
        yield (kind, listed[begin : begin + NAMES_PER_UPDATE])


def profile_update(profile: Profile) -> Update:
    return ("profile", profile.id, dict(profile.groups))


def places_update(places: Places) -> Update:
    ranges = {size: {bits: dict(nodes) for bits, nodes in found.items()} for size, found in places.ranges.items()}
    return ("places", dict(places.exact), ranges)


def _contents(found: Mapping[int, Content]) -> dict[int, tuple[Any, ...]]:
    return {int(type_): _plain(content) for type_, content in found.items()}


def _plain(content: Content) -> tuple[Any, ...]:
    match content:
        case Answer():
            return tuple(content)
        case Varied(profile, answers, near):
            return profile, tuple(tuple(answer) if answer else None for answer in answers), near
        case Alias(target, answer):
            return target, tuple(answer)
