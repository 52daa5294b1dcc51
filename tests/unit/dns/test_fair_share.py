"""Shares of forwarding slots: greedy clients leave room, and their oldest questions make way for their newest."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.dns.decide.client_location import client_key
from zonewise.dns.decide.fair_share import GRACE_SECONDS, FairShare, ForwardSlots
from zonewise.dns.decide.forward_cache import ForwardQuestion

A, B, C = b"a", b"b", b"c"


def question(number: int) -> ForwardQuestion:
    return ForwardQuestion(b"%d" % number, dnssec_ok=False)


@pytest.mark.parametrize(("greedy", "each"), [(1, 500), (2, 333), (9, 100), (99, 10)])
def test_greedy_clients_get_equal_parts_and_leave_one(greedy: int, each: int) -> None:
    shares, clients = FairShare(1000), [bytes((number,)) for number in range(greedy)]
    held = Counter(client for _ in range(1000) for client in clients if shares.take(client))
    assert set(held.values()) <= {each, each + 1}
    assert sum(shares.take(b"next") for _ in range(each // 2)) == each // 2


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([A, B, C])), max_size=200), st.integers(1, 20))
def test_shares_are_never_exceeded_and_all_come_back(steps: list[tuple[bool, bytes]], capacity: int) -> None:
    shares, held = FairShare(capacity), Counter[bytes]()
    for takes, client in steps:
        if takes:
            free = capacity - held.total()
            assert shares.take(client) == (held[client] < free)
            held[client] += held[client] < free
        elif held[client]:
            shares.give_back(client)
            held[client] -= 1
    for client in held.elements():
        shares.give_back(client)
    assert sum(shares.take(client) for client in (A, A, A)) == min(3, capacity // 2 + capacity % 2)


def filled(capacity: int, client: bytes = A) -> ForwardSlots:
    slots = ForwardSlots(capacity)
    for number in range(capacity // 2):
        assert slots.enter(question(number), client, 0.0) == (True, None)
    return slots


def test_oldest_question_makes_way_after_its_grace() -> None:
    slots = filled(10)
    assert slots.enter(question(90), A, GRACE_SECONDS / 2) == (False, None)
    assert slots.enter(question(90), A, GRACE_SECONDS) == (True, question(0))
    assert slots.enter(question(91), A, GRACE_SECONDS) == (True, question(1))
    assert slots.enter(question(92), B, 0.0) == (True, None), "another client is not affected"


def test_question_of_several_clients_is_not_given_up() -> None:
    slots = filled(10)
    slots.join(question(0), B)
    slots.join(question(1), A)
    assert slots.enter(question(90), A, GRACE_SECONDS) == (True, question(1))


def test_new_client_takes_a_question_that_one_client_waits_for_first() -> None:
    slots = ForwardSlots(3)
    for number, client in enumerate((A, B, C)):
        assert slots.enter(question(number), client, 0.0).admitted
    slots.join(question(0), B)
    assert slots.enter(question(3), b"d", GRACE_SECONDS) == (True, question(1)), "the oldest of one client alone"


def test_new_client_takes_a_shared_question_only_if_all_are_shared() -> None:
    slots = ForwardSlots(3)
    for number, (client, other) in enumerate(((A, B), (B, C), (C, A))):
        assert slots.enter(question(number), client, 0.0).admitted
        slots.join(question(number), other)
    assert slots.enter(question(3), b"d", GRACE_SECONDS) == (True, question(0))


def test_client_above_its_share_gives_up_without_replacement() -> None:
    slots = filled(10)
    for number in range(3):
        assert slots.enter(question(80 + number), B if number % 2 else C, 0.0).admitted
    assert slots.enter(question(90), A, GRACE_SECONDS) == (False, question(0))


def test_new_client_gets_the_oldest_slot_when_none_is_free() -> None:
    slots = ForwardSlots(3)
    for number, client in enumerate((A, B, C)):
        assert slots.enter(question(number), client, 0.0).admitted
    assert slots.enter(question(3), b"d", GRACE_SECONDS / 2) == (False, None)
    assert slots.enter(question(3), b"d", GRACE_SECONDS) == (True, question(0))
    assert slots.enter(question(4), b"d", GRACE_SECONDS) == (False, None), "not a second one from others"


def test_answered_questions_free_their_slots() -> None:
    slots = filled(10)
    for number in (*range(5), *range(5)):
        slots.leave(question(number))
    assert sum(slots.enter(question(number), A, 0.0).admitted for number in range(10)) == 5


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["enter", "join", "leave"]), st.integers(0, 15), st.sampled_from([A, B, C]), st.floats(0, 1)
        ),
        max_size=100,
    )
)
def test_a_new_client_is_always_served_within_its_grace(steps: list[tuple[str, int, bytes, float]]) -> None:
    slots, now, under_way = ForwardSlots(6), 0.0, set[int]()
    for step, number, client, seconds in steps:
        now += seconds
        if step == "leave":
            slots.leave(question(number))
            under_way.discard(number)
        elif number in under_way:
            slots.join(question(number), client)
        else:
            admitted, given_up = slots.enter(question(number), client, now)
            under_way -= {int(given_up.question)} if given_up else set()
            under_way |= {number} if admitted else set()
    assert len(under_way) <= 6
    assert slots.enter(question(99), b"new", now + GRACE_SECONDS).admitted


@pytest.mark.parametrize(
    ("one", "other", "node", "same"),
    [
        ("10.0.0.1", "10.0.0.2", "", False),
        ("10.0.0.1", "::ffff:10.0.0.1", "", True),
        ("fd00::1", "fd00::2:3", "", True),
        ("fd00::1", "fd00:0:0:1::1", "", False),
        ("fd00::1", "fd00::2:3", "zone-a-1", False),
        ("fe80::1%eth0", "fe80::2", "", True),
    ],
)
def test_ipv6_clients_outside_the_cluster_are_counted_by_network(one: str, other: str, node: str, same: bool) -> None:
    assert (client_key(one, node) == client_key(other, node)) == same
