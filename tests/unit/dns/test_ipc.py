"""Messages between the processes of the DNS server."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from zonewise.dns.server.worker import WorkerSockets
from zonewise.dns.wire import ipc
from zonewise.dns.wire.ipc import (
    DrainWorker,
    Exited,
    Fork,
    FrameDecoder,
    Kill,
    Message,
    Serve,
    Serving,
    Update,
    WorkerConfig,
    WorkerReport,
    WorkerRole,
)
from zonewise.dns.wire.names import to_wire

CONFIG = WorkerConfig(to_wire("cluster.local"), ("10.0.0.1",), ("10.0.0.0/8",), 100, 5, 60, log_queries=True)
REPORT = WorkerReport({"zone-a-1": 7}, {"near": 1}, [0, 3], [("10.0.0.1", b"\xff", b"")], 1, 2, 3)
MESSAGES: list[Message] = [
    Fork("udp-1", WorkerRole.UDP, CONFIG, 2), Kill("tcp"), Exited("tcp", -9), Serve(), DrainWorker(), Serving(), REPORT,
]  # fmt: skip
STREAM: list[Update | Message] = [
    ("services", [(b"\1a\0", b"records"), (b"\1b\0", None)]),
    Serve(),
    ("locations", {b"\x0a\0\0\1": "zone-a-1"}, {16: {48: {1 << 79: "zone-a-1"}}}),
    REPORT,
    ("loaded",),
    DrainWorker(),
]


def test_messages_survive_encoding() -> None:
    assert [ipc.decode_message(ipc.encode_message(message)) for message in MESSAGES] == MESSAGES


@given(st.lists(st.integers(0, 1000), max_size=8))
def test_frames_are_decoded_however_the_stream_is_split(cuts: list[int]) -> None:
    data = b"".join(map(ipc.encode, STREAM))
    bounds = [0, *sorted(cut % len(data) for cut in cuts), len(data)]
    decoder = FrameDecoder()
    parts = (data[begin:end] for begin, end in pairwise(bounds))
    assert [item for part in parts for item in decoder.feed(part)] == STREAM


def test_sockets_keep_their_use_when_passed_as_a_list() -> None:
    sockets = WorkerSockets(feed=3, handover=4, udp=[5, 6], tcp=[7])
    assert WorkerSockets.received(sockets.descriptors, len(sockets.udp)) == sockets
