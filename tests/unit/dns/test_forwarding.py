"""Forwarding: parsing, caching and rewriting of upstream responses, and the order of upstreams."""

from __future__ import annotations

from dataclasses import replace

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.dns.cluster import answer_texts
from zonewise.dns.decide.forward_cache import MAX_BYTES, ForwardCache, ForwardQuestion
from zonewise.dns.decide.upstreams import Upstream, Upstreams, read_resolv_conf, read_upstream
from zonewise.dns.wire.message import Query, read
from zonewise.dns.wire.names import to_wire
from zonewise.dns.wire.upstream_message import UpstreamResponse, client_reply, read_response, uncompressed_answers
from zonewise.errors import UsageError

QUERY = dns.message.make_query("WWW.example.com.", "A", use_edns=0, payload=1232, id=7)
QUESTION = to_wire("www.example.com") + b"\0\1\0\1"
SOA = "ns.example.com. hostmaster.example.com. 1 7200 900 1209600 60"


def reply(*answers: tuple[str, int, str, str], rcode: int = 0, soa_ttl: int | None = None) -> dns.message.Message:
    made = dns.message.make_response(dns.message.make_query("www.example.com.", "A", use_edns=0, id=7))
    made.set_rcode(dns.rcode.Rcode(rcode))
    made.answer = [dns.rrset.from_text(name, ttl, "IN", kind, data) for name, ttl, kind, data in answers]
    if soa_ttl is not None:
        made.authority = [dns.rrset.from_text("example.com.", soa_ttl, "IN", "SOA", SOA)]
    return made


def response(made: dns.message.Message) -> UpstreamResponse:
    parsed = read_response(made.to_wire(), b"\0\7", QUESTION)
    assert parsed is not None
    return parsed


CHAIN = (("www.example.com.", 300, "CNAME", "web.example.net."), ("web.example.net.", 90, "A", "192.0.2.1"))

TIMES = [
    ("minimum of the answers", reply(*CHAIN), 90),
    ("denial: minimum of SOA TTL and SOA minimum", reply(rcode=3, soa_ttl=300), 60),
    ("denial with a short SOA TTL", reply(rcode=3, soa_ttl=20), 20),
    ("no data", reply(soa_ttl=300), 60),
    ("denial without SOA", reply(rcode=3), 0),
    ("failure", reply(*CHAIN, rcode=2), 0),
]


@pytest.mark.parametrize(("made", "ttl"), [case[1:] for case in TIMES], ids=[case[0] for case in TIMES])
def test_cache_time_of_a_response(made: dns.message.Message, ttl: int) -> None:
    assert response(made).ttl == ttl


def test_client_reply_is_aged_and_keeps_the_clients_spelling() -> None:
    query = read(QUERY.to_wire())
    assert isinstance(query, Query)
    packet = client_reply(response(reply(*CHAIN)), query, 1232, 40)
    aged = dns.message.from_wire(packet)
    assert b"\3WWW\7example" in packet
    assert QUERY.is_response(aged)
    assert [(rrset.ttl, str(rrset[0])) for rrset in aged.answer] == [(260, "web.example.net."), (50, "192.0.2.1")]
    assert aged.flags & dns.flags.RA
    cut = dns.message.from_wire(client_reply(response(reply(*CHAIN)), query, 60, 0))
    assert cut.flags & dns.flags.TC
    assert not cut.answer


def test_answers_are_copied_to_another_message_uncompressed() -> None:
    count, records = uncompressed_answers(response(reply(*CHAIN)), 10)
    head = b"\0\0\x80\0" + b"\0\0\0\2" + bytes(4)
    assert count == 2
    assert answer_texts(dns.message.from_wire(head + records)) == ["A 192.0.2.1", "CNAME web.example.net."]


FOREIGN = [
    ("another id", b"\0\x08", QUESTION, reply(*CHAIN).to_wire()),
    ("another question", b"\0\7", to_wire("www.example.org") + b"\0\1\0\1", reply(*CHAIN).to_wire()),
    ("a query", b"\0\7", QUESTION, QUERY.to_wire()),
    ("truncated", b"\0\7", QUESTION, reply(*CHAIN).to_wire()[:60]),
    ("empty", b"\0\7", QUESTION, b""),
]


@pytest.mark.parametrize(
    ("id_", "question", "packet"), [case[1:] for case in FOREIGN], ids=[case[0] for case in FOREIGN]
)
def test_responses_to_other_questions_are_ignored(id_: bytes, question: bytes, packet: bytes) -> None:
    assert read_response(packet, id_, question) is None


@given(st.lists(st.tuples(st.integers(12, 150), st.integers(0, 255)), max_size=5), st.integers(0, 40))
def test_damaged_responses_raise_nothing(damage: list[tuple[int, int]], cut: int) -> None:
    packet = bytearray(reply(*CHAIN, soa_ttl=30).to_wire())
    for at, value in damage:
        packet[at % len(packet)] = value
    parsed = read_response(bytes(packet[: len(packet) - cut]), b"\0\7", QUESTION)
    if parsed:
        query = read(QUERY.to_wire())
        assert isinstance(query, Query)
        assert len(client_reply(parsed, query, 1232, 5)) <= 1232
        uncompressed_answers(parsed, 5)


KEY = ForwardQuestion(QUESTION, dnssec_ok=False)


def test_cache_entries_expire_and_are_served_stale() -> None:
    cache = ForwardCache(max_seconds=60, stale_seconds=100)
    answer = response(reply(*CHAIN))
    cache.put(KEY, answer, 1000.0)
    assert cache.get(KEY, 1059.9) == (answer, 59)
    assert cache.get(KEY, 1060.0) is None, "limited by max_seconds, whatever its TTL"
    assert cache.stale(KEY, 1100.0) == (answer, 60), "its TTL becomes 30 s"
    assert cache.stale(KEY, 1160.0) is None
    assert cache.get(KEY._replace(dnssec_ok=True), 1000.0) is None
    cache.put(KEY, response(reply(*CHAIN, rcode=2)), 1010.0)
    assert cache.get(KEY, 1011.0) == (answer, 11), "a failure replaces nothing"


def test_cache_evicts_the_least_recently_used_entry() -> None:
    cache = ForwardCache(60, 60, max_entries=2)
    one, two, three = (KEY._replace(question=bytes((n,))) for n in range(3))
    answer = response(reply(*CHAIN))
    for question in (one, two):
        cache.put(question, answer, 0.0)
    cache.get(one, 1.0)
    cache.put(three, answer, 2.0)
    assert [cache.get(question, 3.0) is not None for question in (one, two, three)] == [True, False, True]


def test_cache_size_in_bytes_is_limited() -> None:
    cache = ForwardCache(60, 60)
    large = replace(response(reply(*CHAIN)), body=bytes(MAX_BYTES // 4))
    for number in (0, 1, 2, 3, 3, 4, 5):
        cache.put(KEY._replace(question=bytes((number,))), large, 0.0)
    kept = [number for number in range(6) if cache.get(KEY._replace(question=bytes((number,))), 1.0)]
    assert kept == [2, 3, 4, 5], "a replaced entry is counted once"


def test_healthy_upstreams_come_first() -> None:
    a, b, c = (Upstream(f"10.0.0.{n}") for n in (1, 2, 3))
    upstreams = Upstreams((a, b, c))
    assert [upstreams.order(chance)[0] for chance in (0.0, 0.4, 0.9)] == [a, b, c]
    upstreams.failed(a)
    assert not upstreams.unhealthy, "one failure is tolerated"
    upstreams.failed(a)
    assert upstreams.unhealthy == [a]
    assert all(upstreams.order(chance)[-1] == a for chance in (0.0, 0.4, 0.9))
    upstreams.succeeded(a)
    assert not upstreams.unhealthy


def test_upstream_addresses_are_parsed() -> None:
    assert read_upstream("10.0.0.1") == ("10.0.0.1", 53)
    assert str(read_upstream("10.0.0.1:5353")) == "10.0.0.1:5353"
    assert read_upstream("fd00::1") == ("fd00::1", 53)
    assert str(read_upstream("[fd00::1]:5353")) == "[fd00::1]:5353"
    for wrong in ("dns.example", "10.0.0.1:x", "[fd00::1:5353"):
        with pytest.raises(UsageError, match="write an address"):
            read_upstream(wrong)
    assert read_resolv_conf("# x\nnameserver 10.0.0.1\noptions ndots:5\nnameserver fd00::1\n") == (
        "10.0.0.1",
        "fd00::1",
    )
