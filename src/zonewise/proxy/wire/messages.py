"""Netlink messages that create and delete the table, sets, chains and rules. Pure.

`ruleset` puts them in order, `layout` defines the sets and chains; messages for set elements are in `netlink`.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Final

from zonewise.proxy.wire.family import Family
from zonewise.proxy.wire.layout import TABLE, Chain, Set
from zonewise.proxy.wire.netlink import APPEND, CREATE, Message, MessageType, nested, number, number64, text

_VERDICT: Final = 0xFFFFFF00
_MAX_CLIENTS: Final = 65535


class SetFlag(IntEnum):
    INTERVAL = 0x4
    MAP = 0x8
    TIMEOUT = 0x10
    DYNAMIC = 0x20


def new_table(family: Family) -> Message:
    return Message(MessageType.NEW_TABLE, family.number, text(1, TABLE), CREATE)


def delete_table(family: Family) -> Message:
    return Message(MessageType.DELETE_TABLE, family.number, text(1, TABLE))


def new_set(family: Family, nft_set: Set, identifier: int) -> Message:
    flags = SetFlag.MAP * bool(nft_set.data or nft_set.verdicts) | SetFlag.INTERVAL * nft_set.interval
    flags |= (SetFlag.TIMEOUT | SetFlag.DYNAMIC) * bool(nft_set.timeout_seconds)
    body = [text(1, TABLE), text(2, nft_set.name), number(3, flags)]
    body += [number(4, _type_number(nft_set.key)), number(5, _length(family, nft_set.key))]
    if nft_set.verdicts:
        body += [number(6, _VERDICT), number(7, 16)]
    elif nft_set.data:
        body += [number(6, _type_number(nft_set.data)), number(7, _length(family, nft_set.data))]
    body.append(number(10, identifier))
    if nft_set.timeout_seconds:
        body += [nested(9, number(1, _MAX_CLIENTS)), number64(11, nft_set.timeout_seconds * 1000)]
    return Message(MessageType.NEW_SET, family.number, b"".join(body), CREATE)


def delete_set(family: Family, name: str) -> Message:
    return Message(MessageType.DELETE_SET, family.number, text(1, TABLE) + text(2, name))


def new_chain(family: Family, chain: Chain) -> Message:
    body = [text(1, TABLE), text(3, chain.name)]
    if hooked := chain.attached:
        body += [
            nested(4, number(1, hooked.hook), number(2, hooked.priority)),
            number(5, 1),
            text(7, hooked.type.value),
        ]
    return Message(MessageType.NEW_CHAIN, family.number, b"".join(body), CREATE)


def delete_chain(family: Family, name: str) -> Message:
    return Message(MessageType.DELETE_CHAIN, family.number, text(1, TABLE) + text(3, name))


def flush_rules(family: Family, chain: str = "") -> Message:
    """Delete the rules of one chain, or of all."""
    return Message(MessageType.DELETE_RULE, family.number, text(1, TABLE) + (text(2, chain) if chain else b""))


def new_rules(family: Family, chain: Chain) -> Iterator[Message]:
    for rule in chain.rules:
        body = text(1, TABLE) + text(2, chain.name) + nested(4, rule)
        yield Message(MessageType.NEW_RULE, family.number, body, CREATE | APPEND)


def _type_number(types: tuple[int, ...]) -> int:
    """Concatenated types as nft encodes them: six bits each."""
    combined = 0
    for type_ in types:
        combined = combined << 6 | type_
    return combined


def _length(family: Family, types: tuple[int, ...]) -> int:
    return sum(family.address_bytes if type_ == family.address_type else 4 for type_ in types)
