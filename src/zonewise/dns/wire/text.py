"""Replies in presentation format: records as in zone files."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from ipaddress import ip_address

import msgspec

from zonewise.dns.wire.bailiwick import RecordPosition, name_at, records_in
from zonewise.dns.wire.message import HEADER_BYTES, IN, Rcode, RecordType
from zonewise.dns.wire.names import to_text, to_wire


class TextRecord(msgspec.Struct, frozen=True):
    name: str
    type: str
    ttl: int
    data: str


class TextReply(msgspec.Struct, frozen=True):
    """Without the authority section; `ttl` is how long the reply may be cached."""

    rcode: str
    ttl: int | None
    records: tuple[TextRecord, ...] = ()
    additional: tuple[TextRecord, ...] = ()


def build_query(name: str, type_: RecordType) -> bytes:
    return b"\0\0\1\0\0\1\0\0\0\0\0\0" + to_wire(name) + struct.pack(">HH", type_, IN)


def text_reply(reply: bytes) -> TextReply:
    """From a complete reply of this server."""
    _, after = name_at(reply, HEADER_BYTES)
    records = list(records_in(reply, after + 4))
    ttls = [record.ttl for record in records if record.section < 2]
    answers, _, additional = (tuple(_in_section(reply, records, section)) for section in range(3))
    return TextReply(Rcode(reply[3] & 15).name, min(ttls) if ttls else None, answers, additional)


def alias_reply(name: str, target: bytes, ttl: int) -> TextReply:
    """For an alias whose target is outside the domain."""
    return TextReply(Rcode.NOERROR.name, ttl, (TextRecord(name, RecordType.CNAME.name, ttl, to_text(target)),))


def _in_section(reply: bytes, records: list[RecordPosition], section: int) -> Iterator[TextRecord]:
    for record in records:
        if record.section == section:
            owner, _ = name_at(reply, record.owner)
            yield TextRecord(to_text(owner), RecordType(record.type).name, record.ttl, _data(reply, record))


def _data(reply: bytes, record: RecordPosition) -> str:
    data = reply[record.data : record.end]
    match record.type:
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
            server, after = name_at(reply, record.data)
            mailbox, numbers = name_at(reply, after)
            return " ".join(
                [to_text(server), to_text(mailbox), *map(str, struct.unpack_from(">IIIII", reply, numbers))]
            )
        case other:
            raise ValueError(f"unexpected record type {other}: this server has no such records")
