"""Packets as people read them: the records of a reply, as zone files write them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from ipaddress import ip_address

import msgspec

from zonewise.dns.wire.message import HEADER_BYTES, IN, Rcode, RecordType
from zonewise.dns.wire.names import to_text, to_wire
from zonewise.dns.wire.upstream_message import RecordPosition, name_at, records_in


class TextRecord(msgspec.Struct, frozen=True):
    name: str
    type: str
    ttl: int
    data: str


class TextReply(msgspec.Struct, frozen=True):
    """A reply; the authority of a denial is left out, `ttl` says how long the whole may be kept."""

    rcode: str
    ttl: int | None
    records: tuple[TextRecord, ...] = ()
    additional: tuple[TextRecord, ...] = ()


def build_query(name: str, type_: RecordType) -> bytes:
    return b"\0\0\1\0\0\1\0\0\0\0\0\0" + to_wire(name) + struct.pack(">HH", type_, IN)


def text_reply(reply: bytes) -> TextReply:
    """Of a whole reply to one question, as this room writes them."""
    _, after = name_at(reply, HEADER_BYTES)
    found = list(records_in(reply, after + 4))
    kept = [each.ttl for each in found if each.section < 2]
    answers, _, additional = (tuple(_in_section(reply, found, section)) for section in range(3))
    return TextReply(Rcode(reply[3] & 15).name, min(kept) if kept else None, answers, additional)


def alias_reply(name: str, target: bytes, ttl: int) -> TextReply:
    """What is known here of a name that points away."""
    return TextReply(Rcode.NOERROR.name, ttl, (TextRecord(name, RecordType.CNAME.name, ttl, to_text(target)),))


def _in_section(reply: bytes, found: list[RecordPosition], section: int) -> Iterator[TextRecord]:
    for each in found:
        if each.section == section:
            owner, _ = name_at(reply, each.owner)
            yield TextRecord(to_text(owner), RecordType(each.type).name, each.ttl, _data(reply, each))


def _data(reply: bytes, place: RecordPosition) -> str:
    data = reply[place.data : place.end]
    match place.type:
        case RecordType.A | RecordType.AAAA:
            return str(ip_address(data))
        case RecordType.CNAME | RecordType.NS | RecordType.PTR:
            return to_text(data)
        case RecordType.SRV:
            priority, weight, port = struct.unpack_from(">HHH", data)
            return f"{priority} {weight} {port} {to_text(data[6:])}"
        case RecordType.TXT:
            return f'"{data[1:].decode()}"'
        case RecordType.SOA:
            server, after = name_at(reply, place.data)
            mailbox, numbers = name_at(reply, after)
            return " ".join(
                [to_text(server), to_text(mailbox), *map(str, struct.unpack_from(">IIIII", reply, numbers))]
            )
        case other:
            raise ValueError(f"no record of ours has type {other}")
