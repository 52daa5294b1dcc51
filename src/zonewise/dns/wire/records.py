"""Resource records in wire format: the part of a reply after the question.

An answer is encoded once, for its first query, and sent many times. Every owner is a pointer to the question, so that
the client's own spelling is returned. Records of equal length can be rotated without parsing them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from zonewise.dns.wire.message import IN, RecordType
from zonewise.dns.wire.names import is_v4, to_wire

SCHEMA_VERSION: Final = "1.1.0"
SCHEMA_TTL: Final = 28800

_QUESTION: Final = b"\xc0\x0c"
_HEADER_AND_TAIL: Final = 12 + 4
_LAST_POINTER: Final = 0x3FFF
_SRV: Final = struct.Struct(">HHH")
_SRV_BYTES: Final = 12 + _SRV.size


class WireAnswer(NamedTuple):
    """`stride` is the length of each record if they may be rotated, else 0. `glue` is added if it fits."""

    record_count: int
    records: bytes
    stride: int = 0
    glue_count: int = 0
    glue: bytes = b""


class SrvTarget(NamedTuple):
    """One endpoint port of an SRV answer."""

    name: bytes
    port: int
    address: bytes


@lru_cache(4096)
def _head(owner: bytes, type_: RecordType, ttl: int, length: int) -> bytes:
    return owner + struct.pack(">HHIH", type_, IN, ttl, length)


def record(type_: RecordType, ttl: int, data: bytes, owner: bytes = _QUESTION) -> bytes:
    return _head(owner, type_, ttl, len(data)) + data


def addresses(ips: Iterable[bytes], ttl: int) -> WireAnswer:
    """A or AAAA: all of one family."""
    data = list(ips)
    head = _head(_QUESTION, RecordType.A if is_v4(data[0]) else RecordType.AAAA, ttl, len(data[0]))
    stride = len(head) + len(data[0]) if len(data) > 1 else 0
    return WireAnswer(len(data), head + head.join(data), stride)


def services(owner: bytes | None, targets: Sequence[SrvTarget], entries: int, ttl: int) -> WireAnswer:
    """SRV, with the targets' addresses as glue. Weights share 100 among all `entries`, as in CoreDNS.

    Glue points at the target's name inside the SRV record (RFC 2782 forbids compression within). Its offset follows
    from the length of the question, so it is unknown without `owner`.
    """
    weight = math.floor(100.0 / (100 * entries) * 100)
    encoded: list[bytes] = []
    offsets: dict[bytes, int] = {}
    at = len(owner) + _HEADER_AND_TAIL if owner else _LAST_POINTER + 1
    for name, port in dict.fromkeys((name, port) for name, port, _ in targets):
        at += _SRV_BYTES + len(name)
        offsets.setdefault(name, at - len(name))
        encoded.append(_head(_QUESTION, RecordType.SRV, ttl, 6 + len(name)) + _SRV.pack(0, weight, port) + name)
    glue = [_glue(offsets, *pair, ttl) for pair in dict.fromkeys((name, address) for name, _, address in targets)]
    return WireAnswer(len(encoded), b"".join(encoded), 0, len(glue), b"".join(glue))


def _glue(offsets: dict[bytes, int], name: bytes, address: bytes, ttl: int) -> bytes:
    offset = offsets[name]
    owner = struct.pack(">H", 0xC000 | offset) if offset <= _LAST_POINTER else name
    return record(RecordType.A if is_v4(address) else RecordType.AAAA, ttl, address, owner)


def pointers(targets: Sequence[bytes], ttl: int) -> WireAnswer:
    return WireAnswer(len(targets), b"".join(record(RecordType.PTR, ttl, target) for target in targets))


def alias(target: bytes, ttl: int) -> WireAnswer:
    return WireAnswer(1, record(RecordType.CNAME, ttl, target))


def schema_version() -> WireAnswer:
    text = SCHEMA_VERSION.encode()
    return WireAnswer(1, record(RecordType.TXT, SCHEMA_TTL, bytes((len(text),)) + text))


def name_servers(domain: bytes, ttl: int, targets: Sequence[SrvTarget]) -> WireAnswer:
    """NS of the domain itself; the glue points at each server's name in its record."""
    at = len(domain) + _HEADER_AND_TAIL
    encoded, offsets = b"", {}
    for name in dict.fromkeys(target.name for target in targets) or (to_wire("ns.dns")[:-1] + domain,):
        encoded += record(RecordType.NS, ttl, name)
        offsets[name] = at + len(encoded) - len(name)
    glue = [_glue(offsets, target.name, target.address, ttl) for target in dict.fromkeys(targets)]
    return WireAnswer(max(1, len(offsets)), encoded, 0, len(glue), b"".join(glue))


def authority(domain: bytes, serial: int, ttl: int) -> bytes:
    """The SOA record of negative answers: it limits how long they may be cached (RFC 2308)."""
    return record(RecordType.SOA, ttl, _authority_data(domain, serial, ttl), domain)


def start_of_authority(domain: bytes, serial: int, ttl: int) -> WireAnswer:
    return WireAnswer(1, record(RecordType.SOA, ttl, _authority_data(domain, serial, ttl)))


def _authority_data(domain: bytes, serial: int, ttl: int) -> bytes:
    server, mailbox = to_wire("ns.dns")[:-1] + domain, to_wire("hostmaster")[:-1] + domain
    return server + mailbox + struct.pack(">IIIII", serial & 0xFFFFFFFF, 7200, 1800, 86400, ttl)
