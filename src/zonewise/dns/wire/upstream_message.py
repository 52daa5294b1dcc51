"""Responses of upstream DNS servers: validated like queries, and rewritten for the client.

A response is kept as received, without its OPT record, and with the offsets of its TTLs, so that it can be aged without
being parsed again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from zonewise.dns.decide.handler import opt_of
from zonewise.dns.wire.message import HEADER_BYTES, MalformedError, Query, Rcode, RecordType, skip_name
from zonewise.dns.wire.names import LONGEST_LABEL, LONGEST_NAME

_FIXED: Final = struct.Struct(">HHIH")
_RECURSION_AVAILABLE: Final = 0x80
_CHECKED: Final = 0x30
"""AD and CD."""

_TRUNCATED: Final = 0x02
_AUTHORITATIVE: Final = 0x04


@dataclass(frozen=True, slots=True)
class UpstreamResponse:
    """`body` is everything after the question; `ttl_offsets` are within it. `ttl` is how long it may be cached."""

    question: bytes
    flags: bytes
    rcode: int
    counts: tuple[int, int, int]
    body: bytes
    ttl_offsets: tuple[int, ...]
    ttl: int

    @property
    def truncated(self) -> bool:
        return bool(self.flags[0] & _TRUNCATED)

    @property
    def failed(self) -> bool:
        """Another upstream may succeed."""
        return self.rcode not in {Rcode.NOERROR, Rcode.NXDOMAIN}


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """Offsets of a record's parts in a packet. `section` is 0 for answers, 1 for authorities, 2 for additional."""

    owner: int
    head: int
    type: int
    ttl: int
    data: int
    end: int
    section: int


def read_response(packet: bytes, id_: bytes, question: bytes) -> UpstreamResponse | None:
    """None if it does not answer this question."""
    end = HEADER_BYTES + len(question)
    if packet[:2] != id_ or len(packet) < end or not packet[2] & 0x80 or packet[4:6] != b"\0\1":
        return None
    if packet[HEADER_BYTES:end].lower() != question.lower():
        return None
    try:
        records = list(records_in(packet, end))
    except (MalformedError, struct.error, IndexError):
        return None
    return _assemble(packet, question, records)


def records_in(packet: bytes, at: int) -> Iterator[RecordPosition]:
    for section, count in enumerate(struct.unpack_from(">HHH", packet, 6)):
        for _ in range(count):
            head = skip_name(packet, at)
            type_, _class, ttl, length = _FIXED.unpack_from(packet, head)
            data = head + _FIXED.size
            if data + length > len(packet):
                raise MalformedError
            yield RecordPosition(at, head, type_, ttl if ttl < 1 << 31 else 0, data, data + length, section)
            at = data + length


def _assemble(packet: bytes, question: bytes, records: list[RecordPosition]) -> UpstreamResponse:
    """The OPT record is usually last. If it is not, the whole additional section is dropped with it."""
    rcode = packet[3] & 15
    opt = next((record for record in records if record.type == RecordType.OPT), None)
    kept = records
    if opt:
        rcode |= packet[opt.head + 4] << 4
        kept = records[:-1] if records[-1] is opt else [record for record in records if record.section < 2]
    begin = HEADER_BYTES + len(question)
    body = packet[begin : kept[-1].end] if kept else b""
    counts = tuple(sum(record.section == section for record in kept) for section in range(3))
    offsets = tuple(record.head + 4 - begin for record in kept)
    return UpstreamResponse(question, packet[2:4], rcode, counts, body, offsets, _ttl(packet, kept, rcode))  # type: ignore[arg-type]


def _ttl(packet: bytes, records: list[RecordPosition], rcode: int) -> int:
    """RFC 2308: a denial is cached as long as its SOA record says. One without SOA, or a failure, is not cached."""
    answers = [record.ttl for record in records if record.section == 0]
    if packet[2] & _TRUNCATED or rcode not in {Rcode.NOERROR, Rcode.NXDOMAIN}:
        return 0
    if answers and rcode == Rcode.NOERROR:
        return min(answers)
    authority = next((record for record in records if record.section == 1 and record.type == RecordType.SOA), None)
    if authority is None or authority.end - authority.data < 22:
        return 0
    return int(min(authority.ttl, int.from_bytes(packet[authority.end - 4 : authority.end])))


def client_reply(response: UpstreamResponse, query: Query, max_bytes: int, age: int) -> bytes:
    """The reply to a client, with the name as the client spelled it; `age` in seconds."""
    opt = opt_of(query)
    head = 0x80 | response.flags[0] & _AUTHORITATIVE | query.recursion_desired
    low = _RECURSION_AVAILABLE | response.flags[1] & _CHECKED | response.rcode & 15
    answers, authorities, additional = response.counts
    counts = struct.pack(">HHHH", 1, answers, authorities, additional + bool(opt))
    whole = query.id + bytes((head, low)) + counts + query.question + aged(response, age) + opt
    if len(whole) <= max_bytes and not response.truncated:
        return whole
    return query.id + bytes((head | _TRUNCATED, low)) + struct.pack(">HHHH", 1, 0, 0, bool(opt)) + query.question + opt


def aged(response: UpstreamResponse, age: int) -> bytes:
    if not age:
        return response.body
    body = bytearray(response.body)
    for offset in response.ttl_offsets:
        ttl = int.from_bytes(body[offset : offset + 4])
        body[offset : offset + 4] = max(0, ttl - age).to_bytes(4)
    return bytes(body)


def uncompressed_answers(response: UpstreamResponse, age: int) -> tuple[int, bytes]:
    """Number and bytes of the answers without name compression, for use in another message."""
    packet = bytes(HEADER_BYTES) + response.question + aged(response, age)
    at, parts = HEADER_BYTES + len(response.question), []
    try:
        for _ in range(response.counts[0]):
            owner, head = name_at(packet, at)
            type_, class_, ttl, length = _FIXED.unpack_from(packet, head)
            data = packet[head + _FIXED.size : head + _FIXED.size + length]
            if type_ == RecordType.CNAME:
                data, _ = name_at(packet, head + _FIXED.size)
            parts.append(owner + _FIXED.pack(type_, class_, ttl, len(data)) + data)
            at = head + _FIXED.size + length
    except (MalformedError, struct.error, IndexError):
        return 0, b""
    return len(parts), b"".join(parts)


def name_at(packet: bytes, at: int) -> tuple[bytes, int]:
    """A name and the offset after it. Pointers must point backwards, so they can't loop."""
    name, after, limit = b"", 0, at
    while True:
        length = packet[at]
        if length & 0xC0 == 0xC0:
            after = after or at + 2
            at = (length & 0x3F) << 8 | packet[at + 1]
            if at >= limit:
                raise MalformedError
            limit = at
        elif length > LONGEST_LABEL or len(name) > LONGEST_NAME:
            raise MalformedError
        else:
            name += packet[at : at + length + 1]
            at += length + 1
            if length == 0:
                return name, after or at
