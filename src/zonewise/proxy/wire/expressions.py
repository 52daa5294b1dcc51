"""nf_tables expressions, which the kernel evaluates one after the other in a rule. Pure.

Values are in registers of four bytes, the first of which is `R`; a concatenation is a run of adjacent registers. Every
rule built of these must be printable by `nft list ruleset`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from zonewise.proxy.wire.family import Family
from zonewise.proxy.wire.netlink import NftVerdict, attribute, nested, number, text, verdict

R: Final = 8
_NETWORK_HEADER, _TRANSPORT_HEADER = 1, 2
_ORIGINAL: Final = b"\0"
_LOCAL_ADDRESS: Final = 2
_FULLY_RANDOM: Final = 0x10
_STATUS_DNAT: Final = 0x20
_STATE_NEW: Final = 0x8

Expression = bytes
Load = Callable[[Family, int], tuple[Expression, int]]
"""Loads one part of a concatenation into a register; returns the expression and the next free register."""


def _expression(name: str, *attributes: bytes) -> Expression:
    return nested(1, text(1, name), nested(2, *attributes))


def _payload(register: int, header: int, offset: int, length: int) -> Expression:
    return _expression("payload", number(1, register), number(2, header), number(3, offset), number(4, length))


def source(family: Family, register: int) -> tuple[Expression, int]:
    load = _payload(register, _NETWORK_HEADER, family.source_offset, family.address_bytes)
    return load, register + family.address_registers


def destination(family: Family, register: int) -> tuple[Expression, int]:
    load = _payload(register, _NETWORK_HEADER, family.destination_offset, family.address_bytes)
    return load, register + family.address_registers


def protocol(_family: Family, register: int) -> tuple[Expression, int]:
    return _expression("meta", number(1, register), number(2, 16)), register + 1


def port(_family: Family, register: int) -> tuple[Expression, int]:
    return _payload(register, _TRANSPORT_HEADER, 2, 2), register + 1


def original_destination(family: Family, register: int) -> tuple[Expression, int]:
    return _original(register, family.original_destination), register + family.address_registers


def original_port(_family: Family, register: int) -> tuple[Expression, int]:
    return _original(register, 12), register + 1


def chance(slots: int, offset: int = 0) -> Load:
    """A random index in [offset, offset + slots)."""

    def load(_family: Family, register: int) -> tuple[Expression, int]:
        parts = number(1, register), number(2, slots), number(3, 1), number(4, offset)
        return _expression("numgen", *parts), register + 1

    return load


def concatenation(family: Family, *loads: Load) -> bytes:
    parts: list[Expression] = []
    register = R
    for load in loads:
        part, register = load(family, register)
        parts.append(part)
    return b"".join(parts)


def contained(name: str) -> Expression:
    """Continue the rule only if the loaded value is in the set."""
    return _expression("lookup", text(1, name), number(2, R))


def looked_up(name: str, *, verdict_map: bool = False) -> Expression:
    """Look the loaded value up in a map: the result replaces it, or is the verdict."""
    return _expression("lookup", text(1, name), number(2, R), number(3, 0 if verdict_map else R))


def destination_nat(family: Family) -> Expression:
    """DNAT to the address and port in the registers."""
    address, after = R, R + family.address_registers
    flags = 0x2  # the port is specified
    parts = number(1, 1), number(2, family.number), number(3, address), number(5, after), number(7, flags)
    return _expression("nat", *parts)


def fixed_destination(family: Family, address: bytes, port_number: int) -> bytes:
    """Load a constant address and port into the registers that `destination_nat` reads."""
    after = R + family.address_registers
    return _immediate(R, address) + _immediate(after, struct.pack(">H", port_number))


def masquerade() -> Expression:
    return _expression("masq", number(1, _FULLY_RANDOM))


def reject(family: Family) -> Expression:
    """Reject as for a closed port."""
    return _expression("reject", number(1, 0), attribute(2, bytes([family.port_unreachable])))


def decide(nft_verdict: NftVerdict) -> Expression:
    return _expression("immediate", number(1, 0), nested(2, verdict(nft_verdict)))


def remember_source(family: Family, name: str) -> bytes:
    """Add the client's address to a dynamic set, or extend its timeout."""
    return concatenation(family, source) + _expression("dynset", text(1, name), number(3, 1), number(4, R))


def source_is_local(family: Family) -> bytes:  # noqa: ARG001 - rules of both families are written alike
    """The packet was sent by the node itself."""
    fib = _expression("fib", number(1, R), number(2, 3), number(3, 1))
    return fib + _compare(struct.pack("=I", _LOCAL_ADDRESS))


def came_by(interface: str) -> bytes:
    """Match the incoming interface by name, or by prefix if `interface` ends with a star."""
    name = interface[:-1].encode() if interface.endswith("*") else interface.encode().ljust(16, b"\0")
    return _expression("meta", number(1, R), number(2, 6)) + _compare(name)


def is_protocol(family: Family, value: int) -> bytes:
    return concatenation(family, protocol) + _compare(bytes([value]))


def source_within(family: Family, network: bytes, mask: bytes) -> bytes:
    return concatenation(family, source) + _masked(mask) + _compare(network)


def is_new(*, new: bool = True) -> bytes:
    return _tracked(0) + _masked(struct.pack("=I", _STATE_NEW)) + _compare(bytes(4), equal=not new)


def is_translated(*, translated: bool = True) -> bytes:
    """Whether the connection has been translated by DNAT."""
    mask = struct.pack("=I", _STATUS_DNAT)
    return _tracked(2) + _masked(mask) + _compare(mask, equal=translated)


def _tracked(key: int) -> Expression:
    return _expression("ct", number(1, R), number(2, key))


def _original(register: int, key: int) -> Expression:
    return _expression("ct", number(1, register), number(2, key), attribute(3, _ORIGINAL))


def _immediate(register: int, value: bytes) -> Expression:
    return _expression("immediate", number(1, register), nested(2, attribute(1, value)))


def _masked(mask: bytes) -> Expression:
    data = nested(4, attribute(1, mask)), nested(5, attribute(1, bytes(len(mask))))
    return _expression("bitwise", number(1, R), number(2, R), number(3, len(mask)), *data)


def _compare(value: bytes, *, equal: bool = True) -> Expression:
    return _expression("cmp", number(1, R), number(2, 0 if equal else 1), nested(3, attribute(1, value)))
