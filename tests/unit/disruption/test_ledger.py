"""Ages of charges, on the leader's own clock."""

from dataclasses import replace

import pytest

from unit.disruption.build import pod
from zonewise.disruption.decide.ledger import (
    GONE_SECONDS,
    OPEN_SECONDS,
    OWN_OPEN_SECONDS,
    REQUEST_SECONDS,
    UNSEEN_SECONDS,
    ChargeSource,
    Ledger,
    LedgerEntry,
    Sightings,
    charge,
    is_staying,
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


LATER_SECONDS = REQUEST_SECONDS + 5.0
"""How long a closed charge lasts."""


class Leader:
    """Looks at one charged pod again and again, and stores what it finds."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.sightings: Sightings = {}
        self.given_up: tuple[LedgerEntry, ...] = ()
        self.doubtful: tuple[LedgerEntry, ...] = ()
        self.read: set[str] = set()
        self.next_seconds: float | None = None

    def look(self, now_seconds: float, *pods: PodFacts) -> list[bool]:
        """Whether each entry that is left is confirmed."""
        by_uid = {member.uid: member for member in pods}
        tended = update_ledger(self.ledger, self.sightings, by_uid, now_seconds, read=self.read)
        self.ledger, self.sightings = tended.ledger, tended.sightings
        self.given_up, self.doubtful, self.next_seconds = tended.given_up, tended.doubtful, tended.next_seconds
        return [entry.confirmed for entry in self.ledger.values()]

    @property
    def closed(self) -> list[bool]:
        return [entry.closed for entry in self.ledger.values()]


STAYS = pod("a0")
LEAVES = pod("a0", terminating=True)
EVICTED = pod("a0", disruption_target=True)
GRANTED = pod("a0", granted=True)
RECREATED = PodFacts(uid="uid-new", name="a0", ready=True)


@pytest.fixture
def leader() -> Leader:
    return Leader(ledger_of([A0]))


def test_charge_of_a_pod_that_stays_is_closed_then_given_up(leader: Leader) -> None:
    """Closed, it lasts as long as any request lives that was allowed before; then the pod is read once more."""
    assert leader.look(1000.0, STAYS) == [False]
    assert leader.next_seconds == 1000.0 + OPEN_SECONDS
    leader.look(1000.0 + OPEN_SECONDS - 0.1, STAYS)
    assert leader.closed == [False]
    leader.look(1000.0 + OPEN_SECONDS, STAYS)
    assert leader.closed == [True]
    leader.look(1012.0, STAYS)  # stored at this time
    assert leader.next_seconds == 1012.0 + LATER_SECONDS
    leader.look(1012.0 + LATER_SECONDS - 0.1, STAYS)
    assert leader.doubtful == ()
    assert leader.look(1012.0 + LATER_SECONDS, STAYS) == [False]
    assert [entry.uid for entry in leader.doubtful] == ["uid-a0"]
    leader.read = {"uid-a0"}
    assert leader.look(1012.0 + LATER_SECONDS, STAYS) == []
    assert [entry.uid for entry in leader.given_up] == ["uid-a0"]


def test_closing_that_was_not_stored_ends_nothing(leader: Leader) -> None:
    stored = leader.ledger
    for now_seconds in (0.0, OPEN_SECONDS, 1000.0, 100_000.0):
        leader.ledger = stored
        assert leader.look(now_seconds, STAYS) == [False]
    assert leader.closed == [True]
    assert leader.doubtful == ()


def test_asking_again_prolongs_nothing(leader: Leader) -> None:
    """Every request that relies on a charge writes its time into it."""
    end = 0.0
    for number in range(1000):
        if not leader.ledger:
            break
        end = number * 1.0
        leader.look(end, STAYS)
        leader.read = {entry.uid for entry in leader.doubtful}
        if leader.ledger and leader.closed == [False]:
            leader.ledger = ledger_of([replace(A0, time=f"then {number}")])
    assert end <= OPEN_SECONDS + LATER_SECONDS + 3.0


def test_charge_of_the_leader_stays_open_for_its_retries() -> None:
    leader = Leader(ledger_of([replace(A0, source=ChargeSource.ROLLOUT)]))
    leader.look(0.0, STAYS)
    leader.look(OWN_OPEN_SECONDS - 0.1, STAYS)
    assert leader.closed == [False]
    leader.look(OWN_OPEN_SECONDS, STAYS)
    assert leader.closed == [True]


def test_request_timeout_of_api_servers_is_waited_for() -> None:
    closed, seen = ledger_of([replace(A0, closed=True)]), {"uid-a0": STAYS}
    first = update_ledger(closed, {}, seen, 0.0, request_seconds=300.0)
    assert update_ledger(closed, first.sightings, seen, 304.9, request_seconds=300.0).doubtful == ()
    assert update_ledger(closed, first.sightings, seen, 305.0, request_seconds=300.0).doubtful


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
    assert leader.next_seconds == 100.0 + OPEN_SECONDS


def test_pod_that_leaves_late_is_confirmed(leader: Leader) -> None:
    """An API server took its time: the charge was closed, and is still there."""
    leader.look(0.0, STAYS)
    leader.look(OPEN_SECONDS, STAYS)
    assert leader.look(OPEN_SECONDS + REQUEST_SECONDS, STAYS) == [False]
    assert leader.look(OPEN_SECONDS + REQUEST_SECONDS + 1.0, LEAVES) == [True]
    assert leader.next_seconds is None


def test_grant_keeps_the_charge(leader: Leader) -> None:
    leader.look(0.0, STAYS)
    assert leader.look(1.0, GRANTED) == [False]
    assert leader.look(100_000.0, GRANTED) == [False]
    assert leader.closed == [False]
    assert leader.look(100_001.0, STAYS) == [False]
    leader.look(100_001.0 + OPEN_SECONDS, STAYS)
    assert leader.closed == [True]


def test_pod_never_seen_is_not_taken_for_gone(leader: Leader) -> None:
    assert leader.look(0.0) == [False]
    assert leader.look(GONE_SECONDS + 1) == [False]
    assert leader.look(UNSEEN_SECONDS) == []
    assert leader.given_up == ()


@pytest.mark.parametrize(
    ("stored", "stays"),
    [(STAYS, True), (GRANTED, True), (LEAVES, False), (EVICTED, False), (None, False), (RECREATED, False)],
    ids=["ready", "granted", "terminating", "condition", "gone", "of the same name"],
)
def test_only_the_same_pod_that_does_not_leave_stays(stored: PodFacts | None, stays: bool) -> None:
    assert is_staying(A0, stored) is stays


def test_charge_of_a_pod_that_is_gone_outlives_a_stale_cache() -> None:
    leader = Leader(ledger_of([replace(A0, closed=True)]))
    leader.look(0.0, STAYS)
    leader.look(LATER_SECONDS, STAYS)
    leader.read = {entry.uid for entry in leader.doubtful if is_staying(entry, None)}
    assert leader.look(LATER_SECONDS, STAYS) == [False], "the cache counts the pod as healthy"
    assert leader.look(LATER_SECONDS + 20.0) == [False]
    assert leader.next_seconds == LATER_SECONDS + 20.0 + GONE_SECONDS
    assert leader.look(LATER_SECONDS + 20.0 + GONE_SECONDS) == []
    assert leader.given_up == ()


def test_same_name_is_another_pod(leader: Leader) -> None:
    leader.look(0.0, LEAVES)
    assert leader.look(1.0, RECREATED) == [True]
    assert leader.look(1.0 + GONE_SECONDS, RECREATED) == []


@pytest.mark.parametrize(
    ("last_seen", "ends_seconds", "given_up"), [((STAYS,), LATER_SECONDS, ["uid-a0"]), ((), GONE_SECONDS, [])]
)
def test_ended_charge_stays_ended_until_published(
    last_seen: tuple[PodFacts, ...], ends_seconds: float, given_up: list[str]
) -> None:
    leader = Leader(ledger_of([replace(A0, closed=True)]))
    leader.read = {"uid-a0"}
    leader.look(0.0, STAYS)
    leader.look(0.0, *last_seen)
    stored = leader.ledger
    for later_seconds in (0.0, 5.0, 300.0):
        leader.ledger = stored  # the last count was not written
        assert leader.look(ends_seconds + later_seconds, *last_seen) == []
        assert [entry.uid for entry in leader.given_up] == given_up
        assert leader.next_seconds is None


def test_new_charge_of_a_pod_is_not_ended_with_the_old_one() -> None:
    leader = Leader(ledger_of([replace(A0, closed=True)]))
    leader.read = {"uid-a0"}
    leader.look(0.0, STAYS)
    assert leader.look(LATER_SECONDS, STAYS) == []
    leader.ledger = ledger_of([A0])
    assert leader.look(LATER_SECONDS + 1, STAYS) == [False]
    assert leader.next_seconds == LATER_SECONDS + 1 + OPEN_SECONDS


def test_new_leader_restarts_all_timeouts() -> None:
    leader = Leader(ledger_of([replace(A0, closed=True)]))
    leader.look(0.0, STAYS)
    successor = Leader(leader.ledger)
    assert successor.look(LATER_SECONDS, STAYS) == [False]
    assert successor.next_seconds == 2 * LATER_SECONDS


def test_times_in_entries_expire_nothing(leader: Leader) -> None:
    """The clock of the machine that charged may be years away."""
    leader.ledger = ledger_of([replace(A0, time="1970-01-01T00:00:00Z"), replace(B0, time="2199-01-01T00:00:00Z")])
    assert leader.look(0.0, STAYS, pod("b0")) == [False, False]
    leader.look(OPEN_SECONDS, STAYS, pod("b0"))
    assert leader.closed == [True, True]
