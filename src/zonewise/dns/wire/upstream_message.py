"""Responses of upstream DNS servers: validated like queries, and rewritten for the client.

A response is kept as received, but only with the records that its question asks for (`bailiwick`), and with the offsets
of its TTLs, so that it can be aged without being parsed again.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from zonewise.dns.decide.handler import opt_of
from zonewise.dns.wire.bailiwick import RecordPosition, records_in, relevant, spells, uncompressed
from zonewise.dns.wire.message import HEADER_BYTES, MalformedError, Query, Rcode, RecordType, skip_name

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
    counts: tuple[int, int]
    """Answers and authorities."""
    body: bytes
    ttl_offsets: tuple[int, ...]
    ttl: int
    case_changed: bool = False
    """It repeats the question in other letters: forged, or from a server that does not keep them."""

    @property
    def truncated(self) -> bool:
        return bool(self.flags[0] & _TRUNCATED)

    @property
    def failed(self) -> bool:
        """Another upstream may succeed."""
        return self.rcode not in {Rcode.NOERROR, Rcode.NXDOMAIN}


def mix_case(question: bytes, chance: bytes) -> bytes:
    """The question with the letters of its name in upper case where `chance` is odd."""
    name = (byte ^ 0x20 if 97 <= byte <= 122 and odd & 1 else byte for byte, odd in zip(question, chance, strict=True))
    return bytes(name)[:-4] + question[-4:]


def read_response(packet: bytes, id_: bytes, asked: bytes) -> UpstreamResponse | None:
    """None if it does not answer this question."""
    end = HEADER_BYTES + len(asked)
    if packet[:2] != id_ or len(packet) < end or not packet[2] & 0x80 or packet[4:6] != b"\0\1":
        return None
    if packet[HEADER_BYTES:end].lower() != asked.lower():
        return None
    try:
        return _assemble(packet, asked, list(records_in(packet, end)))
    except (MalformedError, struct.error, IndexError):
        return None


def _assemble(packet: bytes, asked: bytes, records: list[RecordPosition]) -> UpstreamResponse:
    """Usually what is kept comes first in the packet, and needs no copy of each record."""
    rcode, begin = packet[3] & 15, HEADER_BYTES + len(asked)
    if opt := next((record for record in records if record.type == RecordType.OPT), None):
        rcode |= packet[opt.head + 4] << 4
    name = asked[:-4].lower()
    kept = relevant(packet, name, records)
    if kept == records[: len(kept)] and not any(spells(packet, record, asked[:-4]) for record in kept):
        body = packet[begin : kept[-1].end] if kept else b""
        offsets = tuple(record.head + 4 - begin for record in kept)
    else:
        plain = packet[:HEADER_BYTES] + name + packet[HEADER_BYTES + len(name) :]  # names in data may point to ours
        copies = [uncompressed(plain, record, name) for record in kept]
        body, offsets = b"".join(copies), _ttl_offsets(copies)
    sections = [record.section for record in kept]
    changed = packet[HEADER_BYTES:begin] != asked
    counts = sections.count(0), sections.count(1)
    ttl = _ttl(packet, kept, rcode)
    return UpstreamResponse(name + asked[-4:], packet[2:4], rcode, counts, body, offsets, ttl, changed)


def _ttl_offsets(copies: list[bytes]) -> tuple[int, ...]:
    ends = accumulate(map(len, copies), initial=0)
    return tuple(end + skip_name(copy, 0) + 4 for end, copy in zip(ends, copies, strict=False))


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
    counts = struct.pack(">HHHH", 1, *response.counts, bool(opt))
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
    packet = bytes(6) + struct.pack(">HHH", response.counts[0], 0, 0) + response.question + aged(response, age)
    try:
        records = list(records_in(packet, HEADER_BYTES + len(response.question)))
        return len(records), b"".join(uncompressed(packet, record) for record in records)
    except (MalformedError, struct.error, IndexError):
        return 0, b""
