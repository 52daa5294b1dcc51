"""Invariants of the DNS server for any packet, and the fuzzing corpus, one packet per line in packets.txt.

`make fuzz` generates packets by the million; the unit tests go through the corpus.
"""

from __future__ import annotations

from pathlib import Path

from support.dns.cluster import FakeCluster, endpoint, headless, service, slice_of
from zonewise.dns.decide.handler import MAX_MESSAGE_BYTES, OUR_UDP_BYTES, ForwardQuery, QuerySender, respond
from zonewise.dns.decide.pod_records import PodNameRecords
from zonewise.dns.wire.message import Query, read
from zonewise.dns.wire.names import to_wire
from zonewise.dns.wire.upstream_message import client_reply, read_response, uncompressed_answers

KEPT = Path(__file__).with_suffix(".txt")
PORT = ("p", "TCP", 1)
SENDERS = (QuerySender(), QuerySender("zone-a-1"), QuerySender("zone-c-2"), QuerySender("", forwards=True))
"""The first byte of a packet chooses its sender; the second, whether it is also tried over TCP or as a response."""


def make() -> FakeCluster:
    """Every kind of name, with more endpoints than fit into a packet, and a rule that leaves some nodes without data."""
    cluster = FakeCluster(pods=PodNameRecords.INSECURE)
    many = [endpoint(f"10.0.1{n % 2}.{n}", f"zone-{'ab'[n % 2]}-1") for n in range(1, 80)]
    rule = {"zonewise.dev/topology-keys": '["topology.kubernetes.io/zone"]'}
    cluster.put(headless("h"), slice_of("h", many, [PORT]))
    cluster.put(headless("r", annotations=rule), slice_of("r", many[:9], [PORT]))
    cluster.put(service("c", clusterIPs=["10.96.0.1", "fd00::1"], ports=[{"name": "p", "port": 1}]))
    cluster.put(service("e", type="ExternalName", externalName="x.y"))
    cluster.put(service("i", type="ExternalName", externalName="r.shop.svc.cluster.local"))
    return cluster


CLUSTER = make()


def check(packet: bytes) -> None:
    """Nothing raises; only replies are sent, within the transport's limit; fast path and handler agree."""
    sender = SENDERS[packet[0] % len(SENDERS)] if packet else SENDERS[0]
    fast, again = (CLUSTER.fast(packet, sender) for _ in range(2))
    assert fast == again or (fast and again and len(fast) == len(again)), "equal except for the order"
    slow = respond(CLUSTER.table, packet, sender, OUR_UDP_BYTES)
    assert (fast is None) == isinstance(slow, ForwardQuery)
    if fast:
        assert fast[:2] == packet[:2]
        assert fast[2] & 0x80
        assert isinstance(slow, bytes)
        assert len(slow) == len(fast) <= OUR_UDP_BYTES
    match packet[1:2]:
        case b"\0":
            over_tcp = respond(CLUSTER.table, packet, sender, MAX_MESSAGE_BYTES)
            assert isinstance(over_tcp, ForwardQuery) or len(over_tcp) <= MAX_MESSAGE_BYTES
        case b"\7":
            _check_as_response(packet)


def _check_as_response(packet: bytes) -> None:
    """The same bytes as a response of an upstream."""
    query = read(packet)
    question = query.question if isinstance(query, Query) else packet[12:30]
    response = read_response(packet[:2] + b"\x80" + packet[3:], packet[:2], question)
    if response:
        uncompressed_answers(response, 1)
        if isinstance(query, Query):
            assert len(client_reply(response, query, 512, 1)) <= max(512, len(packet) + 11)


def seeds() -> list[bytes]:
    """Queries of every kind, without and with EDNS."""
    head, opt = b"\0\7\1\0\0\1\0\0\0\0\0", b"\0\0\x29\4\xd0\0\0\0\0\0\0"
    subnet = b"\0\0\x29\4\xd0\0\0\0\0\0\x0b\0\x08\0\x07\0\1\x18\0\x0a\0\x0b"
    names = ("h", "r", "c", "e", "i", "n", "_p._tcp.h", "zone-a.pin._zone.h")
    wires = [to_wire(f"{name}.shop.svc.cluster.local") for name in names]
    wires += [to_wire(name) for name in ("cluster.local", "10-0-0-7.shop.pod.cluster.local", "1.11.0.10.in-addr.arpa")]
    plain = [head + b"\0" + wire + bytes((0, kind, 0, 1)) for wire in wires for kind in (1, 28, 33, 12)]
    return [*plain, *(packet[:11] + b"\1" + packet[12:] + extra for packet in plain for extra in (opt, subnet))]


def kept() -> list[bytes]:
    return [bytes.fromhex(line) for line in KEPT.read_text().splitlines()]
