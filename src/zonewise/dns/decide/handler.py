"""DNS query handler: from a packet and its sender to the reply, without a socket.

`respond` handles every valid or invalid packet; TCP and unusual UDP queries go through it. `fast_path` sends the same
replies for the few forms that nearly all UDP queries have.
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
"""Passes every network unfragmented (DNS flag day 2020). Larger replies go over TCP."""

MAX_MESSAGE_BYTES: Final = 65535
MAX_ALIASES: Final = 10
SILENCE: Final = b""

OPT_HEAD: Final = b"\0\0\x29"
_RECORD_HEAD: Final = 12
_TRUNCATED: Final = 0x02


@dataclass(frozen=True, slots=True)
class ForwardQuery:
    """A query for upstreams: their records for `name` follow the `count` records that are known here."""

    query: Query
    name: bytes
    max_bytes: int
    count: int = 0
    records: bytes = b""


@dataclass(slots=True)
class QuerySender:
    """The client: its node, if known, and whether its EDNS Client Subnet option is trusted (RFC 7871).

    `queries` counts those of the current second. `mark` identifies the node in keys of cached replies.
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
    """`largest` is the transport's limit in bytes; `turn` rotates the records. An empty reply means none is sent."""
    match read(packet):
        case None:
            return SILENCE
        case QueryRefusal() as refusal:
            return refuse(refusal)
        case query:
            return answer(table, query, sender, _reply_limit(query, largest), turn)


def answer(
    table: RecordTable, query: Query, sender: QuerySender, max_bytes: int, turn: int = 0
) -> bytes | ForwardQuery:
    name = query.name.lower()
    if query.class_ != IN or query.type in {RecordType.AXFR, RecordType.IXFR}:
        return failure(query, Rcode.REFUSED)
    slot = table.find(name, query.type)
    if slot is NegativeAnswer.NOT_OURS:
        return ForwardQuery(query, query.name, max_bytes)
    if slot is NegativeAnswer.NO_NAME:
        return _denied(table, query, Rcode.NXDOMAIN if table.loaded else Rcode.SERVFAIL, max_bytes)
    assert isinstance(slot, tuple)
    return _AliasChain(table, query, _client_nodes(table, query, sender), max_bytes, turn).follow(slot)


def _client_nodes(table: RecordTable, query: Query, sender: QuerySender) -> frozenset[str]:
    """More than one where a forwarder asks for a network that spans several."""
    subnet = query.edns.subnet if query.edns else None
    if subnet and sender.forwards:
        return table.locations.nodes_in(subnet.address, subnet.prefix)
    return frozenset({sender.node})


@dataclass(slots=True)
class _AliasChain:
    """Follows aliases within the cluster. Most answers have none."""

    table: RecordTable
    query: Query
    nodes: frozenset[str]
    max_bytes: int
    turn: int

    def follow(self, slot: Slot) -> bytes | ForwardQuery:
        count, aliases = 0, b""
        at = HEADER_BYTES + len(self.query.question)
        name = self.query.name.lower()
        visited = {name}
        varied = False
        while True:
            if isinstance(slot[4], AnswerChoices):
                slot, varied = self.choose(name, slot[4]), True
            headers, records, stride, glue, further = slot
            if headers is None:
                return _denied(self.table, self.query, Rcode.NOERROR, self.max_bytes, varied=varied)
            owned = _with_owner(records, at, count)
            if further is None:
                total = count + int.from_bytes(headers[0][4:6])
                additional = int.from_bytes(headers[0][8:10]) if not count else 0
                rotated = aliases + rotate(owned, stride, self.turn)
                parts = _Parts(total, rotated, 0 if count else stride, additional, b"" if count else glue)
                return _assemble(self.table, self.query, parts, self.max_bytes, varied=varied)
            at = HEADER_BYTES + len(self.query.question) + len(aliases) + len(owned) - len(further)
            count, aliases = count + 1, aliases + owned
            if not self.table.is_ours(further):
                return ForwardQuery(self.query, further, self.max_bytes, count, aliases)
            name = further
            target = self.table.find(name, self.query.type)
            if isinstance(target, NegativeAnswer) or target is NO_DATA or name in visited or count > MAX_ALIASES:
                return _denied(self.table, self.query, Rcode.NOERROR, self.max_bytes)
            visited.add(name)
            slot = target

    def choose(self, name: bytes, choices: AnswerChoices) -> Slot:
        """An answer has to hold for all nodes. If they get different ones, it is that of unknown clients: all endpoints."""
        groups = {choices.groups.get(node, 0) for node in self.nodes}
        group = groups.pop() if len(groups) == 1 else 0
        return choices.slots[group] or self.table.choose(name, self.query.type, choices, group)


@dataclass(frozen=True, slots=True)
class _Parts:
    count: int
    records: bytes
    stride: int
    glue_count: int
    glue: bytes


def rotate(records: bytes, stride: int, by: int) -> bytes:
    """Round robin: the same records, starting with another one."""
    if not stride:
        return records
    cut = by * stride % len(records)
    return records[cut:] + records[:cut]


def _with_owner(records: bytes, at: int, depth: int) -> bytes:
    """Replace the records' owner, a pointer to the question, by a pointer to the alias target at `at`."""
    if not depth:
        return records
    owner, parts, begin = struct.pack(">H", 0xC000 | at), [], 0
    while begin < len(records):
        end = begin + _RECORD_HEAD + int.from_bytes(records[begin + 10 : begin + 12])
        parts.append(owner + records[begin + 2 : end])
        begin = end
    return b"".join(parts)


def _assemble(table: RecordTable, query: Query, parts: _Parts, max_bytes: int, *, varied: bool = False) -> bytes:
    """Glue that does not fit is left out; if records don't fit, the reply is truncated."""
    opt = opt_of(query, scope=varied)
    question = query.question
    fixed = HEADER_BYTES + len(question) + len(opt)
    index = _header_index(query)
    if fixed + len(parts.records) + len(parts.glue) <= max_bytes:
        head = table.headers(Rcode.NOERROR, parts.count, 0, parts.glue_count)[index]
        return query.id + head + question + parts.records + parts.glue + opt
    if fixed + len(parts.records) <= max_bytes:
        return query.id + table.headers(Rcode.NOERROR, parts.count)[index] + question + parts.records + opt
    fits = (max_bytes - fixed) // parts.stride if parts.stride else 0
    head = truncated(table.headers(Rcode.NOERROR, fits)[index])
    return query.id + head + question + parts.records[: fits * parts.stride] + opt


def truncated(header: bytes) -> bytes:
    return bytes((header[0] | _TRUNCATED,)) + header[1:]


def _denied(table: RecordTable, query: Query, rcode: Rcode, max_bytes: int, *, varied: bool = False) -> bytes:
    opt = opt_of(query, scope=varied)
    question, index = query.question, _header_index(query)
    authority = table.authority if rcode is not Rcode.SERVFAIL else b""
    if HEADER_BYTES + len(question) + len(authority) + len(opt) > max_bytes:
        authority = b""
    return query.id + table.headers(rcode, 0, int(bool(authority)))[index] + question + authority + opt


def failure(query: Query, rcode: Rcode) -> bytes:
    """Not authoritative, and without records."""
    opt = opt_of(query)
    flags = 0x8000 | (0x0100 if query.recursion_desired else 0) | rcode & 15
    return query.id + struct.pack(">HHHHH", flags, 1, 0, 0, bool(opt)) + query.question + opt


def refuse(refusal: QueryRefusal) -> bytes:
    flags = 0x8000 | refusal.opcode << 11 | (0x0100 if refusal.recursion_desired else 0) | refusal.rcode & 15
    opt = OPT_HEAD + struct.pack(">HBBHH", OUR_UDP_BYTES, refusal.rcode >> 4, 0, 0, 0) if refusal.rcode > 15 else b""
    counts = struct.pack(">HHHHH", flags, bool(refusal.question), 0, 0, bool(opt))
    return refusal.id + counts + refusal.question + opt


def with_upstream_records(forwarded: ForwardQuery, count: int, records: bytes, rcode: int) -> bytes:
    """Our aliases, followed by the upstream's records of the target."""
    query = forwarded.query
    opt = opt_of(query)
    flags = 0x8480 | (0x0100 if query.recursion_desired else 0) | rcode & 15
    head = struct.pack(">HHHHH", flags, 1, forwarded.count + count, 0, bool(opt))
    whole = query.id + head + query.question + forwarded.records + records + opt
    if len(whole) <= forwarded.max_bytes:
        return whole
    head = struct.pack(">HHHHH", flags | _TRUNCATED << 8, 1, 0, 0, bool(opt))
    return query.id + head + query.question + opt


def _reply_limit(query: Query, largest: int) -> int:
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
    """The scope is the part of the client's address for which the answer holds: all of it, or any."""
    option = subnet.option[:3] + bytes((subnet.prefix if scope else 0,)) + subnet.option[4:]
    return struct.pack(">HH", 8, len(option)) + option


def opt_record(dnssec_ok: bool) -> bytes:
    return OPT_HEAD + struct.pack(">HBBH", OUR_UDP_BYTES, 0, 0, 0x8000 if dnssec_ok else 0)
