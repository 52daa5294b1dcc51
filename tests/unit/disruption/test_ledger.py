"""Ages of charges, on the leader's own clock."""

from dataclasses import replace

import pytest

from unit.disruption.build import pod
from zonewise.disruption.decide.ledger import (
    GONE_SECONDS,
    UNCONFIRMED_SECONDS,
    Ledger,
    LedgerEntry,
    Sightings,
    charge,
    ledger_of,
    refund,
    update_ledger,
)
from zonewise.disruption.decide.pods import PodFacts

A0 = LedgerEntry(uid="uid-a0", name="a0", domain="a", owner="deployment")
B0 = LedgerEntry(uid="uid-b0", name="b0", domain="b", owner="deployment")


def test_pod_is_charged_once_and_keeps_its_position() -> None:
    ledger = charge(ledger_of([A0]), [replace(A0, domain="z"), B0, B0])
    assert list(ledger.values()) == [A0, B0]
    assert list(refund(ledger, {"uid-a0", "other"})) == ["uid-b0"]


class Leader:
    """Looks at one charged pod again and again."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.sightings: Sightings = {}
        self.given_up: tuple[LedgerEntry, ...] = ()
        self.next_seconds: float | None = None

    def look(self, now_seconds: float, *pods: PodFacts) -> list[bool]:
        """Whether each entry that is left is confirmed."""
        tended = update_ledger(self.ledger, self.sightings, {member.uid: member for member in pods}, now_seconds)
        self.ledger, self.sightings = tended.ledger, tended.sightings
        self.given_up, self.next_seconds = tended.given_up, tended.next_seconds
        return [entry.confirmed for entry in self.ledger.values()]


STAYS = pod("a0")
LEAVES = pod("a0", terminating=True)
EVICTED = pod("a0", disruption_target=True)
GRANTED = pod("a0", granted=True)


@pytest.fixture
def leader() -> Leader:
    return Leader(ledger_of([A0]))


def test_charge_of_a_pod_that_stays_is_given_up(leader: Leader) -> None:
    assert leader.look(1000.0, STAYS) == [False]
    assert leader.next_seconds == 1000.0 + UNCONFIRMED_SECONDS
    assert leader.look(1000.0 + UNCONFIRMED_SECONDS - 0.1, STAYS) == [False]
    assert leader.look(1000.0 + UNCONFIRMED_SECONDS, STAYS) == []
    assert leader.given_up == (A0,)


@pytest.mark.parametrize("leaving", [LEAVES, EVICTED], ids=["terminating", "condition"])
def test_confirmed_charge_ends_after_the_pod_is_gone(leader: Leader, leaving: PodFacts) -> None:
    leader.look(0.0, STAYS)
    assert leader.look(100.0, leaving) == [True]
    assert leader.next_seconds is None
    assert leader.look(10_000.0, leaving) == [True]
    assert leader.look(10_001.0) == [True]
    assert leader.look(10_001.0 + GONE_SECONDS - 0.1) == [True]
    assert leader.look(10_001.0 + GONE_SECONDS) == []
    assert leader.given_up == ()


def test_withdrawn_eviction_restarts_the_timeout(leader: Leader) -> None:
    leader.look(0.0, EVICTED)
    assert leader.look(100.0, STAYS) == [False]
    assert leader.look(100.0 + UNCONFIRMED_SECONDS - 0.1, STAYS) == [False]
    assert leader.look(100.0 + UNCONFIRMED_SECONDS, STAYS) == []


def test_grant_keeps_the_charge(leader: Leader) -> None:
    leader.look(0.0, STAYS)
    assert leader.look(1.0, GRANTED) == [False]
    assert leader.look(100_000.0, GRANTED) == [False]
    assert leader.look(100_001.0, STAYS) == [False]
    assert leader.look(100_001.0 + UNCONFIRMED_SECONDS, STAYS) == []


def test_pod_never_seen_is_not_taken_for_gone(leader: Leader) -> None:
    assert leader.look(0.0) == [False]
    assert leader.look(GONE_SECONDS + 1) == [False]
    assert leader.look(UNCONFIRMED_SECONDS) == []
    assert leader.given_up == ()


def test_same_name_is_another_pod(leader: Leader) -> None:
    leader.look(0.0, LEAVES)
    recreated = PodFacts(uid="uid-new", name="a0", ready=True)
    assert leader.look(1.0, recreated) == [True]
    assert leader.look(1.0 + GONE_SECONDS, recreated) == []


@pytest.mark.parametrize(
    ("last_seen", "ends_seconds", "given_up"), [((STAYS,), UNCONFIRMED_SECONDS, (A0,)), ((), GONE_SECONDS, ())]
)
def test_ended_charge_stays_ended_until_published(
    leader: Leader, last_seen: tuple[PodFacts, ...], ends_seconds: float, given_up: tuple[LedgerEntry, ...]
) -> None:
    leader.look(0.0, STAYS)
    leader.look(0.0, *last_seen)
    stored = leader.ledger
    for later_seconds in (0.0, 5.0, 300.0):
        leader.ledger = stored  # the last count was not written
        assert leader.look(ends_seconds + later_seconds, *last_seen) == []
        assert leader.given_up == given_up
        assert leader.next_seconds is None


def test_new_charge_of_a_pod_gets_the_full_timeout(leader: Leader) -> None:
    leader.look(0.0, STAYS)
    assert leader.look(UNCONFIRMED_SECONDS, STAYS) == []
    leader.ledger = ledger_of([replace(A0, time="2026-01-01T00:02:00.000001Z")])
    assert leader.look(UNCONFIRMED_SECONDS + 1, STAYS) == [False]
    assert leader.look(2 * UNCONFIRMED_SECONDS, STAYS) == [False]
    assert leader.look(2 * UNCONFIRMED_SECONDS + 1, STAYS) == []


def test_new_leader_restarts_all_timeouts(leader: Leader) -> None:
    leader.look(0.0, STAYS)
    successor = Leader(leader.ledger)
    assert successor.look(5.0, STAYS) == [False]
    assert successor.look(5.0 + UNCONFIRMED_SECONDS - 0.1, STAYS) == [False]


def test_times_in_entries_expire_nothing(leader: Leader) -> None:
    """The clock of the machine that charged may be years away."""
    leader.ledger = ledger_of([replace(A0, time="1970-01-01T00:00:00Z"), replace(B0, time="2199-01-01T00:00:00Z")])
    assert leader.look(0.0, STAYS, pod("b0")) == [False, False]
    assert leader.look(UNCONFIRMED_SECONDS, STAYS, pod("b0")) == []
