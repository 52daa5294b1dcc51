"""Fast path for the usual UDP query, called by the UDP worker for every packet.

It recognises the few forms that nearly all queries have and reads nothing else in the packet; every other packet goes
to `handler.respond`. For the same query both send the same bytes. A question with a stored answer was validated label
by label when it came first. A query that was answered before, whatever its id, for a client on the same node, is not
read at all: its reply is kept until the table changes.
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
"""Index of the reply header, by bytes 2 to 12 of a standard query with one question and at most one OPT record."""

_OPTS: Final = {struct.pack(">BBHH", 0, 0, flags, 0): opt_record(bool(flags)) + b"\0\0" for flags in (0, 0x8000)}
"""The OPT record to send back, by the bytes after the size in a received one without options."""

_KEPT: Final = frozenset(QUESTIONS.values())


class QueryKind(IntEnum):
    """How a reply is counted, and what forwarding did not do. Queries themselves are counted by client."""

    PLAIN = 0
    NEAR = 1
    FAR = 2
    NODATA = 3
    NXDOMAIN = 4
    SLOW_PATH = 5
    HANDED_OVER = 6
    REFUSED = 7
    GIVEN_UP = 8


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
"""Returns the reply, empty if none is to be sent, or None for a query to hand over to the TCP worker."""


def fast_responder(table: RecordTable, counters: QueryCounters, largest: int = OUR_UDP_BYTES) -> FastResponder:  # noqa: PLR0915
    """One flat function for the common case, because a call costs more than most of its steps, and rare cases apart."""
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

    def slow_path(packet: bytes, sender: QuerySender) -> bytes | None:
        counts[QueryKind.SLOW_PATH] += 1
        reply = respond(table, packet, sender, largest, turn)
        if isinstance(reply, bytes):
            return reply
        counts[QueryKind.HANDED_OVER] += 1
        return None

    def deny(packet: bytes, form: int, end: int, max_bytes: int, opt: bytes, headers: Headers) -> bytes:
        authority = table.authority
        if end + len(authority) + len(opt) > max_bytes or not authority:
            headers, authority = _without_authority(headers), b""
        return packet[:2] + headers[form] + packet[12:end] + authority + opt

    def new_question(packet: bytes, sender: QuerySender, question: bytes) -> bytes | None:
        """Validates the name. Names outside the domain, and answers that are not stored, always take the slow path."""
        at, begin = 0, len(question) - 4 - len(domain)
        while at < begin:
            length = question[at]
            if length > LONGEST_LABEL:
                return slow_path(packet, sender)
            at += length + 1
        name, tail = question[:-4], question[-4:]
        if at != begin or len(name) > LONGEST_NAME or tail not in _KEPT or not name.endswith(domain):
            return slow_path(packet, sender)
        table.find(name, tail[1])
        return respond_fast(packet, sender) if question in answers else slow_path(packet, sender)

    def shorten(
        packet: bytes, form: int, end: int, max_bytes: int, opt: bytes, headers: Headers, records: bytes, stride: int
    ) -> bytes:
        free = max_bytes - end - len(opt)
        if len(records) <= free:
            bare = table.headers(Rcode.NOERROR, int.from_bytes(headers[0][4:6]))
            return packet[:2] + bare[form] + packet[12:end] + records + opt
        fits = free // stride if stride else 0
        head = truncated(table.headers(Rcode.NOERROR, fits)[form])
        return packet[:2] + head + packet[12:end] + records[: fits * stride] + opt

    def respond_fast(packet: bytes, sender: QuerySender) -> bytes | None:
        nonlocal turn
        kept = replies_get(sender.mark + packet[2:])
        if kept is None:
            return respond_uncached(packet, sender)
        kind, head, records, stride, rest = kept
        counts[kind] += 1
        if not stride:
            return packet[:2] + head
        turn += 1
        cut = turn * stride % len(records)
        return packet[:2] + head + records[cut:] + records[:cut] + rest

    def respond_uncached(packet: bytes, sender: QuerySender) -> bytes | None:
        nonlocal turn
        form = forms_get(packet[2:12])
        if form is None:
            return slow_path(packet, sender)
        end = packet.find(b"\0", 12) + 5
        if form > 1:
            opt = opts_get(packet[end + 5 :])
            if opt is None or packet[end : end + 3] != OPT_HEAD:
                return slow_path(packet, sender)
            max_bytes = packet[end + 3] << 8 | packet[end + 4]
            if max_bytes > largest:
                max_bytes = largest
            elif max_bytes < PLAIN_UDP_BYTES:
                max_bytes = PLAIN_UDP_BYTES
        elif len(packet) == end:
            opt, max_bytes = b"", PLAIN_UDP_BYTES
        else:
            return slow_path(packet, sender)
        question = packet[12:end].lower()
        slot = answers_get(question)
        if slot is None:
            return new_question(packet, sender, question)
        headers, records, stride, glue, further = slot
        kind = _PLAIN
        if further is not None:
            if type(further) is not AnswerChoices:
                return slow_path(packet, sender)
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
            reply = deny(packet, form, end, max_bytes, opt, no_name if stride else no_data)
            if kind == _PLAIN:  # other kinds are counted twice, as kind and as denial
                keep(packet, sender, (denial, reply[2:], b"", 0, b""))
            return reply
        head, rest = headers[form] + packet[12:end], glue + opt
        fits = 2 + len(head) + len(records) + len(rest) <= max_bytes
        if fits:
            keep(packet, sender, (kind, head if stride else head + records + rest, records, stride, rest))
        if stride:
            turn += 1
            cut = turn * stride % len(records)
            records = records[cut:] + records[:cut]
        if fits:
            return packet[:2] + head + records + rest
        return shorten(packet, form, end, max_bytes, opt, headers, records, stride)

    return respond_fast


def _without_authority(headers: Headers) -> Headers:
    first, second, third, fourth = (header[:6] + b"\0\0" + header[8:] for header in headers)
    return first, second, third, fourth


def ask_over_tcp(packet: bytes) -> bytes:
    """For a client over its rate limit: a truncated reply, no larger than the query. A real client retries over TCP."""
    end = packet.find(b"\0", 12) + 5
    if packet[2:12] not in _FORMS or not 16 < end <= len(packet):
        return b""
    return packet[:2] + bytes((0x86 | packet[2] & 1, 0, 0, 1, 0, 0, 0, 0, 0, 0)) + packet[12:end]
