"""Record updates between the controller and the worker processes: their forms, and their bytes on a stream.

Both ends are the same interpreter and the socket between them is private. So marshal is safe here. It shares repeated
strings, carries IPv6 prefixes as integers and decodes as fast as any other format.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from zonewise.dns.decide.client_location import ClientLocations
from zonewise.dns.wire.records import WireAnswer

if TYPE_CHECKING:
    from zonewise.dns.decide.client_groups import ClientProfile

CHANGES_PER_UPDATE: Final = 64
"""Bounds the time for which applying one update keeps a worker from its queries."""

_LENGTH: Final = struct.Struct(">I")
_MARSHAL_VERSION: Final = 2
"""Later versions write shared objects as references, and then equal records are not equal bytes."""

EncodedRecords = bytes
"""The records of a name that belongs to no Service, or the `ServiceRecords` of one that does."""

Change = tuple[bytes, EncodedRecords | None]
"""A name and its records; None when the name is deleted."""

Records = Mapping[int, WireAnswer]
"""By type. A name without records exists, too."""


def encode(update: tuple[Any, ...]) -> bytes:
    body = marshal.dumps(update)
    return _LENGTH.pack(len(body)) + body


class UpdateDecoder:
    """Splits a stream of bytes into updates."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Any, ...]]:
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._buffer)[0]
            if len(self._buffer) < end:
                return
            update = marshal.loads(bytes(self._buffer[_LENGTH.size : end]))  # noqa: S302 - from our own processes only
            del self._buffer[:end]
            yield cast("tuple[Any, ...]", update)


def encode_records(records: Records) -> EncodedRecords:
    if not records:
        return b""
    return marshal.dumps({int(type_): tuple(answer) for type_, answer in records.items()}, _MARSHAL_VERSION)


def decode_records(encoded: EncodedRecords) -> Records:
    if not encoded:
        return {}
    return {type_: WireAnswer(*fields) for type_, fields in marshal.loads(encoded).items()}  # noqa: S302 - as above


def updates(kind: str, changes: Iterable[Change]) -> Iterator[tuple[Any, ...]]:
    """`kind` is names or services."""
    pending = list(changes)
    for begin in range(0, len(pending), CHANGES_PER_UPDATE):
        yield (kind, pending[begin : begin + CHANGES_PER_UPDATE])


def profile_update(profile: ClientProfile) -> tuple[Any, ...]:
    return ("profile", profile.id, dict(profile.groups))


def pod_location_updates(pods: Iterable[tuple[bytes, str]]) -> Iterator[tuple[Any, ...]]:
    """Addresses of pods and their nodes; an empty node for an address that no pod has any more."""
    return updates("pod locations", ((address, node.encode()) for address, node in pods))


def locations_update(locations: ClientLocations) -> tuple[Any, ...]:
    ranges = {
        size: {bits: dict(nodes) for bits, nodes in by_bits.items()} for size, by_bits in locations.ranges.items()
    }
    return ("locations", dict(locations.exact), ranges)
