"""Messages between the DNS server's processes: the controller, the fork server and the workers.

Configuration, life cycle and reports are tagged structs in msgpack. Record updates are plain tuples in marshal: they
come in bulk while a worker serves. Both ends are the same interpreter and the sockets between them are private, so
marshal is safe here. It shares repeated strings, carries IPv6 prefixes as integers and decodes as fast as msgpack.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from zonewise.dns.decide.client_location import ClientLocations
from zonewise.dns.wire.records import WireAnswer

if TYPE_CHECKING:
    from zonewise.dns.decide.client_groups import ClientProfile

CHANGES_PER_UPDATE: Final = 64
"""Bounds the time for which applying one update keeps a worker from its queries."""

_LENGTH: Final = struct.Struct(">I")
_IS_MESSAGE: Final = 1 << 31
"""In the length of a frame that holds a message, not an update."""

_MARSHAL_VERSION: Final = 2
"""Later versions write shared objects as references, and then equal records are not equal bytes."""

Update = tuple[Any, ...]
"""A change of a `RecordTable`: its kind and its values, of plain types only."""

EncodedRecords = bytes
"""The records of a name that belongs to no Service, or the `ServiceRecords` of one that does."""

Change = tuple[bytes, EncodedRecords | None]
"""A name and its records; None when the name is deleted."""

Records = Mapping[int, WireAnswer]
"""By type. A name without records exists, too."""


class WorkerConfig(msgspec.Struct, frozen=True):
    """The same for all workers."""

    domain: bytes
    upstreams: tuple[str, ...] = ()
    forwarders: tuple[str, ...] = ()
    """Ranges of clients whose EDNS Client Subnet option is trusted."""
    queries_per_second: int = 0
    forwards_per_second: int = 0
    cache_seconds: int = 30
    stale_seconds: int = 3600
    log_queries: bool = False

    @property
    def recursive(self) -> bool:
        return bool(self.upstreams)


class WorkerRole(StrEnum):
    UDP = "udp"
    TCP = "tcp"


class Fork(msgspec.Struct, tag=True, frozen=True):
    """To the fork server, with the worker's file descriptors as ancillary data; `udp_sockets` of them are for UDP."""

    name: str
    role: WorkerRole
    config: WorkerConfig
    udp_sockets: int


class Kill(msgspec.Struct, tag=True, frozen=True):
    """To the fork server."""

    name: str


class Exited(msgspec.Struct, tag=True, frozen=True):
    """From the fork server."""

    name: str
    code: int


class Serve(msgspec.Struct, tag=True, frozen=True):
    """To a worker: the snapshot is complete."""


class DrainWorker(msgspec.Struct, tag=True, frozen=True):
    """To a worker: accept nothing new, answer what is queued, exit."""


class Serving(msgspec.Struct, tag=True, frozen=True):
    """From a worker: the snapshot is applied, queries are answered."""


class WorkerReport(msgspec.Struct, tag=True, frozen=True):
    """From a worker: counts since its last report."""

    queries: dict[str, int]
    """By the client's node."""
    answers: dict[str, int]
    """By `QueryKind`, in lower case."""
    latency: list[int]
    samples: list[tuple[str, bytes, bytes]]
    """Client, query, and head of the reply."""
    limited: int
    errors: int
    dropped: int


Message = Fork | Kill | Exited | Serve | DrainWorker | Serving | WorkerReport

encode_message: Final = msgspec.msgpack.Encoder().encode
decode_message: Final = msgspec.msgpack.Decoder[Message](Message).decode


def encode(item: Update | Message) -> bytes:
    """One frame of a worker's stream."""
    if isinstance(item, tuple):
        body = marshal.dumps(item)
        return _LENGTH.pack(len(body)) + body
    body = encode_message(item)
    return _LENGTH.pack(len(body) | _IS_MESSAGE) + body


class FrameDecoder:
    """Splits a worker's stream into updates and messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Update | Message]:
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            head = _LENGTH.unpack_from(self._buffer)[0]
            end = _LENGTH.size + (head & ~_IS_MESSAGE)
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield decode_message(body) if head & _IS_MESSAGE else marshal.loads(body)  # noqa: S302 - our own processes


def encode_records(records: Records) -> EncodedRecords:
    if not records:
        return b""
    return marshal.dumps({int(type_): tuple(answer) for type_, answer in records.items()}, _MARSHAL_VERSION)


def decode_records(encoded: EncodedRecords) -> Records:
    if not encoded:
        return {}
    return {type_: WireAnswer(*fields) for type_, fields in marshal.loads(encoded).items()}  # noqa: S302 - as above


def updates(kind: str, changes: Iterable[Change]) -> Iterator[Update]:
    """`kind` is names or services."""
    pending = list(changes)
    for begin in range(0, len(pending), CHANGES_PER_UPDATE):
        yield (kind, pending[begin : begin + CHANGES_PER_UPDATE])


def profile_update(profile: ClientProfile) -> Update:
    return ("profile", profile.id, dict(profile.groups))


def pod_location_updates(pods: Iterable[tuple[bytes, str]]) -> Iterator[Update]:
    """Addresses of pods and their nodes; an empty node for an address that no pod has any more."""
    return updates("pod locations", ((address, node.encode()) for address, node in pods))


def locations_update(locations: ClientLocations) -> Update:
    ranges = {
        size: {bits: dict(nodes) for bits, nodes in by_bits.items()} for size, by_bits in locations.ranges.items()
    }
    return ("locations", dict(locations.exact), ranges)
