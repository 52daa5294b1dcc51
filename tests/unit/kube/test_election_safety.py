"""Never two leaders: several candidates against one lease, with everything that may go wrong between them.

The network holds requests and answers back for as long as it likes, loses them, and processes a request long after its
sender gave up. Candidates are paused at any point, their clocks run at different speeds, wall clocks jump or stand
still, candidates leave and others come, and the lease is deleted, though not again before all have seen the new one.
After every step at most one of them may believe to lead.
"""

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from zonewise.kube.decide.election import Create, Election, ElectionWait, Read, Replace, Timing
from zonewise.objects import Lease, LeaseSpec, Metadata

TIMING = Timing(lease_seconds=15, renew_deadline_seconds=10, retry_seconds=2)
SPEEDS = (1.0, 0.9, 1.1)
"""The slack between deadline and duration allows for clocks that differ by a third; these differ by 22 %."""

SPANS = (0.1, 0.5, 1.0, 2.0, 4.0, 5.0, 9.0, 10.0, 14.0, 16.0, 60.0)
INDEX = st.sampled_from(range(len(SPEEDS)))
REQUEST_INDEX = st.integers(0, 9)

CONFLICT = "conflict"
NOT_FOUND = "not found"


class Server:
    """One object with compare-and-set. A write that changes nothing creates no new version, as in Kubernetes."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self._version = 0

    def perform(self, step: Read | Create | Replace) -> Lease | str | None:
        match step:
            case Read():
                return self.lease
            case Create(spec):
                return CONFLICT if self.lease else self._store(spec)
            case Replace(version, spec):
                if self.lease is None:
                    return NOT_FOUND
                if self.lease.metadata.resource_version != version:
                    return CONFLICT
                return self.lease if spec == self.lease.spec else self._store(spec)

    def _store(self, spec: LeaseSpec) -> Lease:
        self._version += 1
        self.lease = Lease(metadata=Metadata(resource_version=str(self._version)), spec=spec)
        return self.lease


@dataclass(eq=False)
class Request:
    step: Read | Create | Replace
    sent_at: float
    answered: bool = False
    answer: Lease | str | None = None


@dataclass
class Candidate:
    election: Election
    speed: float
    wall: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    wall_stands_still: bool = False
    pending: Request | None = None
    sees_a_lease: bool = False

    def clock(self, time: float) -> float:
        return 1000.0 * self.speed + time * self.speed


class Elections(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.time = 0.0
        self.server = Server()
        self.network: list[Request] = []
        self.names = iter(range(10**6))
        self.candidates = [self.newcomer(speed) for speed in SPEEDS]

    def newcomer(self, speed: float) -> Candidate:
        return Candidate(Election(f"candidate-{next(self.names)}", TIMING, spread=0.0), speed)

    @rule(seconds=st.sampled_from(SPANS))
    def time_passes(self, seconds: float) -> None:
        self.time += seconds
        for candidate in self.candidates:
            if not candidate.wall_stands_still:
                candidate.wall += timedelta(seconds=seconds)

    @rule(index=INDEX)
    def act(self, index: int) -> None:
        candidate = self.candidates[index]
        if candidate.pending is not None:
            return
        now = candidate.clock(self.time)
        step = candidate.election.next_step(now, candidate.wall)
        if not isinstance(step, ElectionWait):
            candidate.pending = Request(step, sent_at=now)
            self.network.append(candidate.pending)

    @rule(request_index=REQUEST_INDEX)
    def server_processes(self, request_index: int) -> None:
        if self.network:
            self.process(self.network.pop(request_index % len(self.network)))

    def process(self, request: Request) -> None:
        request.answer = self.server.perform(request.step)
        request.answered = True

    @rule(index=INDEX)
    def answer_arrives(self, index: int) -> None:
        candidate = self.candidates[index]
        if candidate.pending is not None and candidate.pending.answered:
            request, candidate.pending = candidate.pending, None
            self.deliver(candidate, request)

    @rule(index=INDEX)
    def round_trip_succeeds(self, index: int) -> None:
        """Request, processing and response without delay: the common case."""
        while self.is_processed_at_once(index):
            self.answer_arrives(index)

    @rule(index=INDEX)
    def write_response_is_lost(self, index: int) -> None:
        while self.is_processed_at_once(index):
            pending = self.candidates[index].pending
            if pending is None or not isinstance(pending.step, Read):
                return
            self.answer_arrives(index)

    def is_processed_at_once(self, index: int) -> bool:
        self.act(index)
        request = self.candidates[index].pending
        if request in self.network:
            self.network.remove(request)
            self.process(request)
        return request is not None and request.answered

    def deliver(self, candidate: Candidate, request: Request) -> None:
        now = candidate.clock(self.time)
        match request.step, request.answer:
            case Read(), (Lease() | None) as lease:
                candidate.election.read(lease, now)
                candidate.sees_a_lease = lease is not None
            case _, Lease() as lease:
                candidate.election.wrote(lease, request.sent_at)
                candidate.sees_a_lease = True
            case _, answer if answer == CONFLICT:
                candidate.election.overtaken()
            case _:
                candidate.election.failed(since=request.sent_at)

    @rule(index=INDEX)
    def gives_up_waiting(self, index: int) -> None:
        """The request may still be processed later."""
        candidate = self.candidates[index]
        if candidate.pending is not None:
            candidate.pending = None
            candidate.election.failed(since=candidate.clock(self.time))

    @rule(request_index=REQUEST_INDEX)
    def request_is_lost(self, request_index: int) -> None:
        if self.network:
            self.network.pop(request_index % len(self.network))

    @rule(index=INDEX, hours=st.integers(-10_000, 10_000), still=st.booleans())
    def wall_clock_jumps(self, index: int, hours: int, still: bool) -> None:
        candidate = self.candidates[index]
        candidate.wall = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hours)
        candidate.wall_stands_still = still

    @rule()
    def lease_is_deleted(self) -> None:
        if all(candidate.sees_a_lease for candidate in self.candidates):
            self.server.lease = None

    @rule(index=INDEX)
    def leaves_and_another_comes(self, index: int) -> None:
        if self.server.lease is None:
            return
        candidate = self.candidates[index]
        candidate.election.resign()
        step = candidate.election.release(self.server.lease, candidate.wall)
        if step is not None:
            self.network.append(Request(step, sent_at=0.0))
        newcomer = self.newcomer(candidate.speed)
        newcomer.election.read(self.server.lease, newcomer.clock(self.time))
        newcomer.sees_a_lease = True
        self.candidates[index] = newcomer

    @invariant()
    def at_most_one_acts(self) -> None:
        leaders = [c.election.identity for c in self.candidates if c.election.leads(c.clock(self.time))]
        assert len(leaders) <= 1, f"at {self.time} s all of {leaders} lead"


TestElections = Elections.TestCase
TestElections.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)


@pytest.mark.parametrize("seed", range(10))
def test_random_walks_never_have_two_leaders(seed: int) -> None:
    """Thousands of steps with realistic weights reach states that short sequences do not."""
    chance = random.Random(seed)
    machine = Elections()
    per_candidate = [
        machine.act,
        machine.answer_arrives,
        machine.round_trip_succeeds,
        machine.write_response_is_lost,
        machine.gives_up_waiting,
        machine.leaves_and_another_comes,
    ]
    for _ in range(10_000):
        index = chance.randrange(len(SPEEDS))
        match chance.choices(range(6), weights=(40, 30, 20, 3, 1, 1))[0]:
            case 0:
                chance.choices(per_candidate, weights=(3, 3, 12, 3, 1, 0.3))[0](index)
            case 1:
                machine.time_passes(chance.choices(SPANS, weights=(9, 9, 9, 9, 5, 3, 3, 3, 2, 2, 1))[0])
            case 2:
                machine.server_processes(chance.randrange(10))
            case 3:
                machine.request_is_lost(chance.randrange(10))
            case 4:
                machine.wall_clock_jumps(index, chance.randrange(-999, 999), still=chance.random() < 0.5)
            case _:
                machine.lease_is_deleted()
        machine.at_most_one_acts()


def test_leader_exists_soon_after_the_last_fault() -> None:
    """Liveness: safety alone would be met by never leading."""
    machine = Elections()
    machine.round_trip_succeeds(0)
    first = machine.candidates[0]
    assert first.election.leads(first.clock(machine.time))
    for _ in range(40):  # candidate 0 is paused for ever
        machine.time_passes(0.5)
        machine.round_trip_succeeds(1)
        machine.round_trip_succeeds(2)
    leaders = [c.election.leads(c.clock(machine.time)) for c in machine.candidates]
    assert leaders in ([False, True, False], [False, False, True])
