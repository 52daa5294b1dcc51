"""Packets as people read them: the records of a reply, as zone files write them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from ipaddress import ip_address

import msgspec

from zonewise.dns.wire.message import HEADER_BYTES, IN, Rcode, Type
from zonewise.dns.wire.names import to_text, to_wire
from zonewise.dns.wire.upstream_message import Place, name_at, records_in


class Record(msgspec.Struct, frozen=True):
    name: str
    type: str
    ttl: int
    data: str


class Shown(msgspec.Struct, frozen=True):
    """A reply; the authority of a denial is left out, `ttl` says how long the whole may be kept."""

    rcode: str
    ttl: int | None
    records: tuple[Record, ...] = ()
    additional: tuple[Record, ...] = ()


def query_for(name: str, type_: Type) -> bytes:
    return b"\0\0\1\0\0\1\0\0\0\0\0\0" + to_wire(name) + struct.pack(">HH", type_, IN)


def shown(reply: bytes) -> Shown:
    """Of a whole reply to one question, as this room writes them."""
    _, after = name_at(reply, HEADER_BYTES)
    found = list(records_in(reply, after + 4))
    kept = [each.ttl for each in found if each.section < 2]
    answers, _, additional = (tuple(_in_section(reply, found, section)) for section in range(3))
    return Shown(Rcode(reply[3] & 15).name, min(kept) if kept else None, answers, additional)


def alias_in(name: str, target: bytes, ttl: int) -> Shown:
    """What is known here of a name that points away."""
    return Shown(Rcode.NOERROR.name, ttl, (Record(name, Type.CNAME.name, ttl, to_text(target)),))


def _in_section(reply: bytes, found: list[Place], section: int) -> Iterator[Record]:
    for each in found:
        if each.section == section:
            owner, _ = name_at(reply, each.owner)
            yield Record(to_text(owner), Type(each.type).name, each.ttl, _data(reply, each))


def _data(reply: bytes, place: Place) -> str:
    data = reply[place.data : place.end]
    match place.type:
        case Type.A | Type.AAAA:
            return str(ip_address(data))
        case Type.CNAME | Type.NS | Type.PTR:
            return to_text(data)
        case Type.SRV:
            priority, weight, port = struct.unpack_from(">HHH", data)
            return f"{priority} {weight} {port} {to_text(data[6:])}"
        case Type.TXT:
            return f'"{data[1:].decode()}"'
        case Type.SOA:
            server, after = name_at(reply, place.data)
            mailbox, numbers = name_at(reply, after)
            return " ".join(
                [to_text(server), to_text(mailbox), *map(str, struct.unpack_from(">IIIII", reply, numbers))]
            )
        case other:
            raise ValueError(f"no record of ours has type {other}")
