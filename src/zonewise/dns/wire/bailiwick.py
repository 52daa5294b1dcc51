"""Records of an upstream's response that its question asks for; all others are neither cached nor passed on.

A response may carry records of any name, and a client behind us may store them. Kept are the answers of the name and of
the names that its aliases lead to, the SOA record of a zone above these, and proofs of denial, which only a client that
verifies them believes. Name servers of the zone, and the whole additional section, are left out: no client needs them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from zonewise.dns.wire.message import HEADER_BYTES, IN, MalformedError, RecordType, skip_name
from zonewise.dns.wire.names import LONGEST_LABEL, LONGEST_NAME

MAX_CHAIN: Final = 16
_MAX_POINTERS: Final = 32
"""In one name. Each could lead to the next through a packet of 64 KiB, for each of its records."""
_FIXED: Final = struct.Struct(">HHIH")
_TO_QUESTION: Final = struct.pack(">H", 0xC000 | HEADER_BYTES)
_DNAME: Final = 39
_PROOFS: Final = frozenset({46, 47, 50})
"""RRSIG, NSEC, NSEC3."""

_DATA_NAMES: Final = {
    RecordType.SOA: (0, 2), 14: (0, 2), 17: (0, 2),
    15: (2, 1), 18: (2, 1), 21: (2, 1), 36: (2, 1), RecordType.SRV: (6, 1),
    **dict.fromkeys((RecordType.NS, 3, 4, RecordType.CNAME, 7, 8, 9, RecordType.PTR, _DNAME), (0, 1)),
}  # fmt: skip
"""Types whose data may contain compressed names (RFC 3597, 4): bytes before them, and how many there are."""


@dataclass(frozen=True, slots=True)
class RecordPosition:
    """Offsets of a record's parts in a packet. `section` is 0 for answers, 1 for authorities, 2 for additional."""

    owner: int
    head: int
    type: int
    class_: int
    ttl: int
    data: int
    end: int
    section: int


def records_in(packet: bytes, at: int) -> Iterator[RecordPosition]:
    for section, count in enumerate(struct.unpack_from(">HHH", packet, 6)):
        for _ in range(count):
            head = skip_name(packet, at)
            type_, class_, ttl, length = _FIXED.unpack_from(packet, head)
            data = head + _FIXED.size
            if data + length > len(packet):
                raise MalformedError
            yield RecordPosition(at, head, type_, class_, ttl if ttl < 1 << 31 else 0, data, data + length, section)
            at = data + length


def relevant(packet: bytes, name: bytes, records: Iterable[RecordPosition]) -> list[RecordPosition]:
    """`name` in lower case."""
    owned = [(record, _lower(packet, record.owner)) for record in records if record.class_ == IN and record.section < 2]
    aliases = {
        owner: _lower(packet, record.data)
        for record, owner in owned
        if record.section == 0 and record.type == RecordType.CNAME
    }
    chain = [name]
    while (target := aliases.get(chain[-1])) and target not in chain and len(chain) < MAX_CHAIN:
        chain.append(target)
    above = {ancestor for link in chain for ancestor in _ancestors(link)}
    return [record for record, owner in owned if _is_relevant(record, owner, chain, above)]


def _is_relevant(record: RecordPosition, owner: bytes, chain: list[bytes], above: set[bytes]) -> bool:
    if record.section == 0:
        return owner in chain or (record.type == _DNAME and owner in above)
    return record.type in _PROOFS or (record.type == RecordType.SOA and (owner in above or owner in chain))


def _ancestors(name: bytes) -> Iterator[bytes]:
    """All zones that a name may be in, the root included."""
    while name[0]:
        name = name[name[0] + 1 :]
        yield name


def spells(packet: bytes, record: RecordPosition, name: bytes) -> bool:
    """Whether the owner is written out as `name`, in the letters of our own query and not in the client's."""
    return name != name.lower() and packet.startswith(name, record.owner)


def uncompressed(packet: bytes, record: RecordPosition, asked: bytes = b"") -> bytes:
    """The record as bytes that need no other part of the packet, except for the question if `asked` is its name."""
    owner, _ = name_at(packet, record.owner)
    before, names = _DATA_NAMES.get(record.type, (0, 0))
    at = record.data + before
    data = packet[record.data : at]
    for _ in range(names):
        name, at = name_at(packet, at)
        data += name
    if at > record.end:
        raise MalformedError
    data += packet[at : record.end]
    head = _FIXED.pack(record.type, record.class_, record.ttl, len(data))
    return (_TO_QUESTION if asked and owner.lower() == asked else owner) + head + data


def _lower(packet: bytes, at: int) -> bytes:
    return name_at(packet, at)[0].lower()


def name_at(packet: bytes, at: int) -> tuple[bytes, int]:
    """A name and the offset after it. Pointers must point backwards, so they can't loop."""
    name, after, limit, pointers = b"", 0, at, 0
    while True:
        length = packet[at]
        if length & 0xC0 == 0xC0:
            after = after or at + 2
            at = (length & 0x3F) << 8 | packet[at + 1]
            pointers += 1
            if at >= limit or pointers > _MAX_POINTERS:
                raise MalformedError
            limit = at
        elif length > LONGEST_LABEL or len(name) + length + 1 > LONGEST_NAME:
            raise MalformedError
        else:
            name += packet[at : at + length + 1]
            at += length + 1
            if length == 0:
                return name, after or at
