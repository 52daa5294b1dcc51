"""What is said to the kernel's nf_tables, as bytes: attributes, messages, set elements, batches. Pure; `kernel` sends them.

Written by hand because set elements are what changes, by the hundred thousand, and a general library spends longer on
one than the kernel does. A batch is one transaction: the kernel takes all of it or nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

SUBSYSTEM: Final = 10
BATCH_BEGIN: Final = 0x10
BATCH_END: Final = 0x11
REQUEST, CREATE, APPEND, DUMP = 0x1, 0x400, 0x800, 0x300
_NESTED: Final = 0x8000
_LARGEST_LIST: Final = 65000
"""An attribute's length is 16 bits wide."""


class MessageType(IntEnum):
    NEW_TABLE = 0
    DELETE_TABLE = 2
    NEW_CHAIN = 3
    GET_CHAIN = 4
    DELETE_CHAIN = 5
    NEW_RULE = 6
    DELETE_RULE = 8
    NEW_SET = 9
    GET_SET = 10
    DELETE_SET = 11
    NEW_ELEMENTS = 12
    GET_ELEMENTS = 13
    DELETE_ELEMENTS = 14


class NftVerdict(NamedTuple):
    """What an element of a verdict map, or a rule, says: `code` as the kernel numbers it."""

    code: int
    chain: str = ""


DROP: Final = NftVerdict(0)
RETURN: Final = NftVerdict(-5)


def goto(chain: str) -> NftVerdict:
    return NftVerdict(-4, chain)


Value = bytes | NftVerdict | None
"""What an element's key leads to: data of a map, a verdict, or nothing in a plain set."""
Elements = Mapping[bytes, Value]


class Message(NamedTuple):
    kind: int
    family: int
    body: bytes
    flags: int = 0


def attribute(kind: int, payload: bytes) -> bytes:
    length = 4 + len(payload)
    return struct.pack("=HH", length, kind) + payload + b"\0" * (-length & 3)


def nested(kind: int, *attributes: bytes) -> bytes:
    return attribute(kind | _NESTED, b"".join(attributes))


def text(kind: int, value: str) -> bytes:
    return attribute(kind, value.encode() + b"\0")


def number(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">i" if value < 0 else ">I", value))


def number64(kind: int, value: int) -> bytes:
    return attribute(kind, struct.pack(">Q", value))


@lru_cache(maxsize=4096)
def verdict(decided: NftVerdict) -> bytes:
    """A verdict as data, without the attribute around it."""
    chain = text(2, decided.chain) if decided.chain else b""
    return nested(2, number(1, decided.code), chain)


@lru_cache(maxsize=64)
def _frame(key_bytes: int, data_bytes: int) -> tuple[bytes, bytes]:
    """What stands before the key and between key and data of an element."""
    rest = struct.pack("=HHHH", 8 + data_bytes, 2 | _NESTED, 4 + data_bytes, 1) if data_bytes else b""
    length = 12 + key_bytes + len(rest) + data_bytes
    head = struct.pack("=HHHHHH", length, 1 | _NESTED, 8 + key_bytes, 1 | _NESTED, 4 + key_bytes, 1)
    return head, rest


def encoded(elements: Elements) -> list[bytes]:
    """The elements of one set, which are all of a kind and size: multiples of four bytes, as concatenations always are."""
    key, value = next(iter(elements.items()), (b"", None))
    match value:
        case None:
            head, _ = _frame(len(key), 0)
            return [head + key for key in elements]
        case NftVerdict():
            frames = {to: _verdict_frame(len(key), to) for to in set(elements.values())}  # type: ignore[arg-type]
            return [frames[to][0] + key + frames[to][1] for key, to in elements.items()]
        case bytes():
            head, between = _frame(len(key), len(value))
            return [head + key + between + data for key, data in elements.items()]  # type: ignore[operator]


def _verdict_frame(key_bytes: int, decided: NftVerdict) -> tuple[bytes, bytes]:
    """What stands before and after the key of an element that leads to a verdict."""
    data = nested(2, verdict(decided))
    whole = nested(1, nested(1, attribute(1, bytes(key_bytes))), data)
    return whole[: -len(data) - key_bytes], data


def interval_element(key: bytes, *, end: bool) -> bytes:
    return nested(1, nested(1, attribute(1, key)), *([number(3, 1)] if end else []))


def _element_messages(kind: MessageType, family: int, table: str, name: str, listed: list[bytes]) -> Iterator[Message]:
    """In as many messages as the length of an attribute asks for."""
    head = text(1, table) + text(2, name)
    flags = CREATE if kind is MessageType.NEW_ELEMENTS else 0
    at_once = _LARGEST_LIST // max(map(len, listed), default=1)
    for first in range(0, len(listed), at_once):
        yield Message(kind, family, head + nested(3, *listed[first : first + at_once]), flags)


def add_elements(family: int, table: str, name: str, elements: Elements) -> Iterator[Message]:
    return _element_messages(MessageType.NEW_ELEMENTS, family, table, name, encoded(elements))


def add_intervals(family: int, table: str, name: str, bounds: Iterable[tuple[bytes, bool]]) -> Iterator[Message]:
    """`bounds`: where ranges begin, and where, exclusive, they end."""
    listed = [interval_element(key, end=end) for key, end in bounds]
    return _element_messages(MessageType.NEW_ELEMENTS, family, table, name, listed)


def delete_elements(family: int, table: str, name: str, keys: Iterable[bytes]) -> Iterator[Message]:
    return _element_messages(MessageType.DELETE_ELEMENTS, family, table, name, encoded(dict.fromkeys(keys)))


def flush_elements(family: int, table: str, name: str) -> Message:
    return Message(MessageType.DELETE_ELEMENTS, family, text(1, table) + text(2, name))


def message_bytes(message: Message, sequence: int, flags: int = 0) -> bytes:
    kind = SUBSYSTEM << 8 | message.kind
    flags |= REQUEST | message.flags
    length = 20 + len(message.body)
    return struct.pack("=IHHIIBBH", length, kind, flags, sequence, 0, message.family, 0, 0) + message.body


def batch_bytes(messages: Sequence[Message], first_sequence: int) -> bytes:
    """One transaction. The n-th message has the n-th sequence number after the first, by which errors name it."""
    begin = _bracket(BATCH_BEGIN, first_sequence)
    end = _bracket(BATCH_END, first_sequence + len(messages) + 1)
    inner = (message_bytes(message, first_sequence + 1 + index) for index, message in enumerate(messages))
    return b"".join((begin, *inner, end))


def _bracket(kind: int, sequence: int) -> bytes:
    return struct.pack("=IHHIIBB", 20, kind, REQUEST, sequence, 0, 0, 0) + struct.pack(">H", SUBSYSTEM)


class ReceivedMessage(NamedTuple):
    """A message of the kernel; `payload` begins after the netlink header."""

    kind: int
    sequence: int
    port: int
    payload: memoryview


def received(datagram: bytes) -> Iterator[ReceivedMessage]:
    offset = 0
    whole = memoryview(datagram)
    while offset + 16 <= len(datagram):
        length, kind, _flags, sequence, port = struct.unpack_from("=IHHII", datagram, offset)
        yield ReceivedMessage(kind, sequence, port, whole[offset + 16 : offset + length])
        offset += (length + 3) & ~3


def attributes(payload: memoryview) -> Iterator[tuple[int, memoryview]]:
    offset = 0
    while offset + 4 <= len(payload):
        length, kind = struct.unpack_from("=HH", payload, offset)
        if length < 4:
            return
        yield kind & 0x3FFF, payload[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def text_of(payload: memoryview) -> str:
    return bytes(payload).rstrip(b"\0").decode(errors="replace")
