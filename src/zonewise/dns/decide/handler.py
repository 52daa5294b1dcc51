"""Replies: a packet and its sender in, a packet out. Bytes to bytes, without a socket.

`respond` reads any query with care: it is what TCP and unusual packets go through. `quick` does the same for the few
forms that nearly all queries have.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from zonewise.dns.decide.table import NO_DATA, AnswerChoices, NegativeAnswer, RecordTable, Slot
from zonewise.dns.wire.message import (
    HEADER_BYTES,
    IN,
    PLAIN_UDP_BYTES,
    Query,
    QueryRefusal,
    Rcode,
    RecordType,
    Subnet,
    read,
)

OUR_UDP_BYTES: Final = 1232
"""What passes every network unfragmented (DNS flag day 2020); more goes over TCP."""

MAX_MESSAGE_BYTES: Final = 65535
MAX_ALIASES: Final = 10
SILENCE: Final = b""

OPT_HEAD: Final = b"\0\0\x29"
_RECORD_HEAD: Final = 12
_TRUNCATED: Final = 0x02


@dataclass(frozen=True, slots=True)
class ForwardQuery:
    """The rest of the answer is not ours: ask others for `name`, and put it behind the `count` records we have."""

    query: Query
    name: bytes
    room: int
    count: int = 0
    records: bytes = b""


@dataclass(slots=True)
class QuerySender:
    """Who sent a query: its node, if known, and whether it may speak for others by their subnet (RFC 7871).

    `queries` counts those of the running second; `mark` tells clients of one node from those of others.
    """

    node: str = ""
    forwards: bool = False
    queries: int = 0
    mark: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.mark = self.node.encode() + b"\0"


def respond(
    table: RecordTable, packet: bytes, sender: QuerySender, largest: int, turn: int = 0
) -> bytes | ForwardQuery:
    """`largest` is what the transport takes, `turn` which of several records comes first. Empty means silence."""
    match read(packet):
        case None:
            return SILENCE
        case QueryRefusal() as refusal:
            return refuse(refusal)
        case query:
            return answer(table, query, sender, _room(query, largest), turn)


def answer(table: RecordTable, query: Query, sender: QuerySender, room: int, turn: int = 0) -> bytes | ForwardQuery:
    name = query.name.lower()
    if query.class_ != IN or query.type in {RecordType.AXFR, RecordType.IXFR}:
        return failure(query, Rcode.REFUSED)
    found = table.find(name, query.type)
    if found is NegativeAnswer.NOT_OURS:
        return ForwardQuery(query, query.name, room)
    if found is NegativeAnswer.NO_NAME:
        return _denied(table, query, Rcode.NXDOMAIN if table.loaded else Rcode.SERVFAIL, room)
    assert isinstance(found, tuple)
    return _Chase(table, query, _client(table, query, sender), room, turn).follow(found)


def _client(table: RecordTable, query: Query, sender: QuerySender) -> str:
    subnet = query.edns.subnet if query.edns else None
    return table.locations.node_of(subnet.address) if subnet and subnet.prefix and sender.forwards else sender.node


@dataclass(slots=True)
class _Chase:
    """Follows aliases within the cluster; most answers are there at once."""

    table: RecordTable
    query: Query
    node: str
    room: int
    turn: int

    def follow(self, slot: Slot) -> bytes | ForwardQuery:
        count, written = 0, b""
        at = HEADER_BYTES + len(self.query.question)
        name = self.query.name.lower()
        seen = {name}
        varied = False
        while True:
            if isinstance(slot[4], AnswerChoices):
                slot, varied = self.choose(name, slot[4]), True
            headers, records, stride, glue, further = slot
            if headers is None:
                return _denied(self.table, self.query, Rcode.NOERROR, self.room, varied=varied)
            owned = _owned(records, at, count)
            if further is None:
                total = count + int.from_bytes(headers[0][4:6])
                additional = int.from_bytes(headers[0][8:10]) if not count else 0
                turned = written + turn(owned, stride, self.turn)
                parts = _Parts(total, turned, 0 if count else stride, additional, b"" if count else glue)
                return _whole(self.table, self.query, parts, self.room, varied=varied)
            at = HEADER_BYTES + len(self.query.question) + len(written) + len(owned) - len(further)
            count, written = count + 1, written + owned
            if not self.table.is_ours(further):
                return ForwardQuery(self.query, further, self.room, count, written)
            name = further
            found = self.table.find(name, self.query.type)
            if isinstance(found, NegativeAnswer) or found is NO_DATA or name in seen or count > MAX_ALIASES:
                return _denied(self.table, self.query, Rcode.NOERROR, self.room)
            seen.add(name)
            slot = found

    def choose(self, name: bytes, choices: AnswerChoices) -> Slot:
        group = choices.groups.get(self.node, 0)
        return choices.slots[group] or self.table.choose(name, self.query.type, choices, group)


@dataclass(frozen=True, slots=True)
class _Parts:
    count: int
    records: bytes
    stride: int
    glue_count: int
    glue: bytes


def turn(records: bytes, stride: int, by: int) -> bytes:
    """The same records, beginning with another one."""
    if not stride:
        return records
    cut = by * stride % len(records)
    return records[cut:] + records[:cut]


def _owned(records: bytes, at: int, depth: int) -> bytes:
    """The records with their owner, which is the question, replaced by the name that an alias points to at `at`."""
    if not depth:
        return records
    owner, written, begin = struct.pack(">H", 0xC000 | at), [], 0
    while begin < len(records):
        end = begin + _RECORD_HEAD + int.from_bytes(records[begin + 10 : begin + 12])
        written.append(owner + records[begin + 2 : end])
        begin = end
    return b"".join(written)


def _whole(table: RecordTable, query: Query, parts: _Parts, room: int, *, varied: bool = False) -> bytes:
    """Glue is left out where it has no room; records only with the mark that says so."""
    opt = opt_of(query, scope=varied)
    question = query.question
    fixed = HEADER_BYTES + len(question) + len(opt)
    index = _header_index(query)
    if fixed + len(parts.records) + len(parts.glue) <= room:
        head = table.headers(Rcode.NOERROR, parts.count, 0, parts.glue_count)[index]
        return query.id + head + question + parts.records + parts.glue + opt
    if fixed + len(parts.records) <= room:
        return query.id + table.headers(Rcode.NOERROR, parts.count)[index] + question + parts.records + opt
    fits = (room - fixed) // parts.stride if parts.stride else 0
    head = truncated(table.headers(Rcode.NOERROR, fits)[index])
    return query.id + head + question + parts.records[: fits * parts.stride] + opt


def truncated(header: bytes) -> bytes:
    return bytes((header[0] | _TRUNCATED,)) + header[1:]


def _denied(table: RecordTable, query: Query, rcode: Rcode, room: int, *, varied: bool = False) -> bytes:
    opt = opt_of(query, scope=varied)
    question, index = query.question, _header_index(query)
    authority = table.authority if rcode is not Rcode.SERVFAIL else b""
    if HEADER_BYTES + len(question) + len(authority) + len(opt) > room:
        authority = b""
    return query.id + table.headers(rcode, 0, int(bool(authority)))[index] + question + authority + opt


def failure(query: Query, rcode: Rcode) -> bytes:
    """Not said with authority, and without any record."""
    opt = opt_of(query)
    flags = 0x8000 | (0x0100 if query.recursion_desired else 0) | rcode & 15
    return query.id + struct.pack(">HHHHH", flags, 1, 0, 0, bool(opt)) + query.question + opt


def refuse(refusal: QueryRefusal) -> bytes:
    flags = 0x8000 | refusal.opcode << 11 | (0x0100 if refusal.recursion_desired else 0) | refusal.rcode & 15
    opt = OPT_HEAD + struct.pack(">HBBHH", OUR_UDP_BYTES, refusal.rcode >> 4, 0, 0, 0) if refusal.rcode > 15 else b""
    counts = struct.pack(">HHHHH", flags, bool(refusal.question), 0, 0, bool(opt))
    return refusal.id + counts + refusal.question + opt


def with_upstream_records(elsewhere: ForwardQuery, count: int, records: bytes, rcode: int) -> bytes:
    """Our alias and what its target's owners answered for it."""
    query = elsewhere.query
    opt = opt_of(query)
    flags = 0x8480 | (0x0100 if query.recursion_desired else 0) | rcode & 15
    head = struct.pack(">HHHHH", flags, 1, elsewhere.count + count, 0, bool(opt))
    whole = query.id + head + query.question + elsewhere.records + records + opt
    if len(whole) <= elsewhere.room:
        return whole
    head = struct.pack(">HHHHH", flags | _TRUNCATED << 8, 1, 0, 0, bool(opt))
    return query.id + head + query.question + opt


def _room(query: Query, largest: int) -> int:
    if largest > OUR_UDP_BYTES:
        return largest
    return max(PLAIN_UDP_BYTES, min(query.edns.udp_bytes, largest)) if query.edns else PLAIN_UDP_BYTES


def _header_index(query: Query) -> int:
    return (2 if query.edns else 0) + query.recursion_desired


def opt_of(query: Query, *, scope: bool = False) -> bytes:
    edns = query.edns
    if edns is None:
        return b""
    options = _subnet(edns.subnet, scope) if edns.subnet else b""
    return opt_record(edns.dnssec_ok) + struct.pack(">H", len(options)) + options


def _subnet(subnet: Subnet, scope: bool) -> bytes:
    """Says for which part of the asker's address the answer holds: all of it, or any."""
    option = subnet.option[:3] + bytes((subnet.prefix if scope else 0,)) + subnet.option[4:]
    return struct.pack(">HH", 8, len(option)) + option


def opt_record(dnssec_ok: bool) -> bytes:
    return OPT_HEAD + struct.pack(">HBBH", OUR_UDP_BYTES, 0, 0, 0x8000 if dnssec_ok else 0)
