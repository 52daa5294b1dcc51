"""Forwarding: parsing, caching and rewriting of upstream responses, and the order of upstreams."""

from __future__ import annotations

from dataclasses import replace

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rrset
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.dns.cluster import answer_texts
from zonewise.dns.decide.forward_cache import MAX_BYTES, ForwardCache, ForwardQuestion
from zonewise.dns.decide.upstreams import (
    CASE_CHANGES,
    CASE_PROBE_SECONDS,
    Upstream,
    Upstreams,
    read_resolv_conf,
    read_upstream,
)
from zonewise.dns.wire.message import Query, read
from zonewise.dns.wire.names import to_wire
from zonewise.dns.wire.upstream_message import (
    UpstreamResponse,
    client_reply,
    mix_case,
    read_response,
    uncompressed_answers,
)
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


def poisoned(*sections: tuple[str, str, str, str]) -> dns.message.Message:
    """Records as section, owner, type and data."""
    made = reply()
    for section, owner, kind, data in sections:
        getattr(made, section).append(dns.rrset.from_text(owner, 60, "IN", kind, data))
    return made


WWW = ("answer", "www.example.com.", "CNAME", "web.example.net.")
WEB = ("answer", "web.example.net.", "A", "192.0.2.1")
BAILIWICK = [
    ("a chain", (WWW, WEB), 2),
    ("a chain in the wrong order", (WEB, WWW), 2),
    ("another name among the answers", (WWW, ("answer", "bank.example.", "A", "192.0.2.66"), WEB), 2),
    ("an alias of another name", (("answer", "bank.example.", "CNAME", "web.example.net."), WWW, WEB), 2),
    ("an alias that the chain does not reach", (WWW, ("answer", "web2.example.net.", "CNAME", "x.example."), WEB), 2),
    ("a DNAME above the name", (("answer", "example.com.", "DNAME", "example.net."), WWW, WEB), 3),
    ("a DNAME elsewhere", (("answer", "example.org.", "DNAME", "example.net."), WWW, WEB), 2),
    ("name servers of a zone above", (WWW, WEB, ("authority", "com.", "NS", "bank.example.")), 2),
    ("an address of a name server", (WWW, WEB, ("additional", "bank.example.", "A", "192.0.2.66")), 2),
    ("a SOA of a zone above", (("authority", "com.", "SOA", SOA),), 1),
    ("a SOA of the last alias' zone", (WWW, ("authority", "example.net.", "SOA", SOA)), 2),
    ("a SOA of another zone", (("authority", "example.org.", "SOA", SOA),), 0),
    ("a proof", (("authority", "a.example.com.", "NSEC", "z.example.com. A"),), 1),
]


@pytest.mark.parametrize(("records", "kept"), [case[1:] for case in BAILIWICK], ids=[case[0] for case in BAILIWICK])
def test_only_records_that_were_asked_for_are_kept(records: tuple[tuple[str, str, str, str], ...], kept: int) -> None:
    query = read(QUERY.to_wire())
    assert isinstance(query, Query)
    passed_on = dns.message.from_wire(client_reply(response(poisoned(*records)), query, 1232, 10))
    rrsets = [*passed_on.answer, *passed_on.authority]
    assert len(rrsets) == kept
    assert not passed_on.additional
    assert "66" not in passed_on.to_text()
    assert {rrset.ttl for rrset in rrsets} <= {50}
    assert {(rrset.name, str(rrset[0])) for rrset in rrsets} <= {
        (dns.name.from_text(owner), data) for _, owner, _, data in records
    }


def test_compressed_names_in_data_survive_that_records_before_them_are_dropped() -> None:
    kinds = {"MX": "5 mail.bank.example.", "SRV": "1 2 3 mail.bank.example.", "PTR": "mail.bank.example."}
    for kind, data in kinds.items():
        made = poisoned(("answer", "bank.example.", "A", "192.0.2.66"), ("answer", "www.example.com.", kind, data))
        for count, records in [uncompressed_answers(response(made), 0)]:
            (rrset,) = dns.message.from_wire(b"\0\0\x80\0" + b"\0\0\0\1" + bytes(4) + records).answer
            assert (count, rrset.to_text()) == (1, f"www.example.com. 60 IN {kind} {data}")


@given(st.binary(min_size=len(QUESTION), max_size=len(QUESTION)))
def test_mixed_case_is_the_same_name_and_must_come_back(chance: bytes) -> None:
    asked = mix_case(QUESTION, chance)
    assert asked.lower() == QUESTION
    assert mix_case(b"\1a\0\0\x41\0\1", b"\xff" * 7) == b"\1A\0\0\x41\0\1", "type 65 is no letter"
    for echoed, changed in ((asked, False), (QUESTION, asked != QUESTION)):
        packet = reply(*CHAIN).to_wire()
        parsed = read_response(packet[:12] + echoed + packet[12 + len(echoed) :], b"\0\7", asked)
        assert parsed is not None
        assert parsed.case_changed == changed
        assert parsed.question == QUESTION


def test_client_sees_no_letters_of_ours_in_names_that_point_to_the_question() -> None:
    """A dropped record before it makes the CNAME be copied, and its target ends in the question's name."""
    made = poisoned(
        ("answer", "bank.example.", "A", "192.0.2.66"), ("answer", "www.example.com.", "CNAME", "web.example.com.")
    )
    asked = mix_case(QUESTION, b"\xff" * len(QUESTION))
    packet = made.to_wire()
    parsed = read_response(packet[:12] + asked + packet[12 + len(asked) :], packet[:2], asked)
    assert parsed is not None
    assert b"\7example\3com\0" in uncompressed_answers(parsed, 0)[1]
    assert b"EXAMPLE" not in uncompressed_answers(parsed, 0)[1]


def test_client_sees_no_letters_of_ours_where_an_upstream_does_not_compress_names() -> None:
    asked = mix_case(QUESTION, b"\xff" * len(QUESTION))
    packet = b"\0\7\x80\0\0\1\0\1\0\0\0\0" + asked + asked + b"\0\0\0\x3c\0\4\xc0\0\2\1"
    query = read(QUERY.to_wire())
    parsed = read_response(packet, b"\0\7", asked)
    assert parsed is not None
    assert isinstance(query, Query)
    assert b"EXAMPLE" not in client_reply(parsed, query, 1232, 0)
    assert answer_texts(dns.message.from_wire(client_reply(parsed, query, 1232, 0))) == ["A 192.0.2.1"]


FOLDS = Upstream("192.0.2.1")


def test_case_is_mixed_until_an_upstream_changed_it_several_times_in_a_row() -> None:
    upstreams = Upstreams([FOLDS])
    for _ in range(3 * CASE_CHANGES):
        for _ in range(CASE_CHANGES - 1):
            upstreams.case_changed(FOLDS, 0.0)
        assert upstreams.keeps_case(FOLDS)
        upstreams.case_kept(FOLDS)
    for _ in range(CASE_CHANGES):
        upstreams.case_changed(FOLDS, 0.0)
    assert not upstreams.keeps_case(FOLDS)


def test_upstream_that_changed_the_case_is_probed_from_time_to_time() -> None:
    upstreams = Upstreams([FOLDS, Upstream("192.0.2.2")])
    assert upstreams.case_probes_due(1e9) == []
    for _ in range(CASE_CHANGES):
        upstreams.case_changed(FOLDS, 10.0)
    assert upstreams.case_probes_due(10.0 + CASE_PROBE_SECONDS - 0.1) == []
    assert upstreams.case_probes_due(10.0 + CASE_PROBE_SECONDS) == [FOLDS]
    upstreams.case_probed(FOLDS, 10.0 + CASE_PROBE_SECONDS)
    assert upstreams.case_probes_due(10.0 + CASE_PROBE_SECONDS) == []
    upstreams.case_kept(FOLDS)
    assert upstreams.keeps_case(FOLDS)
    assert upstreams.case_probes_due(1e9) == []
