"""What the watcher tells serving processes: sheets, names, groups and places as updates of plain values (see `stream`)."""

from __future__ import annotations

import marshal
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from zonewise.dns.decide.client_location import ClientLocations
from zonewise.dns.wire.records import WireAnswer

if TYPE_CHECKING:
    from zonewise.dns.decide.client_groups import ClientProfile

CHANGES_PER_UPDATE: Final = 64
"""Few enough that a process which applies one is back at its queries at once."""

_FORM: Final = 2
"""Of marshal: later ones write shared objects differently, and then equal records are not equal bytes."""

Written = bytes
"""The records of a name that belongs to no Service, or the sheet of one that does."""

Change = tuple[bytes, Written | None]
"""A name and what is written of it; None when it is gone."""

Records = Mapping[int, WireAnswer]
"""By type; a name without any exists all the same."""


def write(found: Records) -> Written:
    return marshal.dumps({int(type_): tuple(answer) for type_, answer in found.items()}, _FORM) if found else b""


def read(written: Written) -> Records:
    if not written:
        return {}
    return {type_: WireAnswer(*plain) for type_, plain in marshal.loads(written).items()}  # noqa: S302 - our own watcher's


def updates(kind: str, changes: Iterable[Change]) -> Iterator[tuple[Any, ...]]:
    """`kind` is names or services."""
    listed = list(changes)
    for begin in range(0, len(listed), CHANGES_PER_UPDATE):
        yield (kind, listed[begin : begin + CHANGES_PER_UPDATE])


def profile_update(profile: ClientProfile) -> tuple[Any, ...]:
    return ("profile", profile.id, dict(profile.groups))


def pod_places(taken: Iterable[tuple[bytes, str]]) -> Iterator[tuple[Any, ...]]:
    """Addresses of pods and their nodes; an empty node for an address that is nobody's any more."""
    return updates("pod places", ((address, node.encode()) for address, node in taken))


def places_update(places: ClientLocations) -> tuple[Any, ...]:
    ranges = {size: {bits: dict(nodes) for bits, nodes in found.items()} for size, found in places.ranges.items()}
    return ("places", dict(places.exact), ranges)
