"""What the watcher tells serving processes: updates of plain values, and how they stand in a stream.

Both ends are the same interpreter and the socket between them is private, so Python's own form is safe here, and it
is read several times faster than any other.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, cast

from zonewise.dns.clients import Places
from zonewise.dns.records import Answer
from zonewise.dns.service import Alias, Content, Records, Varied
from zonewise.dns.table import Update
from zonewise.dns.views import Profile

NAMES_PER_UPDATE: Final = 64
"""Few enough that a process which applies one is back at its queries at once."""

_LENGTH: Final = struct.Struct(">I")

Change = tuple[bytes, Records | None]
"""A name and its records; None when it is gone."""


def name_updates(kind: str, changes: Iterable[Change], *, foreign: bool = False) -> Iterator[Update]:
    """`kind` is names or wild. Of foreign names only the given types are ours to answer."""
    written = [(name, (_contents(found), foreign) if found is not None else None) for name, found in changes]
    for begin in range(0, len(written), NAMES_PER_UPDATE):
        yield (kind, written[begin : begin + NAMES_PER_UPDATE])


def profile_update(profile: Profile) -> Update:
    return ("profile", profile.id, dict(profile.groups))


def places_update(places: Places) -> Update:
    ranges = {size: {bits: dict(nodes) for bits, nodes in found.items()} for size, found in places.ranges.items()}
    return ("places", dict(places.exact), ranges)


def encode(update: Update) -> bytes:
    body = marshal.dumps(update)
    return _LENGTH.pack(len(body)) + body


class Decoder:
    """Bytes as they come, updates as they are whole."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def feed(self, data: bytes) -> Iterator[Update]:
        self._waiting += data
        while len(self._waiting) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._waiting)[0]
            if len(self._waiting) < end:
                return
            update = marshal.loads(bytes(self._waiting[_LENGTH.size : end]))  # noqa: S302 - from our own watcher only
            del self._waiting[:end]
            yield cast("Update", update)


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
