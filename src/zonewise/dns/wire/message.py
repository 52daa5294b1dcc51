"""Parser of DNS queries: returns a query, a refusal, or None for a packet that gets no reply.

`fast_path` reads the usual forms itself. Every unusual packet is parsed here, hostile ones included. A client gets
FORMERR, NOTIMP or BADVERS where that may help it. A packet that may be a reply gets none, so that two servers can't be
made to loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from ipaddress import ip_address
from typing import Final

from zonewise.dns.wire.names import LONGEST_LABEL, LONGEST_NAME

HEADER_BYTES: Final = 12
PLAIN_UDP_BYTES: Final = 512
"""The limit of a client without EDNS (RFC 1035, 4.2.1)."""

_RESPONSE: Final = 0x80
_OPCODE: Final = 0x78
_RECURSION_DESIRED: Final = 0x01
_POINTER: Final = 0xC0
_DNSSEC_OK: Final = 0x80
_SUBNET_OPTION: Final = 8
_FAMILY_BYTES: Final = {1: 4, 2: 16}


class RecordType(IntEnum):
    __hash__ = int.__hash__  # Enum's own is written in Python, and lookups by type are frequent

    A = 1
    NS = 2
    CNAME = 5
    SOA = 6
    PTR = 12
    TXT = 16
    AAAA = 28
    SRV = 33
    OPT = 41
    IXFR = 251
    AXFR = 252


class Rcode(IntEnum):
    __hash__ = int.__hash__

    NOERROR = 0
    FORMERR = 1
    SERVFAIL = 2
    NXDOMAIN = 3
    NOTIMP = 4
    REFUSED = 5
    BADVERS = 16


IN: Final = 1


@dataclass(frozen=True, slots=True)
class Subnet:
    """EDNS Client Subnet (RFC 7871): the network of the client that a forwarder asks for."""

    address: str
    prefix: int
    option: bytes
    """Family, source and scope prefix lengths and address, as received: the reply repeats it."""


@dataclass(frozen=True, slots=True)
class Edns:
    udp_bytes: int
    dnssec_ok: bool = False
    subnet: Subnet | None = None


@dataclass(frozen=True, slots=True)
class Query:
    """`name` is as the client spelled it; `question` adds type and class, as the reply repeats them."""

    id: bytes
    name: bytes
    type: int
    class_: int
    recursion_desired: bool
    edns: Edns | None

    @property
    def question(self) -> bytes:
        return self.name + self.type.to_bytes(2) + self.class_.to_bytes(2)


@dataclass(frozen=True, slots=True)
class QueryRefusal:
    """An error reply; `question` is set if it could be parsed."""

    id: bytes
    opcode: int
    recursion_desired: bool
    rcode: Rcode
    question: bytes = b""


class MalformedError(ValueError):
    """The packet violates RFC 1035, 6891 or 7871."""


def read(packet: bytes) -> Query | QueryRefusal | None:
    """None if no reply may be sent."""
    if len(packet) < HEADER_BYTES or packet[2] & _RESPONSE:
        return None
    if packet[2] & _OPCODE:
        return _refuse(packet, Rcode.NOTIMP)
    if packet[4:10] != b"\0\1\0\0\0\0":  # one question, and neither answers nor authorities
        return _refuse(packet, Rcode.FORMERR)
    try:
        name, at = _name(packet, HEADER_BYTES)
        type_, class_ = _number(packet, at), _number(packet, at + 2)
        question = packet[HEADER_BYTES : at + 4]
        options = _read_additional(packet, at + 4, _number(packet, 10))
    except MalformedError:
        return _refuse(packet, Rcode.FORMERR)
    if options == Rcode.BADVERS:
        return _refuse(packet, Rcode.BADVERS, question)
    assert not isinstance(options, Rcode)
    return Query(packet[:2], name, type_, class_, bool(packet[2] & _RECURSION_DESIRED), options)


def _refuse(packet: bytes, rcode: Rcode, question: bytes = b"") -> QueryRefusal:
    opcode = (packet[2] & _OPCODE) >> 3
    return QueryRefusal(packet[:2], opcode, bool(packet[2] & _RECURSION_DESIRED), rcode, question)


def _name(packet: bytes, at: int) -> tuple[bytes, int]:
    """The name and the offset after it. There is nothing before a question that a pointer could point at."""
    begin = at
    while True:
        length = _byte(packet, at)
        at += 1
        if length == 0:
            return packet[begin:at], at
        at += length
        if length > LONGEST_LABEL or at - begin >= LONGEST_NAME:
            raise MalformedError


def _read_additional(packet: bytes, at: int, count: int) -> Edns | Rcode | None:
    """The OPT record; others (TSIG, SIG(0)) are ignored."""
    edns: Edns | Rcode | None = None
    for _ in range(count):
        owner = at
        at = skip_name(packet, at)
        type_, length = _number(packet, at), _number(packet, at + 8)
        data = at + 10
        if data + length > len(packet):
            raise MalformedError
        if type_ == RecordType.OPT:
            if edns is not None or at != owner + 1:  # twice, or not the root's
                raise MalformedError
            edns = _read_options(packet, at, packet[data : data + length])
        at = data + length
    if at != len(packet):
        raise MalformedError
    return edns


def skip_name(packet: bytes, at: int) -> int:
    """The offset after a name that may end in a pointer. Pointers are not followed, so they can't loop."""
    while True:
        length = _byte(packet, at)
        if length == 0:
            return at + 1
        if length & _POINTER == _POINTER:
            return at + 2
        if length > LONGEST_LABEL:
            raise MalformedError
        at += length + 1


def _read_options(packet: bytes, at: int, data: bytes) -> Edns | Rcode:
    subnet: Subnet | None = None
    if packet[at + 5]:
        return Rcode.BADVERS
    begin = 0
    while begin < len(data):
        code, length = _number(data, begin), _number(data, begin + 2)
        option = data[begin + 4 : begin + 4 + length]
        if len(option) < length:
            raise MalformedError
        if code == _SUBNET_OPTION:
            subnet = _read_subnet(option)
        begin += 4 + length
    return Edns(_number(packet, at + 2), bool(packet[at + 6] & _DNSSEC_OK), subnet)


def _read_subnet(option: bytes) -> Subnet:
    """RFC 7871, 6: as many bytes as the prefix needs, unused bits zero, scope zero in queries."""
    family, prefix = _number(option, 0), _byte(option, 2)
    scope = _byte(option, 3)
    size = _FAMILY_BYTES.get(family, 0)
    address = option[4:]
    if prefix > size * 8 or scope or len(address) != (prefix + 7) // 8:
        raise MalformedError
    whole = int.from_bytes(address.ljust(size, b"\0"))
    if prefix < size * 8 and whole & ((1 << (size * 8 - prefix)) - 1):
        raise MalformedError
    return Subnet(str(ip_address(whole.to_bytes(size))) if size else "", prefix, option)


def _byte(packet: bytes, at: int) -> int:
    if at >= len(packet):
        raise MalformedError
    return packet[at]


def _number(packet: bytes, at: int) -> int:
    if at + 2 > len(packet):
        raise MalformedError
    return packet[at] << 8 | packet[at + 1]
