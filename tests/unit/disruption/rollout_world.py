"""A StatefulSet on paper: pods that terminate, come back with the new revision and become ready, one event at a time.

What is counted, planned and charged is done by the real functions; whether a budget is kept is counted here on its own.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from unit.disruption.build import NODES, NOW, STATEFUL, pod, workloads
from zonewise.disruption.decide.budget import Budget
from zonewise.disruption.decide.count import Places, count
from zonewise.disruption.decide.ledger import Ledger, charge, refund
from zonewise.disruption.decide.pod_order import PodOrder
from zonewise.disruption.decide.pods import REVISION, NodeDomains, PodFacts
from zonewise.disruption.decide.status import published
from zonewise.disruption.decide.verdict import BudgetCase
from zonewise.disruption.decide.wave import Wave, WaveCandidate, WaveLimits, next_wave
from zonewise.disruption.decide.wave_budget import ClusterView, WaveBudget

NEW, OLD = {REVISION: "new"}, {REVISION: "old"}


@dataclass
class Rollout:
    budgets: Sequence[Budget]
    pods: dict[str, PodFacts]
    desired: int
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    places: dict[str, Places] = field(default_factory=dict)
    evicted: list[str] = field(default_factory=list)
    atlas: NodeDomains = field(default_factory=lambda: NodeDomains(NODES))

    @classmethod
    def of(cls, shape: str, *budgets: Budget) -> "Rollout":
        counts = zip("abcdef", map(int, shape.split("/")), strict=False)
        names = [f"{zone}{index}" for zone, number in counts for index in range(number)]
        pods = {name: pod(name, controller=STATEFUL, labels=OLD) for name in names}
        made = cls(budgets, pods, len(pods))
        made.count()
        return made

    @property
    def old(self) -> list[PodFacts]:
        return [known for known in self.pods.values() if known.revision == "old" and not known.terminating]

    @property
    def finished(self) -> bool:
        return all(known.revision == "new" and known.ready for known in self.pods.values())

    def count(self) -> dict[str, BudgetCase]:
        """As the leader does after every event, so that it knows where pods were."""
        cases = {}
        owners = workloads(self.desired)
        for budget in self.budgets:
            name = budget.key.name
            ledger = self.ledgers.get(name, {})
            census = count(budget, self.pods.values(), self.atlas, owners, ledger, self.places.get(name, {}))
            self.places[name] = census.places
            cases[name] = BudgetCase(budget, published(budget, census, ledger, (), NOW))
        return cases

    def plan(self, limits: WaveLimits | None = None) -> Wave:
        cases = {case.budget.key: case for case in self.count().values()}
        world = ClusterView(
            atlas=self.atlas,
            workloads=workloads(self.desired),
            selecting=lambda known: [budget.key for budget in self.budgets if budget.selects(known.labels)],
        )
        away = self.desired - sum(known.ready and not known.terminating for known in self.pods.values())
        purse = WaveBudget(world, cases, time=NOW, unlimited_left=max(0, 1 - away))
        candidates = [WaveCandidate(known, known.name[0], (known.name,), known.node) for known in self.old]
        return next_wave(candidates, purse, PodOrder.BY_DOMAIN, limits=limits or WaveLimits())

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
        for name, known in list(self.pods.items()):
            if known.terminating:
                self.replace(name)
            if not self.pods[name].ready:
                self.make_ready(name)

    def away(self) -> Counter[str]:
        return Counter(known.name[0] for known in self.pods.values() if known.terminating or not known.ready)

    def _change(self, name: str, **facts: bool) -> None:
        self.pods[name] = msgspec.structs.replace(self.pods[name], **facts)
