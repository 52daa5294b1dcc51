"""A StatefulSet on paper: pods that terminate, come back with the new revision and become ready, one event at a time.

What is counted, planned and charged is done by the real functions; whether a budget is kept is counted here on its own.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from unit.disruption.build import NODES, NOW, STATEFUL, pod, workloads
from zonewise.disruption.decide.budget import Budget
from zonewise.disruption.decide.count import OwnerSlots, count
from zonewise.disruption.decide.ledger import Ledger, charge, refund
from zonewise.disruption.decide.pod_order import PodOrder
from zonewise.disruption.decide.pods import REVISION, NodeDomains, PodFacts
from zonewise.disruption.decide.status import published
from zonewise.disruption.decide.verdict import BudgetCase
from zonewise.disruption.decide.wave import Wave, WaveCandidate, WaveLimits, next_wave
from zonewise.disruption.decide.wave_budget import ClusterView, WaveBudget

NEW, OLD = {REVISION: "new"}, {REVISION: "old"}


@dataclass
class SimulatedRollout:
    budgets: Sequence[Budget]
    pods: dict[str, PodFacts]
    desired: int
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    owner_slots: dict[str, OwnerSlots] = field(default_factory=dict)
    evicted: list[str] = field(default_factory=list)
    node_domains: NodeDomains = field(default_factory=lambda: NodeDomains(NODES))

    @classmethod
    def of(cls, shape: str, *budgets: Budget) -> "SimulatedRollout":
        counts = zip("abcdef", map(int, shape.split("/")), strict=False)
        names = [f"{zone}{index}" for zone, number in counts for index in range(number)]
        pods = {name: pod(name, controller=STATEFUL, labels=OLD) for name in names}
        rollout = cls(budgets, pods, len(pods))
        rollout.count()
        return rollout

    @property
    def old(self) -> list[PodFacts]:
        return [member for member in self.pods.values() if member.revision == "old" and not member.terminating]

    @property
    def finished(self) -> bool:
        return all(member.revision == "new" and member.ready for member in self.pods.values())

    def count(self) -> dict[str, BudgetCase]:
        """As the leader does after every event, so that it knows where pods were."""
        cases = {}
        owners = workloads(self.desired)
        for budget in self.budgets:
            name = budget.key.name
            ledger = self.ledgers.get(name, {})
            pod_count = count(
                budget, self.pods.values(), self.node_domains, owners, ledger, self.owner_slots.get(name, {})
            )
            self.owner_slots[name] = pod_count.owner_slots
            cases[name] = BudgetCase(budget, published(budget, pod_count, ledger, (), NOW))
        return cases

    def plan(self, limits: WaveLimits | None = None) -> Wave:
        cases = {case.budget.key: case for case in self.count().values()}
        cluster = ClusterView(
            node_domains=self.node_domains,
            workloads=workloads(self.desired),
            selecting=lambda member: [budget.key for budget in self.budgets if budget.selects(member.labels)],
        )
        away = self.desired - sum(member.ready and not member.terminating for member in self.pods.values())
        wave_budget = WaveBudget(cluster, cases, time=NOW, unlimited_pods=max(0, 1 - away))
        candidates = [WaveCandidate(member, member.name[0], (member.name,), member.node) for member in self.old]
        return next_wave(candidates, wave_budget, PodOrder.BY_DOMAIN, limits=limits or WaveLimits())

    def reserve(self, wave: Wave) -> None:
        for key, entries in wave.charges.items():
            self.ledgers[key.name] = charge(self.ledgers.get(key.name, {}), entries)

    def evict(self, name: str) -> None:
        self.evicted.append(name)
        self._change(name, terminating=True)

    def go(self) -> Wave:
        wave = self.plan()
        self.reserve(wave)
        for pick in wave.picks:
            self.evict(pick.candidate.pod.name)
        return wave

    def replace(self, name: str) -> None:
        """The terminating pod is gone, and one of the same name and another uid is there, not ready."""
        gone = self.pods[name]
        self.pods[name] = msgspec.structs.replace(gone, uid=f"{gone.uid}'", terminating=False, ready=False, labels=NEW)

    def make_ready(self, name: str) -> None:
        self._change(name, ready=True)
        uid = self.pods[name].uid.removesuffix("'")
        self.ledgers = {budget: refund(ledger, [uid]) for budget, ledger in self.ledgers.items()}

    def settle(self) -> None:
        for name, member in list(self.pods.items()):
            if member.terminating:
                self.replace(name)
            if not self.pods[name].ready:
                self.make_ready(name)

    def away(self) -> Counter[str]:
        return Counter(member.name[0] for member in self.pods.values() if member.terminating or not member.ready)

    def _change(self, name: str, **facts: bool) -> None:
        self.pods[name] = msgspec.structs.replace(self.pods[name], **facts)
