"""Netlink encoding: fast element encoding equals the plain one, lists fit attributes, replies are decoded."""

from __future__ import annotations

import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.proxy.conntrack import ConntrackFlow, read_flow, stale
from zonewise.proxy.decide.targets import EndpointTarget
from zonewise.proxy.wire import netlink
from zonewise.proxy.wire.family import IPV4
from zonewise.proxy.wire.netlink import (
    Message,
    MessageType,
    attribute,
    error_code,
    message_bytes,
    nested,
    received,
    text,
)

WORDS = st.integers(1, 10).flatmap(lambda words: st.binary(min_size=4 * words, max_size=4 * words))


@given(WORDS, st.none() | WORDS)
def test_fast_element_encoding_equals_nested_attributes(key: bytes, data: bytes | None) -> None:
    plain = nested(1, attribute(1, key)) + (nested(2, attribute(1, data)) if data else b"")
    assert netlink.encoded({key: data}) == [nested(1, plain)]


def test_many_elements_are_split_over_messages() -> None:
    elements = {struct.pack(">IIII", n, 0, 0, 0): struct.pack(">II", n, 0) for n in range(5000)}
    messages = list(netlink.add_elements(2, "table", "set", elements))
    assert len(messages) > 1
    assert all(len(message.body) < 1 << 16 for message in messages)
    lists = [dict(netlink.attributes(memoryview(message.body)))[3] for message in messages]
    assert sum(len(list(netlink.attributes(listed))) for listed in lists) == 5000


def test_batch_has_begin_end_and_sequence_numbers() -> None:
    batch = netlink.batch_bytes([netlink.Message(MessageType.NEW_TABLE, 2, b"")] * 2, 7)
    messages = list(netlink.received(batch))
    assert [(message.kind, message.sequence) for message in messages] == [(16, 7), (2560, 8), (2560, 9), (17, 10)]


def _flow(reply: str, reply_port: int, zone: bool = False) -> memoryview:
    def tuple_of(source: str, port: int, destination: str, to: int) -> bytes:
        addresses = nested(1, attribute(1, IPV4.pack(source)), attribute(2, IPV4.pack(destination)))
        ports = attribute(2, struct.pack(">H", port)) + attribute(3, struct.pack(">H", to))
        return addresses + nested(2, attribute(1, b"\x11"), ports)

    original = nested(1, tuple_of("10.1.0.1", 4000, "10.96.0.1", 53))
    answer = nested(2, tuple_of(reply, reply_port, "10.1.0.1", 4000))
    counters = nested(9, attribute(2, struct.pack(">Q", 60))) + nested(10, attribute(2, struct.pack(">Q", 40)))
    return memoryview(b"\x02\x00\x00\x00" + original + answer + counters + (attribute(18, b"\0\1") if zone else b""))


@pytest.mark.parametrize("zone", [False, True])
def test_flow_is_decoded(zone: bool) -> None:
    flow = read_flow(_flow("10.2.0.2", 5353, zone))
    assert flow is not None
    assert (flow.destination, flow.port, flow.answered_by, flow.answered_from) == (
        IPV4.pack("10.96.0.1"),
        53,
        IPV4.pack("10.2.0.2"),
        5353,
    )
    assert (flow.source, flow.carried) == (IPV4.pack("10.1.0.1"), 100)
    assert len(flow.identity) == (60 if zone else 52)


@pytest.mark.parametrize(
    ("reply", "allowed", "expected"),
    [
        pytest.param("10.2.0.2", {EndpointTarget("10.2.0.2", 5353)}, False, id="target still serves"),
        pytest.param("10.2.0.2", {EndpointTarget("10.2.0.3", 5353)}, True, id="target deleted"),
        pytest.param("10.96.0.1", {EndpointTarget("10.2.0.3", 5353)}, True, id="flow older than any endpoint"),
    ],
)
def test_stale_flows(reply: str, allowed: set[EndpointTarget], expected: bool) -> None:
    flow = read_flow(_flow(reply, 5353))
    assert isinstance(flow, ConntrackFlow)
    assert stale(flow, {(IPV4.pack("10.96.0.1"), 53): frozenset(allowed)}, IPV4) is expected
    assert not stale(flow, {}, IPV4)


@pytest.mark.parametrize("length", [0, 4, 15])
def test_message_shorter_than_its_header_ends_the_datagram(length: int) -> None:
    good = message_bytes(Message(3, 2, text(1, "zonewise")), 7)
    assert [message.sequence for message in received(good + struct.pack("=IHHII", length, 0, 0, 8, 0))] == [7]


def test_error_without_a_code_is_an_error() -> None:
    assert error_code(memoryview(struct.pack("=i", -2))) == 2
    assert error_code(memoryview(struct.pack("=i", 0))) == 0
    assert error_code(memoryview(b"\0")) == errno.EBADMSG
