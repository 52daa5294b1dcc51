"""Simulated cluster for the state machine: the real state, webhooks that judge and charge, and a leader that counts.

Webhooks read, judge and write; the leader looks, counts and writes; either may crash in between. The check only uses how
many pods each zone should have: whenever a pod is charged, enough of the others serve.

A ReplicaSet makes pods while it has too few, in whatever zone. A StatefulSet recreates the pods of its ordinals, each in
its own zone, whatever it has beyond them.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from unit.disruption.build import NOW, STATEFUL
from unit.disruption.simulation_parts import BUDGETS, OWNERS, ZONES, Flight, Leader, Met, Stored
from zonewise.disruption.decide.allowance import level_down
from zonewise.disruption.decide.budget import Budget, UnhealthyPolicy
from zonewise.disruption.decide.ledger import LedgerEntry, update_ledger
from zonewise.disruption.decide.pods import ControllerRef, NodeDomains, PodFacts, PodStage, Workload, ordinal
from zonewise.disruption.decide.reason import DisruptionCode
from zonewise.disruption.decide.status import PublishedStatus, charged, published, recollect
from zonewise.disruption.decide.verdict import BudgetCase, BudgetVerdict, EvictionVerdict, judge
from zonewise.topology import ZONE


class SimulatedCluster:
    def __init__(self, spec: str, per_zone: int, controller: ControllerRef) -> None:
        self.now, self.number, self.bound = 0.0, 0, 0
        self.controller, self.owner = controller, OWNERS[controller]
        self.nodes = {f"{zone}{number}": {ZONE: zone} for zone in ZONES for number in range(2)}
        self.nodes_before = [self.nodes]
        self.desired = per_zone * len(ZONES)
        self.shares = dict.fromkeys(ZONES, per_zone)
        self.met: Met | None = None
        self.shrunk = self.mixed = False
        self.pods: dict[str, PodFacts] = {}
        self.homes = dict(enumerate(ZONES * per_zone))
        for number in range(per_zone):
            for zone in ZONES:
                self.add(f"{zone}{number % 2}", ready=True)
        self.flights: list[Flight] = []
        self.stored = Stored(BUDGETS[spec], PublishedStatus())
        self.history = [self.stored]
        self.published_disruptions = set[str]()
        self.new_leader()
        self.lead()

    # The real state.

    def add(self, node: str = "", *, ready: bool = False) -> None:
        self.number += 1
        uid = f"uid-{self.number}"
        name = f"db-{self.lacking[0]}" if self.ordered else uid
        stage = PodStage.RUNNING if node else PodStage.PENDING
        self.pods[uid] = PodFacts(
            uid=uid, name=name, namespace="shop", node=node, controller=self.controller, ready=ready, stage=stage
        )

    def change(self, uid: str, **facts: object) -> None:
        self.pods[uid] = msgspec.structs.replace(self.pods[uid], **facts)

    def bind(self, uid: str, node: str) -> None:
        self.bound += 1
        self.change(uid, node=node, stage=PodStage.RUNNING)

    def lose(self, uid: str) -> None:
        """Without a charge."""
        del self.pods[uid]
        self.share_out()

    @property
    def ordered(self) -> bool:
        return self.controller == STATEFUL

    @property
    def lacking(self) -> list[int]:
        """Ordinals that the StatefulSet wants and no pod has: one that is terminating still has its name."""
        taken = {ordinal(pod.name) for pod in self.pods.values()}
        return [number for number in range(self.desired) if number not in taken]

    @property
    def kept(self) -> Counter[str]:
        """How many of the ordinals that the StatefulSet wants belong to each zone."""
        return Counter(self.homes[number] for number in range(self.desired))

    def comes_back(self, pod: PodFacts) -> bool:
        return self.ordered and ordinal(pod.name) < self.desired

    def nodes_for(self, uid: str) -> list[str]:
        """Those of a zone that lacks one, and of a StatefulSet that one."""
        held, home = self.held, self.homes[ordinal(self.pods[uid].name)] if self.ordered else None
        return [
            node
            for node, labels in self.nodes.items()
            if (held[labels[ZONE]] < self.shares[labels[ZONE]] if home is None else labels[ZONE] == home)
        ]

    @property
    def unreplaced(self) -> bool:
        """Whether the controller has a pod to make."""
        if self.ordered:
            return bool(self.lacking)
        return sum(not pod.terminating for pod in self.pods.values()) < self.desired

    @property
    def held(self) -> Counter[str]:
        """Pods that are there, by zone."""
        return Counter(self._zone(pod) for pod in self.pods.values() if pod.active)

    def serving(self, *, charged_too: bool = True) -> Counter[str]:
        """Pods that are ready and, unless `charged_too`, not in the ledger, by zone."""
        ledger = self.stored.status.ledger
        return Counter(
            self._zone(pod)
            for pod in self.pods.values()
            if pod.active and pod.ready and (charged_too or pod.uid not in ledger)
        )

    @property
    def whole(self) -> bool:
        """Every zone has what it should."""
        if self.ordered:
            return self.serving() == self.kept and len(self.pods) == self.desired
        return self.serving() == Counter(self.shares) and len(self.pods) == sum(self.shares.values())

    def share_out(self) -> None:
        """While there are enough pods none is missing, wherever they are: no zone is owed more than it has.

        A StatefulSet's are missed one by one.
        """
        if self.ordered:
            return
        ledger = self.stored.status.ledger
        held = Counter(self._zone(pod) for pod in self.pods.values() if pod.active and pod.uid not in ledger)
        if held.total() == self.desired:
            self.shares = {zone: held[zone] for zone in ZONES}
        elif held.total() > self.desired:
            self.shares = {zone: min(share, held[zone]) for zone, share in self.shares.items()}

    def shrink(self, less: int) -> None:
        shares = self.kept if self.ordered else self.shares
        self.desired, self.shrunk = max(0, self.desired - less), True
        level = level_down(shares.values(), self.desired)
        if self.ordered:
            shares = self.kept
            self.shares = {zone: shares[zone] if level is None else min(shares[zone], level) for zone in ZONES}
            return
        self.shares = {zone: share if level is None else min(share, level) for zone, share in self.shares.items()}
        self.share_out()

    def relabel(self, node: str, zone: str) -> None:
        """What the zones should have is then what they have."""
        self.nodes = {**self.nodes, node: {ZONE: zone}}
        self.nodes_before.append(self.nodes)
        if self.ordered:
            self.homes |= {ordinal(pod.name): self._zone(pod) for pod in self.pods.values()}
        self.shares = {name: self.serving()[name] for name in ZONES}

    @property
    def is_observed(self) -> bool:
        """Whether the leader has counted by the spec that stands."""
        return self.stored.status.observed_generation == self.stored.budget.generation

    def edit(self, spec: str) -> None:
        edited = replace(BUDGETS[spec], generation=self.stored.budget.generation + 1)
        self._store(replace(self.stored, budget=edited))

    def _zone(self, pod: PodFacts) -> str:
        return self.nodes[pod.node][ZONE]

    def _store(self, stored: Stored) -> None:
        self.stored = replace(stored, version=self.stored.version + 1)
        self.history.append(self.stored)

    # Webhooks.

    def ask(self, pod: PodFacts, age: int = 0, nodes_age: int = 0) -> Flight | None:
        """On a version, and on nodes, that may be old; whatever is not proven by a write is looked up in the newest ones."""
        read = self.history[-1 - min(age, len(self.history) - 1)]
        nodes = self.nodes_before[-1 - min(nodes_age, len(self.nodes_before) - 1)] if pod.ready else self.nodes
        if self._is_elsewhere(pod, read.budget, nodes):
            return None
        judged = self._judged(read, pod, nodes)
        if judged.reason.code is DisruptionCode.NOT_COVERED:
            read, judged = self.stored, self._judged(self.stored, pod, self.nodes)
        if judged.verdict is EvictionVerdict.CHARGE:
            self.flights.append(Flight(pod, judged.domain, read))
            return self.flights[-1]
        if (
            judged.verdict is EvictionVerdict.ALLOW
            and self._judged(self.stored, pod, self.nodes).verdict is EvictionVerdict.ALLOW
        ):
            self.take(pod)
        return None

    def _is_elsewhere(self, pod: PodFacts, budget: Budget, nodes: Mapping[str, Mapping[str, str]]) -> bool:
        """A known limit: charged to the zone where its node was, if that is under the budget as well."""
        before, now = NodeDomains(nodes).domain_key(budget, pod), NodeDomains(self.nodes).domain_key(budget, pod)
        return before != now and before.covered and now.covered

    def drain(self, node: str) -> None:
        """All pods of a node are asked for, one right after the other."""
        for pod in [pod for pod in self.pods.values() if pod.node == node]:
            if flight := self.ask(pod):
                self.commit(flight)

    def commit(self, flight: Flight) -> None:
        if flight.read.version != self.stored.version:
            self.flights.remove(flight)
            return
        disrupted = self._disrupted()
        time = f"{NOW} {self.stored.version}"  # no two charges of a pod have the same
        entry = LedgerEntry(
            uid=flight.pod.uid, name=flight.pod.name, domain=flight.domain, owner=self.owner.uid, time=time
        )
        back = self.comes_back(flight.pod)
        self._store(
            replace(self.stored, status=charged(self.stored.budget, self.stored.status, [entry], replaced=back))
        )
        flight.committed_at = self.now
        if flight.pod.uid in self.pods:
            self._judge_promise(flight.domain, disrupted)
        self.share_out()

    def take(self, pod: PodFacts) -> None:
        """The API server evicts it."""
        uncharged = pod.active and pod.uid not in self.stored.status.ledger
        if uncharged:
            self._judge_uncharged(pod)
        if pod.pending:
            del self.pods[pod.uid]
        else:
            self.change(pod.uid, disruption_target=True, terminating=True)
        if uncharged:
            self.share_out()

    def _judged(self, read: Stored, pod: PodFacts, nodes: Mapping[str, Mapping[str, str]]) -> BudgetVerdict:
        return judge(
            BudgetCase(read.budget, read.status),
            pod,
            NodeDomains(nodes),
            tuple(self.pods.values()),
            owner=self.owner.uid,
        )

    # The leader.

    def new_leader(self) -> None:
        pods, nodes, disrupted = dict(self.pods), dict(self.nodes), self._disrupted()
        self.leader = Leader(pods, nodes, self.desired, self.now, self.bound, disrupted)

    def look(self) -> None:
        leader = self.leader
        leader.pods, leader.nodes = dict(self.pods), dict(self.nodes)
        leader.desired, leader.looked_at, leader.bound = self.desired, self.now, self.bound
        leader.disrupted = self._disrupted()

    def count(self) -> None:
        leader, stored = self.leader, self.stored
        before = recollect(stored.budget, stored.status, leader.before)
        self._note_what_is_forgotten(forgotten=before.rule != leader.before.rule and not before.use_ledger)
        updated = update_ledger(stored.status.ledger, leader.sightings, leader.pods, self.now)
        ordinals = range(leader.desired) if self.ordered else None
        workload = {self.owner.uid: Workload(self.owner, leader.desired, ordinals=ordinals)}
        node_domains = NodeDomains(leader.nodes)
        pod_count = before.count(stored.budget, leader.pods.values(), node_domains, workload, updated.ledger)
        leader.sightings, leader.before = updated.sightings, replace(before, owner_slots=pod_count.owner_slots)
        after = published(stored.budget, pod_count, updated.ledger, (), NOW)
        leader.draft = (stored.version, after, leader.disrupted)

    def write(self) -> None:
        if self.leader.draft is None:
            return
        version, status, disrupted = self.leader.draft
        self.leader.draft = None
        if version == self.stored.version:
            self.published_disruptions = disrupted
            if status != self.stored.status:
                self._store(replace(self.stored, status=status))

    def lead(self) -> None:
        self.look()
        self.count()
        self.write()

    # Checks.

    def _judge_promise(self, zone: str, disrupted: set[str]) -> None:
        """`disrupted` were so before. A zone that is whole must wait for others, one that is not need not.

        Nor need one that became whole since the last publication.
        """
        self._note_what_is_mixed()
        self._judge_shares()
        left, floor = self._left(zone), self._floor(zone)
        assert left >= floor, f"{left} left in {zone}, must be {floor}"
        most = self.stored.budget.max_disrupted_domains
        certain = self.met is None and not self.mixed
        if most is not None and zone not in disrupted | self.published_disruptions and certain:
            assert len(disrupted) < most, f"{zone} is whole, and {disrupted} are not"

    def _judge_uncharged(self, pod: PodFacts) -> None:
        """Where the budget covers it, only one that is not ready, and only while enough of the others serve."""
        budget = self.stored.budget
        domain_key = NodeDomains(self.nodes).domain_key(budget, pod)
        if not domain_key.covered:
            return
        assert not pod.ready, f"ready pod {pod.uid} goes without a charge"
        if budget.unhealthy is UnhealthyPolicy.IF_HEALTHY_BUDGET:
            self._note_what_is_mixed()
            left, floor = self._left(domain_key.domain), self._floor(domain_key.domain)
            assert left >= floor, f"{pod.uid} is not ready, but {left} are left in {domain_key.domain}, must be {floor}"

    def _left(self, zone: str) -> int:
        serving = self.serving(charged_too=False)
        return serving.total() if self.stored.budget.whole else serving[zone]

    def _judge_shares(self) -> None:
        numbers = self.stored.status.numbers
        if self.mixed and not numbers.tally.surplus and self._covers_all_zones:
            shares = sum(domain.target for domain in numbers.domains.values()) + numbers.tally.unplaced
            assert shares >= self.desired, f"{shares} shares, {self.desired} wanted"

    @property
    def _covers_all_zones(self) -> bool:
        budget = self.stored.budget
        return not budget.whole and all(budget.domain_key({ZONE: zone}, "").covered for zone in ZONES)

    def _floor(self, domain: str) -> int:
        budget = self.stored.budget
        if budget.whole:
            return budget.desired(self.desired)
        share = self.shares[domain]
        if self.met is not None:
            nameless = max(0, self.met.nameless - (self.bound - self.met.bound))
            share = min(share, self.met.pods[domain] + nameless)
        if self.mixed:
            share = min(share, self.stored.status.numbers.domains[domain].target)
        return budget.desired(share)

    def _disrupted(self) -> set[str]:
        serving, shares = self.serving(charged_too=False), Counter(self.shares)
        if self.ordered:
            ledger = self.stored.status.ledger
            beyond = [pod for pod in self.pods.values() if not self.comes_back(pod) and pod.uid not in ledger]
            shares = self.kept + Counter(self._zone(pod) for pod in beyond if pod.active)
        return {zone for zone, share in shares.items() if serving[zone] < share}

    def _note_what_is_mixed(self) -> None:
        """`shrunk`: since a scale-down. `mixed`: since then, more pods were missing or charged than were in excess.

        Which of them are too many, and which will be missed, changes as they go, for what leaves first is not replaced.
        So until all is whole shares may move from zone to zone, but all of them together stay what is wanted.
        With a StatefulSet it is certain which are which.
        """
        ledger = self.stored.status.ledger
        staying = sum(pod.active and pod.uid not in ledger for pod in self.pods.values())
        self.mixed = self.shrunk and not self.ordered and (self.mixed or staying < self.desired)

    def _note_what_is_forgotten(self, *, forgotten: bool) -> None:
        """Until none is missing, the leader can only count on what `met` has, and does not know which zones are whole."""
        self._note_what_is_mixed()
        leader = self.leader
        members = [pod for pod in leader.pods.values() if not self.ordered or self.comes_back(pod)]
        met = Counter(leader.nodes[pod.node][ZONE] for pod in members if pod.active)
        stored = self.stored.status
        over = not stored.ledger and not stored.numbers.tally.surplus
        if self.shrunk and met.total() == len(leader.pods) == self.desired and over:
            self.shrunk = self.mixed = False
            self.shares = {zone: met[zone] for zone in ZONES}
        if met.total() >= leader.desired:
            self.met = None
        elif forgotten:
            leaving = sum(pod.terminating for pod in members)
            self.met = Met(met, max(0, leader.desired - met.total() - leaving), leader.bound)
