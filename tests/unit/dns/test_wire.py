"""Query packets: replies, size limits, and malformed or hostile input."""

from __future__ import annotations

import struct
from typing import Any

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support.dns import packets
from support.dns.cluster import FakeCluster, answer_texts, endpoint, headless, service, slice_of
from zonewise.dns.decide.handler import MAX_MESSAGE_BYTES, OUR_UDP_BYTES, ForwardQuery, QuerySender, respond
from zonewise.dns.wire import names
from zonewise.dns.wire.message import Query, QueryRefusal, Rcode, read

MANY = [f"10.0.{z}1.{n}" for z in (1, 2, 3) for n in range(1, 61)]
HEAD = struct.Struct(">HHHHHH")


def make() -> FakeCluster:
    cluster = FakeCluster()
    cluster.put(headless("many"), slice_of("many", [endpoint(address) for address in MANY]))
    soft = {"zonewise.dev/topology-keys": '["topology.kubernetes.io/zone"]'}
    near = [endpoint("10.0.11.1", "zone-a-1"), endpoint("10.0.21.1", "zone-b-1")]
    cluster.put(headless("near", annotations=soft), slice_of("near", near))
    cluster.put(service("web", clusterIPs=["10.96.0.1"], ports=[{"name": "http", "port": 80}]))
    cluster.put(service("away", type="ExternalName", externalName="example.com"))
    return cluster


CLUSTER = make()
QUERY = dns.message.make_query("web.shop.svc.cluster.local.", "A", id=7).to_wire()


def test_reply_keeps_the_clients_spelling() -> None:
    query = dns.message.make_query("WeB.sHop.SVC.clusTER.local.", "A").to_wire()
    for reply in (CLUSTER.fast(query, QuerySender()), respond(CLUSTER.table, query, QuerySender(), MAX_MESSAGE_BYTES)):
        assert isinstance(reply, bytes)
        assert query[12:] in reply
        assert answer_texts(dns.message.from_wire(reply)) == ["A 10.96.0.1"]


SIZES = [("no EDNS", None, 512), ("too small", 100, 512), ("medium", 700, 700), ("more than we send", 4096, 1232)]


@pytest.mark.parametrize(("payload", "largest"), [case[1:] for case in SIZES], ids=[case[0] for case in SIZES])
@pytest.mark.parametrize(("kind", "name"), [("A", "many"), ("SRV", "many"), ("SRV", "_http._tcp.many")])
def test_udp_replies_fit_and_are_marked_truncated(kind: str, name: str, payload: int | None, largest: int) -> None:
    edns: dict[str, Any] = {} if payload is None else {"use_edns": 0, "payload": payload}
    query = dns.message.make_query(f"{name}.shop.svc.cluster.local.", kind, **edns).to_wire()
    for packet in (CLUSTER.fast(query, QuerySender()), respond(CLUSTER.table, query, QuerySender(), OUR_UDP_BYTES)):
        assert isinstance(packet, bytes)
        assert len(packet) <= largest
        reply = dns.message.from_wire(packet)
        assert reply.flags & dns.flags.TC
        assert (
            kind == "SRV"
            or len(answer_texts(reply)) == (largest - len(query) - (16 if payload else 0)) // 16
            or answer_texts(reply)
        )
    whole = dns.message.from_wire(bytes(respond(CLUSTER.table, query, QuerySender(), MAX_MESSAGE_BYTES)))  # type: ignore[arg-type]
    assert not whole.flags & dns.flags.TC
    assert len(answer_texts(whole)) == len(MANY)


def test_records_rotate_so_that_each_comes_first() -> None:
    cluster = FakeCluster().put(headless("few"), slice_of("few", [endpoint(address) for address in MANY[:5]]))
    query = dns.message.make_query("few.shop.svc.cluster.local.", "A").to_wire()
    firsts = {dns.message.from_wire(cluster.fast(query, QuerySender()) or b"").answer[0][0].to_text() for _ in range(5)}
    assert firsts == set(MANY[:5])
    rotated = [respond(cluster.table, query, QuerySender(), MAX_MESSAGE_BYTES, turn) for turn in range(5)]
    assert len({bytes(reply) for reply in rotated if isinstance(reply, bytes)}) == 5


REFUSED = [
    ("a reply", QUERY[:2] + b"\x81" + QUERY[3:], None),
    ("too short", QUERY[:11], None),
    ("empty", b"", None),
    ("an update", QUERY[:2] + b"\x29\0" + QUERY[4:], Rcode.NOTIMP),
    ("no question", QUERY[:2] + HEAD.pack(0, 0, 0, 0, 0, 0)[:10], Rcode.FORMERR),
    ("two questions", QUERY[:4] + b"\0\2" + QUERY[6:], Rcode.FORMERR),
    ("an answer in a query", QUERY[:6] + b"\0\1" + QUERY[8:], Rcode.FORMERR),
    ("an authority in a query", QUERY[:8] + b"\0\1" + QUERY[10:], Rcode.FORMERR),
    ("a missing additional record", QUERY[:10] + b"\0\1" + QUERY[12:], Rcode.FORMERR),
    ("truncated name", QUERY[:20], Rcode.FORMERR),
    ("truncated type", QUERY[:-3], Rcode.FORMERR),
    ("trailing bytes", QUERY + b"x", Rcode.FORMERR),
    ("a pointer to itself", QUERY[:12] + b"\xc0\x0c\0\1\0\1", Rcode.FORMERR),
    ("a label of 64", QUERY[:12] + b"\x40" + b"x" * 64 + b"\0\0\1\0\1", Rcode.FORMERR),
    ("a name of 256", QUERY[:12] + b"\x3fxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx" * 4 + b"\0\0\1\0\1", Rcode.FORMERR),
    ("EDNS version 1", QUERY[:10] + b"\0\1" + QUERY[12:] + b"\0\0\x29\x10\0\0\1\0\0\0\0", Rcode.BADVERS),
    ("EDNS twice", QUERY[:10] + b"\0\2" + QUERY[12:] + b"\0\0\x29\x10\0\0\0\0\0\0\0" * 2, Rcode.FORMERR),
    ("EDNS of another owner", QUERY[:10] + b"\0\1" + QUERY[12:] + b"\1x\0\0\x29\x10\0\0\0\0\0\0\0", Rcode.FORMERR),
    ("EDNS with half an option", QUERY[:10] + b"\0\1" + QUERY[12:] + b"\0\0\x29\x10\0\0\0\0\0\0\4\0\x08\0\x08", Rcode.FORMERR),
    ("a subnet with bits behind its prefix", QUERY[:10] + b"\0\1" + QUERY[12:] + b"\0\0\x29\x10\0\0\0\0\0\0\x09\0\x08\0\5\0\1\4\0\xff", Rcode.FORMERR),
    ("another class", QUERY[:-1] + b"\3", Rcode.REFUSED),
    ("a zone transfer", QUERY[:-4] + b"\0\xfc\0\1", Rcode.REFUSED),
    ("a transfer of an unknown name", QUERY[:13] + b"X" + QUERY[14:-4] + b"\0\xfb\0\1", Rcode.REFUSED),
]  # fmt: skip


@pytest.mark.parametrize(("packet", "rcode"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_invalid_queries_are_refused_or_ignored(packet: bytes, rcode: Rcode | None) -> None:
    response = respond(CLUSTER.table, packet, QuerySender(), OUR_UDP_BYTES)
    assert response == CLUSTER.fast(packet, QuerySender())
    assert isinstance(response, bytes)
    if rcode is None:
        assert response == b""
    else:
        reply = dns.message.from_wire(response)
        assert reply.rcode() == rcode
        assert reply.id == 7
        assert len(response) <= len(packet) + 11


def test_domain_bytes_inside_a_label_are_not_our_domain() -> None:
    inside = b"\x0fx\x07cluster\x05local"
    packet = QUERY[:12] + inside + b"\0\0\1\0\1"
    assert isinstance(read(packet), Query)
    assert CLUSTER.fast(packet, QuerySender()) is None
    assert isinstance(respond(CLUSTER.table, packet, QuerySender(), MAX_MESSAGE_BYTES), ForwardQuery)
    as_long = QUERY[:12] + b"\1h\1s\3ser\5local\0\0\1\0\1"
    assert CLUSTER.fast(as_long, QuerySender()) is None, "as long as our domain, with the same end"
    with_zero = QUERY[:12] + b"\x03a\0b" + names.to_wire("cluster.local") + b"\0\1\0\1"
    reply = dns.message.from_wire(CLUSTER.fast(with_zero, QuerySender()) or b"")
    assert reply.rcode() == dns.rcode.NXDOMAIN
    assert reply.question[0].name.labels[0] == b"a\0b"


def test_partial_table_hands_over_reverse_zones() -> None:
    cluster = FakeCluster().put(headless("db"), slice_of("db", [endpoint("10.0.11.1", "zone-a-1")]))
    assert not cluster.is_forwarded("1.11.0.10.in-addr.arpa.", "PTR")
    partial = FakeCluster()
    partial.table.partial = True
    partial.apply(cluster.zone.snapshot())
    assert partial.is_forwarded("1.11.0.10.in-addr.arpa.", "PTR")
    assert answer_texts(partial.ask("db.shop.svc.cluster.local.")) == ["A 10.0.11.1"]
    assert answer_texts(partial.ask("zone-a.pin._zone.db.shop.svc.cluster.local.")) == ["A 10.0.11.1"]


def test_unknown_edns_options_are_ignored() -> None:
    cookie = dns.edns.GenericOption(10, b"12345678")
    query = dns.message.make_query("web.shop.svc.cluster.local.", "A", use_edns=0, options=[cookie], want_dnssec=True)
    reply = dns.message.from_wire(CLUSTER.fast(query.to_wire(), QuerySender()) or b"")
    assert answer_texts(reply) == ["A 10.96.0.1"]
    assert reply.ednsflags & dns.flags.DO


NAMES = st.sampled_from(
    ["web.shop.svc", "WEB.shop.svc", "near.shop.svc", "many.shop.svc", "_http._tcp.web.shop.svc", "away.shop.svc",
     "none.shop.svc", "shop.svc", "svc", "", "zone-a.pin._zone.near.shop.svc", "x.pin._zone.near.shop.svc", "dns-version"]
)  # fmt: skip


@given(
    name=NAMES,
    kind=st.sampled_from(["A", "AAAA", "SRV", "TXT", "NS", "SOA", "MX", "PTR", "ANY", "HTTPS", "CNAME"]),
    edns=st.sampled_from([None, 0, 512, 600, 1232, 65535]),
    flags=st.sampled_from([0, dns.flags.RD, dns.flags.RD | dns.flags.AD, dns.flags.CD]),
    node=st.sampled_from(["", "zone-a-1", "zone-b-2", "zone-c-1", "gone"]),
    dnssec=st.booleans(),
)
def test_fast_path_and_handler_send_the_same_reply(
    name: str, kind: str, edns: int | None, flags: int, node: str, dnssec: bool
) -> None:
    options: dict[str, Any] = {} if edns is None else {"use_edns": 0, "payload": edns, "want_dnssec": dnssec}
    query = dns.message.make_query(f"{name}.cluster.local.".lstrip("."), kind, **options)
    query.flags = flags  # type: ignore[assignment]
    slow = respond(CLUSTER.table, query.to_wire(), QuerySender(node), OUR_UDP_BYTES)
    fast = CLUSTER.fast(query.to_wire(), QuerySender(node))
    if fast is None:
        assert isinstance(slow, ForwardQuery)
        return
    assert isinstance(slow, bytes)
    assert len(fast) == len(slow)
    assert sorted(fast) == sorted(slow) or "many" in name, "equal except for the order of records"
    reply = dns.message.from_wire(fast)
    assert query.is_response(reply)
    assert (reply.edns == 0) == (edns is not None)


@given(st.binary(max_size=700))
@example(QUERY)
def test_random_packets_raise_nothing(packet: bytes) -> None:
    _check(packet)


@given(st.lists(st.tuples(st.integers(0, 80), st.integers(0, 255)), max_size=4), st.integers(0, 60), st.booleans())
def test_damaged_queries_raise_nothing(damage: list[tuple[int, int]], cut: int, edns: bool) -> None:
    query = dns.message.make_query("web.shop.svc.cluster.local.", "A", **({"use_edns": 0} if edns else {}))
    packet = bytearray(query.to_wire())
    for at, value in damage:
        packet[at % len(packet)] = value
    _check(bytes(packet[: len(packet) - (cut if cut < 40 else 0)]))


def _check(packet: bytes) -> None:
    fast = CLUSTER.fast(packet, QuerySender())
    slow = respond(CLUSTER.table, packet, QuerySender(), OUR_UDP_BYTES)
    assert (fast is None) == isinstance(slow, ForwardQuery)
    if fast:
        assert fast[:2] == packet[:2]
        assert fast[2] & 0x80, "only replies are sent"
        assert len(fast) <= OUR_UDP_BYTES
        assert isinstance(slow, bytes)
        assert len(slow) == len(fast)
    if len(packet) < 12 or packet[2] & 0x80:
        assert fast == b""


def test_kept_fuzz_packets_hold_the_invariants() -> None:
    kept = [*packets.kept(), *packets.seeds()]
    assert len(kept) > 200
    for packet in kept:
        for second in (b"\0", b"\7"):
            packets.check(packet[:1] + second + packet[2:])


@given(st.binary(max_size=100))
def test_parsed_question_is_part_of_the_packet(packet: bytes) -> None:
    match read(packet):
        case Query() as query:
            assert packet[12 : 12 + len(query.question)] == query.question
            assert names.to_wire(names.to_text(query.name)) or query.name
        case QueryRefusal() as refusal:
            assert refusal.id == packet[:2]
        case None:
            assert len(packet) < 12 or packet[2] & 0x80
