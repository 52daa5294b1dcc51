"""Leader election rules, case by case. Times are seconds of the candidate's own clock."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from zonewise.kube.decide.election import Create, Election, ElectionWait, Read, Replace, Timing
from zonewise.objects import Lease, LeaseSpec, Metadata

WALL = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
TIMING = Timing(lease_seconds=15, renew_deadline_seconds=10, retry_seconds=2)


def lease(version: str = "1", holder: str | None = "other", lease_seconds: int | None = 15) -> Lease:
    spec = LeaseSpec(
        holder_identity=holder,
        lease_duration_seconds=lease_seconds,
        acquire_time="2026-11-16T11:00:00.000000Z",
        renew_time="2026-11-16T12:00:00.000000Z",
        lease_transitions=3,
    )
    return Lease(metadata=Metadata(name="x", resource_version=version), spec=spec)


def leader(now: float = 0.0) -> Election:
    election = Election("me", TIMING)
    election.read(None, now)
    election.wrote(lease(version="1", holder="me"), sent_at=now)
    return election


def waiting_since(now: float, current: Lease) -> Election:
    election = Election("me", TIMING)
    election.read(current, now)
    return election


def next_write(election: Election, now: float) -> Create | Replace:
    step = election.next_step(now, WALL)
    assert isinstance(step, Create | Replace), step
    return step


def test_candidate_reads_then_creates_a_missing_lease() -> None:
    election = Election("me", TIMING)
    assert election.next_step(0.0, WALL) == Read()
    election.read(None, 0.1)
    step = next_write(election, 0.1)
    assert step == Create(
        LeaseSpec(
            holder_identity="me",
            lease_duration_seconds=15,
            acquire_time="2026-11-16T12:00:00.000000Z",
            renew_time="2026-11-16T12:00:00.000000Z",
            lease_transitions=0,
        )
    )


@pytest.mark.parametrize("holder", [None, "", "me"])
def test_free_or_own_lease_is_acquired_at_once(holder: str | None) -> None:
    election = waiting_since(0.0, lease(version="7", holder=holder))
    step = next_write(election, 0.0)
    assert isinstance(step, Replace)
    assert step.version == "7"
    assert step.spec.holder_identity == "me"


def test_takeover_counts_a_transition_and_renewal_does_not() -> None:
    spec = next_write(waiting_since(0.0, lease(holder="")), 0.0).spec
    assert (spec.lease_transitions, spec.acquire_time) == (
        4,
        "2026-11-16T12:00:00.000000Z".replace(".000000", ".000001"),
    )
    renewed = next_write(waiting_since(0.0, lease(holder="me")), 0.0).spec
    assert (renewed.lease_transitions, renewed.acquire_time) == (3, "2026-11-16T11:00:00.000000Z")


def test_held_lease_is_acquired_after_its_duration_unchanged() -> None:
    election = waiting_since(100.0, lease())
    assert election.next_step(100.0, WALL) == ElectionWait(2.0)
    assert election.next_step(102.0, WALL) == Read()
    election.read(lease(), 114.9)
    assert isinstance(election.next_step(114.9, WALL), ElectionWait)
    election.read(lease(), 115.0)
    assert isinstance(election.next_step(115.0, WALL), Replace)


def test_change_of_a_held_lease_restarts_the_wait() -> None:
    election = waiting_since(0.0, lease(version="1"))
    election.read(lease(version="2"), 14.0)
    election.read(lease(version="2"), 28.9)
    assert isinstance(election.next_step(28.9, WALL), ElectionWait)
    election.read(lease(version="2"), 29.0)
    assert isinstance(election.next_step(29.0, WALL), Replace)


@pytest.mark.parametrize(
    ("duration_seconds", "waits"),
    [(60, 60.0), (1, 15.0), (None, 15.0)],
    ids=["a longer one binds us", "a shorter one does not", "nor does none"],
)
def test_longer_duration_of_the_holder_applies(duration_seconds: int | None, waits: float) -> None:
    election = waiting_since(0.0, lease(lease_seconds=duration_seconds))
    election.read(lease(lease_seconds=duration_seconds), waits - 0.1)
    assert isinstance(election.next_step(waits - 0.1, WALL), ElectionWait)
    election.read(lease(lease_seconds=duration_seconds), waits)
    assert isinstance(election.next_step(waits, WALL), Replace)


def test_leader_may_act_until_the_deadline_after_its_last_renewal() -> None:
    election = leader(now=100.0)
    assert election.remaining_seconds(100.5) == 9.5
    assert election.leads(109.9)
    assert not election.leads(110.0)
    election.wrote(lease(version="2", holder="me"), sent_at=108.0)
    assert election.remaining_seconds(112.0) == 6.0


def test_response_after_the_deadline_makes_no_leader() -> None:
    election = Election("me", TIMING)
    election.read(None, 0.0)
    election.wrote(lease(holder="me"), sent_at=0.0)
    assert not election.leads(30.0)


def test_leader_renews_every_retry_period_without_reading() -> None:
    election = leader(now=0.0)
    assert election.next_step(0.5, WALL) == ElectionWait(1.5)
    step = election.next_step(2.0, WALL)
    assert isinstance(step, Replace)
    assert step.version == "1"


def test_failed_renewal_is_retried_while_leading() -> None:
    election = leader(now=0.0)
    election.failed(since=3.0)
    assert election.next_step(3.0, WALL) == ElectionWait(2.0)
    assert election.next_step(5.0, WALL) == Read(), "at once, if the failed call took longer than the retry period"
    assert election.leads(5.0)
    election.read(lease(version="2", holder="me"), 5.1)
    step = next_write(election, 5.1)
    assert isinstance(step, Replace)
    assert step.version == "2"


def test_conflict_with_another_holder_ends_leadership() -> None:
    election = leader(now=0.0)
    election.overtaken()
    assert election.next_step(2.0, WALL) == Read()
    assert election.leads(2.0), "a conflict may be our own renewal with a lost response"
    election.read(lease(version="9", holder="other"), 2.1)
    assert not election.leads(2.1)
    assert election.holder == "other"


def test_leader_keeps_leading_after_a_foreign_annotation() -> None:
    election = leader(now=0.0)
    election.overtaken()
    election.read(lease(version="9", holder="me"), 2.1)
    assert election.leads(2.1)
    assert isinstance(election.next_step(2.1, WALL), Replace)


def test_leader_reacquires_a_cleared_lease() -> None:
    election = leader(now=0.0)
    election.overtaken()
    election.read(lease(version="9", holder=None), 2.1)
    assert election.leads(2.1)
    assert next_write(election, 2.1).spec.holder_identity == "me"


def test_leader_recreates_its_deleted_lease_at_once() -> None:
    election = leader(now=0.0)
    election.failed(2.0)
    election.read(None, 4.0)
    assert election.leads(4.0)
    assert isinstance(election.next_step(4.0, WALL), Create)


def test_candidate_treats_a_deleted_lease_as_held() -> None:
    election = waiting_since(0.0, lease())
    election.read(None, 50.0)
    assert isinstance(election.next_step(50.0, WALL), ElectionWait), "its leader may have renewed in between"
    election.read(None, 64.9)
    assert isinstance(election.next_step(64.9, WALL), ElectionWait)
    election.read(None, 65.0)
    assert isinstance(election.next_step(65.0, WALL), Create)


def test_former_leader_treats_a_deleted_lease_as_held() -> None:
    election = leader(now=0.0)
    election.failed(60.0)
    election.read(None, 62.0)
    assert isinstance(election.next_step(62.0, WALL), ElectionWait)


def test_resign_ends_leadership_at_once() -> None:
    election = leader(now=0.0)
    election.resign()
    assert not election.leads(0.1)


def test_release_clears_only_an_own_lease() -> None:
    election = leader(now=0.0)
    step = election.release(lease(version="5", holder="me"), WALL + timedelta(seconds=9))
    assert step is not None
    assert step.version == "5"
    assert step.spec.holder_identity is None
    assert step.spec.lease_duration_seconds == 1
    assert step.spec.lease_transitions == 3
    assert election.release(lease(holder="other"), WALL) is None
    assert election.release(None, WALL) is None


def test_renewals_differ_with_a_stopped_wall_clock() -> None:
    """An update that changes nothing gets no new version, so candidates would consider the lease expired."""
    election = leader(now=0.0)
    stored = lease(holder="me")
    stamps = []
    for round_ in range(1, 5):
        spec = next_write(election, 2.0 * round_).spec
        stamps.append(spec.renew_time)
        assert spec.renew_time != stored.spec.renew_time
        stored = Lease(metadata=Metadata(resource_version=str(round_)), spec=spec)
        election.wrote(stored, sent_at=2.0 * round_)


@pytest.mark.parametrize(
    "jump", [timedelta(days=-400), timedelta(hours=-1), timedelta(seconds=3), timedelta(days=9000)]
)
def test_wall_clock_jumps_change_no_decision(jump: timedelta) -> None:
    candidate = waiting_since(0.0, lease())
    assert isinstance(candidate.next_step(1.0, WALL + jump), ElectionWait)
    ours = leader(now=0.0)
    step = ours.next_step(2.0, WALL + jump)
    assert isinstance(step, Replace)
    ours.wrote(Lease(metadata=Metadata(resource_version="2"), spec=step.spec), sent_at=2.0)
    assert ours.remaining_seconds(2.0) == 10.0


def test_candidates_with_different_jitter_read_at_different_times() -> None:
    early, late = Election("a", TIMING, spread=0.0), Election("b", TIMING, spread=0.5)
    for election in (early, late):
        election.read(lease(), 0.0)
    assert (early.next_step(0.0, WALL), late.next_step(0.0, WALL)) == (ElectionWait(2.0), ElectionWait(2.2))


def test_lease_spec_has_the_api_field_names() -> None:
    spec = next_write(waiting_since(0.0, lease(holder=None)), 0.0).spec
    assert msgspec.to_builtins(spec) == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "acquireTime": "2026-11-16T12:00:00.000001Z",
        "renewTime": "2026-11-16T12:00:00.000001Z",
        "leaseTransitions": 4,
    }


@pytest.mark.parametrize(
    ("lease_seconds", "renew_deadline_seconds", "retry_seconds"),
    [(10, 10, 2), (15, 2, 2), (15, 10, 0), (15, 10, 9)],
    ids=["no slack for the deadline", "one try only", "no pause", "too little to spare for the spread"],
)
def test_unsafe_timing_is_refused(lease_seconds: int, renew_deadline_seconds: float, retry_seconds: float) -> None:
    with pytest.raises(ValueError, match="retry < renew deadline < lease duration"):
        Timing(lease_seconds, renew_deadline_seconds, retry_seconds)
