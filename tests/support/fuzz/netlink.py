"""Datagrams of the kernel: messages, attributes, flows and errors are read to their end, whatever their lengths say."""

from __future__ import annotations

import struct

from zonewise.proxy.conntrack import read_flow
from zonewise.proxy.nft_socket import _is_ours
from zonewise.proxy.wire.netlink import (
    Message,
    attribute,
    attributes,
    batch_bytes,
    error_code,
    message_bytes,
    nested,
    received,
    text,
    text_of,
)

TUPLE = attribute(
    0x8001,
    bytes(8)
    + b"\x0a\0\0\1"
    + bytes(4)
    + b"\x0a\0\0\2"
    + bytes(8)
    + b"\x11"
    + bytes(7)
    + b"\0\x35"
    + bytes(6)
    + b"\0\x35"
    + bytes(2),
)
FLOW = (
    struct.pack("=IHHIIBBH", 20 + 3 * len(TUPLE), 1 << 8, 2, 1, 1, 2, 0, 0)
    + TUPLE
    + TUPLE.replace(b"\1\x80", b"\2\x80", 1)
    + TUPLE.replace(b"\1\x80", b"\x09\x80", 1)
)
SEEDS = [
    message_bytes(Message(3, 2, text(1, "zonewise") + nested(3, attribute(1, b"key"))), 7),
    batch_bytes([Message(0, 2, text(1, "zonewise")), Message(12, 10, text(1, "zonewise"))], 1),
    struct.pack("=IHHIIi", 20, 2, 0, 7, 1, -2),
    FLOW,
    FLOW + FLOW,
]  # fmt: skip


def check(data: bytes) -> None:
    for number, message in enumerate(received(data)):
        assert number < len(data)
        error_code(message.payload)
        _is_ours(message.payload)
        read_flow(message.payload)
        for _, value in attributes(message.payload[4:]):
            text_of(value)
            list(attributes(value))
