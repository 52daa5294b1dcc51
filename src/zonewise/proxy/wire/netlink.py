"""Netlink encoding of nf_tables messages: attributes, messages, set elements, batches. Pure; `nft_socket` sends them.

Written by hand: set elements change by the hundred thousand, and a general library spends longer on one than the kernel
does. A batch is one transaction: the kernel applies all of it or nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from errno import EBADMSG
from functools import lru_cache
from sys import byteorder
from typing import Final, NamedTuple

SUBSYSTEM: Final = 10
BATCH_BEGIN: Final = 0x10
BATCH_END: Final = 0x11
REQUEST, CREATE, APPEND, DUMP = 0x1, 0x400, 0x800, 0x300
_NESTED: Final = 0x8000
_MAX_LIST_BYTES: Final = 65000
"""The length field of an attribute has 16 bits."""


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
    """The verdict of a map element or a rule; `code` is the kernel's number."""

    code: int
    chain: str = ""


DROP: Final = NftVerdict(0)
RETURN: Final = NftVerdict(-5)


def goto(chain: str) -> NftVerdict:
    return NftVerdict(-4, chain)


Value = bytes | NftVerdict | None
"""The value of an element: data in a map, a verdict in a verdict map, None in a plain set."""
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
def verdict(nft_verdict: NftVerdict) -> bytes:
    """A verdict as data, without the surrounding attribute."""
    chain = text(2, nft_verdict.chain) if nft_verdict.chain else b""
    return nested(2, number(1, nft_verdict.code), chain)


@lru_cache(maxsize=64)
def _frame(key_bytes: int, data_bytes: int) -> tuple[bytes, bytes]:
    """The bytes before the key of an element, and those between key and data."""
    rest = struct.pack("=HHHH", 8 + data_bytes, 2 | _NESTED, 4 + data_bytes, 1) if data_bytes else b""
    length = 12 + key_bytes + len(rest) + data_bytes
    head = struct.pack("=HHHHHH", length, 1 | _NESTED, 8 + key_bytes, 1 | _NESTED, 4 + key_bytes, 1)
    return head, rest


def encoded(elements: Elements) -> list[bytes]:
    """The elements of one set. All have one type and size, a multiple of four bytes as concatenations always are."""
    key, value = next(iter(elements.items()), (b"", None))
    match value:
        case None:
            head, _ = _frame(len(key), 0)
            return [head + key for key in elements]
        case NftVerdict():
            frames = {target: _verdict_frame(len(key), target) for target in set(elements.values())}  # type: ignore[arg-type]
            return [frames[target][0] + key + frames[target][1] for key, target in elements.items()]
        case bytes():
            head, between = _frame(len(key), len(value))
            return [head + key + between + data for key, data in elements.items()]  # type: ignore[operator]


def _verdict_frame(key_bytes: int, nft_verdict: NftVerdict) -> tuple[bytes, bytes]:
    """The bytes before and after the key of an element with a verdict."""
    data = nested(2, verdict(nft_verdict))
    element = nested(1, nested(1, attribute(1, bytes(key_bytes))), data)
    return element[: -len(data) - key_bytes], data


def interval_element(key: bytes, *, end: bool) -> bytes:
    return nested(1, nested(1, attribute(1, key)), *([number(3, 1)] if end else []))


def _element_messages(
    kind: MessageType, family: int, table: str, name: str, encoded_elements: list[bytes]
) -> Iterator[Message]:
    """Split into messages by the maximum length of an attribute."""
    head = text(1, table) + text(2, name)
    flags = CREATE if kind is MessageType.NEW_ELEMENTS else 0
    per_message = _MAX_LIST_BYTES // max(map(len, encoded_elements), default=1)
    for first in range(0, len(encoded_elements), per_message):
        yield Message(kind, family, head + nested(3, *encoded_elements[first : first + per_message]), flags)


def add_elements(family: int, table: str, name: str, elements: Elements) -> Iterator[Message]:
    return _element_messages(MessageType.NEW_ELEMENTS, family, table, name, encoded(elements))


def add_intervals(family: int, table: str, name: str, bounds: Iterable[tuple[bytes, bool]]) -> Iterator[Message]:
    """`bounds`: the start of each range, and its exclusive end."""
    encoded_elements = [interval_element(key, end=end) for key, end in bounds]
    return _element_messages(MessageType.NEW_ELEMENTS, family, table, name, encoded_elements)


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
    """One transaction. The n-th message has the n-th sequence number after the first; errors refer to it."""
    begin = _bracket(BATCH_BEGIN, first_sequence)
    end = _bracket(BATCH_END, first_sequence + len(messages) + 1)
    inner = (message_bytes(message, first_sequence + 1 + index) for index, message in enumerate(messages))
    return b"".join((begin, *inner, end))


def _bracket(kind: int, sequence: int) -> bytes:
    return struct.pack("=IHHIIBB", 20, kind, REQUEST, sequence, 0, 0, 0) + struct.pack(">H", SUBSYSTEM)


class ReceivedMessage(NamedTuple):
    """A message from the kernel; `payload` begins after the netlink header."""

    kind: int
    sequence: int
    port: int
    payload: memoryview


def received(datagram: bytes) -> Iterator[ReceivedMessage]:
    offset = 0
    view = memoryview(datagram)
    while offset + 16 <= len(datagram):
        length, kind, _flags, sequence, port = struct.unpack_from("=IHHII", datagram, offset)
        if length < 16:  # less than its own header: there is no way to the next one
            return
        yield ReceivedMessage(kind, sequence, port, view[offset + 16 : offset + length])
        offset += (length + 3) & ~3


def attributes(payload: memoryview) -> Iterator[tuple[int, memoryview]]:
    offset = 0
    while offset + 4 <= len(payload):
        length, kind = struct.unpack_from("=HH", payload, offset)
        if length < 4:
            return
        yield kind & 0x3FFF, payload[offset + 4 : offset + length]
        offset += (length + 3) & ~3


def error_code(payload: memoryview) -> int:
    """Of an error message; 0 for an acknowledgement."""
    return -int.from_bytes(payload[:4], byteorder, signed=True) if len(payload) >= 4 else EBADMSG


def text_of(payload: memoryview) -> str:
    return bytes(payload).rstrip(b"\0").decode(errors="replace")
