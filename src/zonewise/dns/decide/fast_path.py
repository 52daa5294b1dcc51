"""The reply to the usual query, as fast as Python allows: what the UDP loop calls for every packet.

It knows the few forms that nearly all queries have and reads nothing else in the packet; everything unusual goes to
`reply.respond`. For the same query both send the same bytes. A question that is found is one that was asked before, of
a name that was read with care then; so only others are looked at label by label. A whole query that was answered before,
whatever its id, for a client on the same node is not read at all: its reply is kept until the table changes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from zonewise.dns.decide.handler import OPT_HEAD, OUR_UDP_BYTES, QuerySender, opt_record, respond, truncated
from zonewise.dns.decide.table import MAX_REPLIES, QUESTIONS, AnswerChoices, Headers, RecordTable, Reply
from zonewise.dns.wire.message import PLAIN_UDP_BYTES, Rcode
from zonewise.dns.wire.names import LONGEST_LABEL, LONGEST_NAME

_FORMS: Final = {
    bytes(flags) + struct.pack(">HHHH", 1, 0, 0, edns): edns * 2 + (flags[0] & 1)
    for flags in ((1, 0), (0, 0), (1, 0x20), (0, 0x20), (1, 0x10), (1, 0x30))
    for edns in (0, 1)
}
"""A standard query with one question and at most one additional record, as bytes 2 to 12 have it: which header fits."""

_OPTS: Final = {struct.pack(">BBHH", 0, 0, flags, 0): opt_record(bool(flags)) + b"\0\0" for flags in (0, 0x8000)}
"""What follows the size in an OPT record without options, and the record to send back."""

_KEPT: Final = frozenset(QUESTIONS.values())


class QueryKind(IntEnum):
    """As what a reply counts, beside the queries themselves, which the loop counts by client."""

    PLAIN = 0
    NEAR = 1
    FAR = 2
    NODATA = 3
    NXDOMAIN = 4
    CAREFUL = 5
    ELSEWHERE = 6


_PLAIN, _NEAR, _FAR, _NODATA, _NXDOMAIN = map(int, list(QueryKind)[:5])


@dataclass(slots=True)
class QueryCounters:
    counts: list[int] = field(default_factory=lambda: [0] * len(QueryKind))

    def reset(self) -> dict[str, int]:
        """The counts by name, before they are set to zero."""
        counts = {kind.name.lower(): self.counts[kind] for kind in QueryKind}
        self.counts[:] = [0] * len(QueryKind)
        return counts


FastResponder = Callable[[bytes, QuerySender], bytes | None]
"""The reply, empty for silence, or None for what is somebody else's."""


def fast_responder(table: RecordTable, counters: QueryCounters, largest: int = OUR_UDP_BYTES) -> FastResponder:  # noqa: PLR0915
    """One flat function and what it seldom needs: a call costs more here than most of what it would do."""
    answers_get, forms_get, opts_get = table.answers.get, _FORMS.get, _OPTS.get
    no_data, no_name = table.headers(Rcode.NOERROR, 0, 1), table.headers(Rcode.NXDOMAIN, 0, 1)
    answers, domain = table.answers, table.domain
    replies, replies_get = table.replies, table.replies.get
    counts = counters.counts
    turn = 0

    def keep(packet: bytes, sender: QuerySender, reply: Reply) -> None:
        if len(replies) >= MAX_REPLIES:
            replies.clear()
        replies[sender.mark + packet[2:]] = reply

    def careful(packet: bytes, sender: QuerySender) -> bytes | None:
        counts[QueryKind.CAREFUL] += 1
        found = respond(table, packet, sender, largest, turn)
        if isinstance(found, bytes):
            return found
        counts[QueryKind.ELSEWHERE] += 1
        return None

    def deny(packet: bytes, form: int, end: int, room: int, opt: bytes, headers: Headers) -> bytes:
        authority = table.authority
        if end + len(authority) + len(opt) > room or not authority:
            headers, authority = _without_authority(headers), b""
        return packet[:2] + headers[form] + packet[12:end] + authority + opt

    def new(packet: bytes, sender: QuerySender, question: bytes) -> bytes | None:
        """Asked for the first time. What is no name of ours, or not kept, is read with care whenever it is asked for."""
        at, begin = 0, len(question) - 4 - len(domain)
        while at < begin:
            length = question[at]
            if length > LONGEST_LABEL:
                return careful(packet, sender)
            at += length + 1
        name, tail = question[:-4], question[-4:]
        if at != begin or len(name) > LONGEST_NAME or tail not in _KEPT or not name.endswith(domain):
            return careful(packet, sender)
        table.find(name, tail[1])
        return respond_quickly(packet, sender) if question in answers else careful(packet, sender)

    def shortened(
        packet: bytes, form: int, end: int, room: int, opt: bytes, headers: Headers, records: bytes, stride: int
    ) -> bytes:
        free = room - end - len(opt)
        if len(records) <= free:
            bare = table.headers(Rcode.NOERROR, int.from_bytes(headers[0][4:6]))
            return packet[:2] + bare[form] + packet[12:end] + records + opt
        fits = free // stride if stride else 0
        head = truncated(table.headers(Rcode.NOERROR, fits)[form])
        return packet[:2] + head + packet[12:end] + records[: fits * stride] + opt

    def respond_quickly(packet: bytes, sender: QuerySender) -> bytes | None:
        nonlocal turn
        known = replies_get(sender.mark + packet[2:])
        if known is None:
            return respond_anew(packet, sender)
        kind, head, records, stride, rest = known
        counts[kind] += 1
        if not stride:
            return packet[:2] + head
        turn += 1
        cut = turn * stride % len(records)
        return packet[:2] + head + records[cut:] + records[:cut] + rest

    def respond_anew(packet: bytes, sender: QuerySender) -> bytes | None:
        nonlocal turn
        form = forms_get(packet[2:12])
        if form is None:
            return careful(packet, sender)
        end = packet.find(b"\0", 12) + 5
        if form > 1:
            opt = opts_get(packet[end + 5 :])
            if opt is None or packet[end : end + 3] != OPT_HEAD:
                return careful(packet, sender)
            room = packet[end + 3] << 8 | packet[end + 4]
            if room > largest:
                room = largest
            elif room < PLAIN_UDP_BYTES:
                room = PLAIN_UDP_BYTES
        elif len(packet) == end:
            opt, room = b"", PLAIN_UDP_BYTES
        else:
            return careful(packet, sender)
        question = packet[12:end].lower()
        slot = answers_get(question)
        if slot is None:
            return new(packet, sender, question)
        headers, records, stride, glue, further = slot
        kind = _PLAIN
        if further is not None:
            if type(further) is not AnswerChoices:
                return careful(packet, sender)
            group = further.groups.get(sender.node, 0)
            slot = further.slots[group]
            if slot is None:
                slot = table.choose(question[:-4], question[-3], further, group)
            headers, records, stride, glue, _ = slot
            kind = _NEAR if further.near[group] else _FAR
        counts[kind] += 1
        if headers is None:
            denial = _NXDOMAIN if stride else _NODATA
            counts[denial] += 1
            reply = deny(packet, form, end, room, opt, no_name if stride else no_data)
            if kind == _PLAIN:  # others count as two
                keep(packet, sender, (denial, reply[2:], b"", 0, b""))
            return reply
        head, rest = headers[form] + packet[12:end], glue + opt
        fits = 2 + len(head) + len(records) + len(rest) <= room
        if fits:
            keep(packet, sender, (kind, head if stride else head + records + rest, records, stride, rest))
        if stride:
            turn += 1
            cut = turn * stride % len(records)
            records = records[cut:] + records[:cut]
        if fits:
            return packet[:2] + head + records + rest
        return shortened(packet, form, end, room, opt, headers, records, stride)

    return respond_quickly


def _without_authority(headers: Headers) -> Headers:
    first, second, third, fourth = (each[:6] + b"\0\0" + each[8:] for each in headers)
    return first, second, third, fourth


def ask_over_tcp(packet: bytes) -> bytes:
    """To a client that asks too much: a reply no larger than its query, which an honest client repeats over TCP."""
    end = packet.find(b"\0", 12) + 5
    if packet[2:12] not in _FORMS or not 16 < end <= len(packet):
        return b""
    return packet[:2] + bytes((0x86 | packet[2] & 1, 0, 0, 1, 0, 0, 0, 0, 0, 0)) + packet[12:end]
