"""Reads what other servers answer, as warily as queries are read, and writes it again for our client.

A reply is kept as it came, but for its OPT record, with the places where its times to live stand: so that it can be
aged without being taken apart.
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
    """`body` is everything behind the question; `ttl_places` are within it. `ttl` is how long it may be kept."""

    question: bytes
    flags: bytes
    rcode: int
    counts: tuple[int, int, int]
    body: bytes
    ttl_places: tuple[int, ...]
    ttl: int

    @property
    def truncated(self) -> bool:
        return bool(self.flags[0] & _TRUNCATED)

    @property
    def failed(self) -> bool:
        """Another server might do better."""
        return self.rcode not in {Rcode.NOERROR, Rcode.NXDOMAIN}


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """Where the parts of a record stand in a packet; `section` 0 has answers, 1 authorities, 2 what is additional."""

    owner: int
    head: int
    type: int
    ttl: int
    data: int
    end: int
    section: int


def read_response(packet: bytes, id_: bytes, question: bytes) -> UpstreamResponse | None:
    """None for what is no answer to this question."""
    end = HEADER_BYTES + len(question)
    if packet[:2] != id_ or len(packet) < end or not packet[2] & 0x80 or packet[4:6] != b"\0\1":
        return None
    if packet[HEADER_BYTES:end].lower() != question.lower():
        return None
    try:
        found = list(records_in(packet, end))
    except (MalformedError, struct.error, IndexError):
        return None
    return _assemble(packet, question, found)


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


def _assemble(packet: bytes, question: bytes, found: list[RecordPosition]) -> UpstreamResponse:
    """The OPT record stands last, as a rule; where it does not, the whole additional section goes with it."""
    rcode = packet[3] & 15
    opt = next((each for each in found if each.type == RecordType.OPT), None)
    kept = found
    if opt:
        rcode |= packet[opt.head + 4] << 4
        kept = found[:-1] if found[-1] is opt else [each for each in found if each.section < 2]
    begin = HEADER_BYTES + len(question)
    body = packet[begin : kept[-1].end] if kept else b""
    counts = tuple(sum(each.section == section for each in kept) for section in range(3))
    places = tuple(each.head + 4 - begin for each in kept)
    return UpstreamResponse(question, packet[2:4], rcode, counts, body, places, _ttl(packet, kept, rcode))  # type: ignore[arg-type]


def _ttl(packet: bytes, found: list[RecordPosition], rcode: int) -> int:
    """RFC 2308: a denial is kept as long as its SOA record says; without one not at all. Nor is a failure."""
    answers = [each.ttl for each in found if each.section == 0]
    if packet[2] & _TRUNCATED or rcode not in {Rcode.NOERROR, Rcode.NXDOMAIN}:
        return 0
    if answers and rcode == Rcode.NOERROR:
        return min(answers)
    authority = next((each for each in found if each.section == 1 and each.type == RecordType.SOA), None)
    if authority is None or authority.end - authority.data < 22:
        return 0
    return int(min(authority.ttl, int.from_bytes(packet[authority.end - 4 : authority.end])))


def client_reply(response: UpstreamResponse, query: Query, room: int, age: int) -> bytes:
    """The reply to a client, in its own spelling; `age` is how long ago it came."""
    opt = opt_of(query)
    head = 0x80 | response.flags[0] & _AUTHORITATIVE | query.recursion_desired
    low = _RECURSION_AVAILABLE | response.flags[1] & _CHECKED | response.rcode & 15
    answers, authorities, additional = response.counts
    counts = struct.pack(">HHHH", 1, answers, authorities, additional + bool(opt))
    whole = query.id + bytes((head, low)) + counts + query.question + aged(response, age) + opt
    if len(whole) <= room and not response.truncated:
        return whole
    return query.id + bytes((head | _TRUNCATED, low)) + struct.pack(">HHHH", 1, 0, 0, bool(opt)) + query.question + opt


def aged(response: UpstreamResponse, age: int) -> bytes:
    if not age:
        return response.body
    body = bytearray(response.body)
    for place in response.ttl_places:
        ttl = int.from_bytes(body[place : place + 4])
        body[place : place + 4] = max(0, ttl - age).to_bytes(4)
    return bytes(body)


def uncompressed_answers(response: UpstreamResponse, age: int) -> tuple[int, bytes]:
    """The answers with all names written out, to stand in another message; how many, and their bytes."""
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
    """A name and what follows it. A pointer must point back, so there is no going in circles."""
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
