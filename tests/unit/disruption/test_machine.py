"""The core in a small cluster where anything may happen between any two steps: no budget is ever overdrawn.

Webhooks read, judge and write; a leader looks, counts and writes; either may die in between. Pods go and come back in
their zone, become unready, are lost; nodes are relabelled, the workload is scaled, the budget is edited. The judge of
all this knows only how many pods each zone should have: whenever a pod is promised away, enough of the others serve.
"""

from collections import Counter
from dataclasses import dataclass, field, replace

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from unit.disruption.build import EXISTS, NOW, OLD, STATEFUL, budget
from zonewise.disruption.budget import Budget
from zonewise.disruption.judgement import Case, Judgement, Verdict, judge
from zonewise.disruption.ledger import Entry, Sightings, tend
from zonewise.disruption.numbers import level_down
from zonewise.disruption.pods import Atlas, Controller, Owner, PodFacts, Stage, Workload
from zonewise.disruption.status import Published, Recollection, charged, published, recollect
from zonewise.topology import ZONE

ZONES = "abc"
ANSWERED_SECONDS = 60.0
"""No API server works on a request for longer."""
BEHIND_SECONDS = 30.0
"""No leader's cache is behind for longer: its lease would be another's."""

BUDGETS = {
    "one per zone": budget(EXISTS, maxUnavailable=1),
    "two per zone": budget(EXISTS, maxUnavailable=2),
    "half of each zone": budget(EXISTS, maxUnavailable="50%"),
    "a zone at a time": budget(EXISTS, maxUnavailable="100%", maxDisruptedDomains=1),
    "one must stay in each": budget(EXISTS, minAvailable=1),
    "one of all": budget(maxUnavailable=1),
}
OWNERS = {STATEFUL: Owner("StatefulSet", "db", "sts"), OLD: Owner("ReplicaSet", "web-old", "rs-old")}


@dataclass(frozen=True)
class Stored:
    """The budget as the API server has it; every write makes a new version."""

    budget: Budget
    status: Published
    version: int = 1


@dataclass
class Flight:
    """A request that a webhook has judged CHARGE on some version."""

    pod: PodFacts
    domain: str
    seen: Stored
    committed_at: float | None = None


@dataclass
class Leader:
    """What one leader has in memory."""

    pods: dict[str, PodFacts]
    nodes: dict[str, dict[str, str]]
    desired: int
    looked_at: float
    before: Recollection = field(default_factory=Recollection)
    sightings: Sightings = field(default_factory=dict)
    draft: tuple[int, Published] | None = None


class Machine(RuleBasedStateMachine):
    @initialize(
        spec=st.sampled_from(sorted(BUDGETS)),
        per_zone=st.integers(1, 4),
        controller=st.sampled_from(sorted(OWNERS)),
    )
    def start(self, spec: str, per_zone: int, controller: Controller) -> None:
        self.now, self.number = 0.0, 0
        self.controller, self.owner = controller, OWNERS[controller]
        self.nodes = {f"{zone}{number}": {ZONE: zone} for zone in ZONES for number in range(2)}
        self.desired = per_zone * len(ZONES)
        self.shares = dict.fromkeys(ZONES, per_zone)
        self.remembered: Counter[str] | None = None
        self.shrunk = self.mixed = False
        self.pods: dict[str, PodFacts] = {}
        for zone in ZONES:
            for number in range(per_zone):
                self._add(f"{zone}{number % 2}", ready=True)
        self.flights: list[Flight] = []
        self.stored = Stored(BUDGETS[spec], Published())
        self.history = [self.stored]
        self._new_leader()
        self._lead()

    # Truth.

    def _add(self, node: str, *, ready: bool = False) -> None:
        self.number += 1
        uid = f"uid-{self.number}"
        stage = Stage.RUNNING if node else Stage.PENDING
        self.pods[uid] = PodFacts(
            uid=uid, name=uid, namespace="shop", node=node, controller=self.controller, ready=ready, stage=stage
        )

    def _change(self, uid: str, **facts: object) -> None:
        self.pods[uid] = msgspec.structs.replace(self.pods[uid], **facts)

    def _zone(self, pod: PodFacts) -> str:
        return self.nodes[pod.node][ZONE]

    def _serving(self, *, promised: bool = True) -> Counter[str]:
        """Pods that are ready and, unless `promised`, not in the ledger, by zone."""
        ledger = self.stored.status.ledger
        return Counter(
            self._zone(pod)
            for pod in self.pods.values()
            if pod.active and pod.ready and (promised or pod.uid not in ledger)
        )

    def _left(self, domain: str) -> int:
        """Of the domain's pods, those that serve and are not promised away."""
        serving = self._serving(promised=False)
        return serving.total() if self.stored.budget.whole else serving[domain]

    def _floor(self, domain: str) -> int:
        budget = self.stored.budget
        if budget.whole:
            return budget.desired(self.desired)
        share = self.shares[domain]
        if self.remembered is not None:
            share = min(share, self.remembered[domain])
        if self.mixed:
            share = min(share, self.stored.status.numbers.domains[domain].target)
        return budget.desired(share)

    def _note_what_is_mixed(self) -> None:
        """`shrunk`: since a scale-down. `mixed`: since then, more pods were away or promised than were too many.

        Which of them are too many, and which will be missed, changes as they go, for what leaves first is not replaced.
        So until all is whole shares may move from zone to zone, but all of them together stay what is wanted.
        """
        ledger = self.stored.status.ledger
        staying = sum(pod.active and pod.uid not in ledger for pod in self.pods.values())
        self.mixed = self.shrunk and (self.mixed or staying < self.desired)

    def _judge_shares(self) -> None:
        numbers = self.stored.status.numbers
        if self.mixed and not numbers.tally.surplus and not self.stored.budget.whole:
            shares = sum(domain.target for domain in numbers.domains.values()) + numbers.tally.unplaced
            assert shares >= self.desired, f"{shares} shares, {self.desired} wanted"

    @property
    def _whole(self) -> bool:
        """Every zone has what it should."""
        return self._serving() == Counter(self.shares) and len(self.pods) == sum(self.shares.values())

    # Webhooks.

    @rule(data=st.data(), age=st.integers(0, 3))
    def ask(self, data: st.DataObject, age: int) -> None:
        """On a version that may be old; whatever is not proven by a write is looked up in the newest one."""
        if self.pods:
            seen = self.history[-1 - min(age, len(self.history) - 1)]
            self._ask(self.pods[data.draw(st.sampled_from(sorted(self.pods)))], seen)

    def _ask(self, pod: PodFacts, seen: Stored) -> None:
        judged = self._judged(seen, pod)
        if judged.verdict is Verdict.CHARGE:
            self.flights.append(Flight(pod, judged.domain, seen))
        elif judged.verdict is Verdict.ALLOW and self._judged(self.stored, pod).verdict is Verdict.ALLOW:
            self._take(pod)

    def _judged(self, seen: Stored, pod: PodFacts) -> Judgement:
        return judge(
            Case(seen.budget, seen.status), pod, Atlas(self.nodes), tuple(self.pods.values()), owner=self.owner.uid
        )

    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        """All pods of a node are asked for, one right after the other."""
        node = data.draw(st.sampled_from(sorted(self.nodes)))
        for pod in [pod for pod in self.pods.values() if pod.node == node]:
            before = len(self.flights)
            self._ask(pod, self.stored)
            if len(self.flights) > before:
                self._commit(self.flights[-1])

    @precondition(lambda self: any(flight.committed_at is None for flight in self.flights))
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        self._commit(data.draw(st.sampled_from([each for each in self.flights if each.committed_at is None])))

    def _commit(self, flight: Flight) -> None:
        if flight.seen.version != self.stored.version:
            self.flights.remove(flight)
            return
        disrupted = self._disrupted()
        time = f"{NOW} {self.stored.version}"  # no two charges of a pod have the same
        entry = Entry(uid=flight.pod.uid, name=flight.pod.name, domain=flight.domain, owner=self.owner.uid, time=time)
        self._store(replace(self.stored, status=charged(self.stored.budget, self.stored.status, [entry])))
        flight.committed_at = self.now
        if flight.pod.uid in self.pods:
            self._judge_promise(flight.domain, disrupted)
        self._share_out()

    def _share_out(self) -> None:
        """While there are enough pods none is missing, wherever they are: no zone is owed more than it has."""
        ledger = self.stored.status.ledger
        held = Counter(self._zone(pod) for pod in self.pods.values() if pod.active and pod.uid not in ledger)
        if held.total() == self.desired:
            self.shares = {zone: held[zone] for zone in ZONES}
        elif held.total() > self.desired:
            self.shares = {zone: min(share, held[zone]) for zone, share in self.shares.items()}

    def _judge_promise(self, zone: str, disrupted: set[str]) -> None:
        """`disrupted` were so before. A zone that is whole must wait for others, one that is not need not."""
        self._note_what_is_mixed()
        self._judge_shares()
        left = self._left(zone)
        assert left >= self._floor(zone), f"{left} left in {zone}, promised {self._floor(zone)}"
        most = self.stored.budget.max_disrupted_domains
        known = self.remembered is None and not self.mixed
        if most is not None and zone not in disrupted and known:
            assert len(disrupted) < most, f"{zone} is whole, and {disrupted} are not"

    def _disrupted(self) -> set[str]:
        serving = self._serving(promised=False)
        return {zone for zone, share in self.shares.items() if serving[zone] < share}

    @precondition(lambda self: any(flight.committed_at is not None for flight in self.flights))
    @rule(data=st.data(), crashes=st.booleans())
    def answer(self, data: st.DataObject, crashes: bool) -> None:
        """The API server evicts the pod, or never hears of it: a stock budget refused, the webhook died."""
        flight = data.draw(st.sampled_from([each for each in self.flights if each.committed_at is not None]))
        self.flights.remove(flight)
        pod = self.pods.get(flight.pod.uid)
        if pod is not None and not crashes:
            self._take(pod)

    def _take(self, pod: PodFacts) -> None:
        if pod.ready and pod.active:
            assert pod.uid in self.stored.status.ledger, f"{pod.uid} goes without a charge"
        if pod.pending:
            del self.pods[pod.uid]
        else:
            self._change(pod.uid, disruption_target=True, terminating=True)

    def _store(self, stored: Stored) -> None:
        self.stored = replace(stored, version=self.stored.version + 1)
        self.history.append(self.stored)

    # The leader.

    def _new_leader(self) -> None:
        self.leader = Leader(dict(self.pods), dict(self.nodes), self.desired, self.now)

    @rule()
    def leader_dies(self) -> None:
        self._new_leader()

    @rule()
    def leader_looks(self) -> None:
        leader = self.leader
        leader.pods, leader.nodes = dict(self.pods), dict(self.nodes)
        leader.desired, leader.looked_at = self.desired, self.now

    @rule()
    def leader_counts(self) -> None:
        leader, stored = self.leader, self.stored
        before = recollect(stored.budget, stored.status, leader.before)
        self._note_what_is_forgotten(forgotten=before.rule != leader.before.rule and not before.ledger_tells)
        tended = tend(stored.status.ledger, leader.sightings, leader.pods, self.now)
        workload = {self.owner.uid: Workload(self.owner, leader.desired)}
        atlas = Atlas(leader.nodes)
        census = before.count(stored.budget, leader.pods.values(), atlas, workload, tended.ledger)
        leader.sightings, leader.before = tended.sightings, replace(before, places=census.places)
        leader.draft = (stored.version, published(stored.budget, census, tended.ledger, (), NOW))

    def _note_what_is_forgotten(self, *, forgotten: bool) -> None:
        """`remembered` is None, or the pods of each zone that a leader met when it could know nothing of those before.

        That is so after an edit that changes what a domain is, or one between two leaders. Which zone lacks what is
        missing then is a guess, by the pods that are seen leaving, and some of those may be replaced already: until
        none is missing, no zone can be promised more than what was met there, nor is it known which ones are whole.
        """
        self._note_what_is_mixed()
        leader = self.leader
        met = Counter(leader.nodes[pod.node][ZONE] for pod in leader.pods.values() if pod.active)
        if self.shrunk and met.total() == len(leader.pods) == self.desired and not self.stored.status.ledger:
            self.shrunk = self.mixed = False
            self.shares = {zone: met[zone] for zone in ZONES}
        if met.total() >= leader.desired:
            self.remembered = None
        elif forgotten:
            self.remembered = met

    @precondition(lambda self: self.leader.draft is not None)
    @rule()
    def leader_writes(self) -> None:
        assert self.leader.draft is not None
        version, status = self.leader.draft
        self.leader.draft = None
        if version == self.stored.version and status != self.stored.status:
            self._store(replace(self.stored, status=status))

    @rule()
    def leader_leads(self) -> None:
        self._lead()

    def _lead(self) -> None:
        self.leader_looks()
        self.leader_counts()
        self.leader_writes()

    # Kubelets, controllers, the scheduler, time.

    @precondition(lambda self: any(pod.terminating for pod in self.pods.values()))
    @rule(data=st.data())
    def pod_ends(self, data: st.DataObject) -> None:
        going = sorted(uid for uid, pod in self.pods.items() if pod.terminating)
        del self.pods[data.draw(st.sampled_from(going))]

    @precondition(lambda self: sum(not pod.terminating for pod in self.pods.values()) < self.desired)
    @rule()
    def controller_creates(self) -> None:
        self._add("")

    @precondition(lambda self: any(pod.pending for pod in self.pods.values()))
    @rule(data=st.data())
    def scheduler_binds(self, data: st.DataObject) -> None:
        """To a zone that lacks one."""
        waiting = data.draw(st.sampled_from(sorted(uid for uid, pod in self.pods.items() if pod.pending)))
        held = Counter(self._zone(pod) for pod in self.pods.values() if pod.active)
        lacking = [node for node in self.nodes if held[self.nodes[node][ZONE]] < self.shares[self.nodes[node][ZONE]]]
        if lacking:
            self._change(waiting, node=data.draw(st.sampled_from(lacking)), stage=Stage.RUNNING)

    @precondition(lambda self: any(pod.active and not pod.ready for pod in self.pods.values()))
    @rule(data=st.data())
    def pod_becomes_ready(self, data: st.DataObject) -> None:
        unready = sorted(uid for uid, pod in self.pods.items() if pod.active and not pod.ready)
        self._change(data.draw(st.sampled_from(unready)), ready=True)

    @precondition(lambda self: any(pod.terminating for pod in self.pods.values()))
    @rule(data=st.data())
    def pod_is_replaced(self, data: st.DataObject) -> None:
        self.pod_ends(data)
        if sum(not pod.terminating for pod in self.pods.values()) < self.desired:
            self.controller_creates()
            self.scheduler_binds(data)

    @rule()
    def all_become_ready(self) -> None:
        for uid in [uid for uid, pod in self.pods.items() if pod.active]:
            self._change(uid, ready=True)
        self._lead()

    @rule(seconds=st.sampled_from([1.0, 10.0, 16.0, 30.0]), led=st.booleans())
    def time_passes(self, seconds: float, led: bool) -> None:
        self.now += seconds
        if led:
            self._lead()
        elif self.now - self.leader.looked_at > BEHIND_SECONDS:
            self.leader_looks()
        kept = [
            each
            for each in self.flights
            if each.committed_at is None or self.now - each.committed_at <= ANSWERED_SECONDS
        ]
        self.flights = kept

    # What nobody asked for: the leader hears of it before anybody else asks, or nobody could be right.

    @precondition(lambda self: self._serving())
    @rule(data=st.data(), gone=st.booleans())
    def pod_fails(self, data: st.DataObject, gone: bool) -> None:
        uid = data.draw(st.sampled_from(sorted(uid for uid, pod in self.pods.items() if pod.active and pod.ready)))
        if gone:
            del self.pods[uid]
        else:
            self._change(uid, ready=False)
        self._share_out()
        self._lead()

    @precondition(lambda self: self._whole and not self.stored.status.ledger)
    @rule(data=st.data(), zone=st.sampled_from(ZONES))
    def node_is_relabelled(self, data: st.DataObject, zone: str) -> None:
        """What the zones should have is then what they have."""
        node = data.draw(st.sampled_from(sorted(self.nodes)))
        self.nodes = {**self.nodes, node: {ZONE: zone}}
        self.shares = {name: self._serving()[name] for name in ZONES}
        self._lead()

    @precondition(lambda self: self._whole)
    @rule(less=st.integers(1, 3))
    def workload_shrinks(self, less: int) -> None:
        self.desired, self.shrunk = max(0, self.desired - less), True
        level = level_down(self.shares.values(), self.desired)
        self.shares = {zone: share if level is None else min(share, level) for zone, share in self.shares.items()}
        self._share_out()
        self._lead()

    @precondition(lambda self: self.stored.status.observed_generation == self.stored.budget.generation)
    @rule(spec=st.sampled_from(sorted(BUDGETS)))
    def budget_is_edited(self, spec: str) -> None:
        edited = replace(BUDGETS[spec], generation=self.stored.budget.generation + 1)
        self._store(replace(self.stored, budget=edited))

    @invariant()
    def ledger_only_knows_pods_of_this_world(self) -> None:
        if hasattr(self, "stored"):
            known = {f"uid-{number + 1}" for number in range(self.number)}
            assert set(self.stored.status.ledger) <= known


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=40, stateful_step_count=40)
