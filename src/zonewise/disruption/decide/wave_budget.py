"""What budgets and stock PDBs have left, as a working copy from which the pods of one wave are paid for. Pure.

`waves` pays pod after pod. Ours are judged as a webhook would judge them; of the stock ones what they publish is
counted down, so that no pod is tried which the API server would refuse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from zonewise import topology
from zonewise.disruption.decide.budget import DisruptionKind
from zonewise.disruption.decide.ledger import ChargeSource, Ledger, LedgerEntry
from zonewise.disruption.decide.pdb import refusal
from zonewise.disruption.decide.pods import NodeDomains, PodFacts, PodStage, Workloads, owner_of
from zonewise.disruption.decide.reason import DisruptionCode
from zonewise.disruption.decide.status import charged
from zonewise.disruption.decide.verdict import BudgetCase, BudgetVerdict, EvictionVerdict, PodVerdict, judge
from zonewise.disruption.decide.wave import ChargeOutcome, WaveCharge
from zonewise.objects import Key, key_of
from zonewise.objects.policy import PodDisruptionBudget

_UNLIMITED: Final = frozenset({DisruptionCode.NOT_COVERED, DisruptionCode.NOT_ENFORCED, DisruptionCode.NOT_APPLIED})
"""Why a budget lets a pod go without having an opinion on how many may."""

_ONE_AT_A_TIME: Final = topology.Reason(
    "OneAtATime", "no budget says how many pods like it may be away, so they go one at a time, as in a stock rollout"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """What is known around the pods: the budgets and the stock PDBs that select one, and the pods of its ReplicaSet."""

    atlas: NodeDomains
    workloads: Workloads
    selecting: Callable[[PodFacts], Sequence[Key]]
    stock: Callable[[PodFacts], Sequence[PodDisruptionBudget]] = lambda _pod: ()
    peers: Callable[[PodFacts], Iterable[PodFacts]] = lambda _pod: ()
    replaced: Callable[[PodFacts, Ledger], bool] = lambda _pod, _ledger: False
    """Whether its controller makes another for it, with the pods of this ledger gone."""


@dataclass(slots=True)
class WaveBudget:
    """`unlimited_left`: how many ready pods may go that no budget limits; None for any number."""

    world: ClusterView
    cases: dict[Key, BudgetCase]
    request: DisruptionKind = DisruptionKind.EVICTIONS
    source: ChargeSource = ChargeSource.ROLLOUT
    time: str = ""
    unlimited_left: int | None = None
    _stock_spent: dict[Key, int] = field(default_factory=dict)

    def pay(self, pod: PodFacts) -> WaveCharge:
        judgements = self._judge(pod)
        if judgements.verdict is EvictionVerdict.DENY:
            return WaveCharge(ChargeOutcome.HELD, {}, tuple(denial.reason for denial in judgements.denials))
        stock = self._stock(pod)
        if held_by := self._held_by(pod, judgements, stock):
            return WaveCharge(ChargeOutcome.HELD, {}, (held_by,))
        self._spend(pod, judgements, stock)
        return self._charge(pod, judgements)

    def _judge(self, pod: PodFacts) -> PodVerdict:
        cases = [self.cases[key] for key in sorted(self.world.selecting(pod)) if key in self.cases]
        owner, atlas = owner_of(pod, self.world.workloads), self.world.atlas
        each = (judge(case, pod, atlas, self._peers(pod, case), self.request, cases, owner) for case in cases)
        return PodVerdict(tuple(each))

    def _peers(self, pod: PodFacts, case: BudgetCase) -> Sequence[PodFacts]:
        """Those that could go in its place: none, where it is evicted and comes back."""
        if not case.status.numbers.any_surplus:
            return ()
        evicted = self.request is DisruptionKind.EVICTIONS
        return () if evicted and self.world.replaced(pod, case.status.ledger) else tuple(self.world.peers(pod))

    def _charge(self, pod: PodFacts, judgements: PodVerdict) -> WaveCharge:
        entries = {each.budget: self._entry(pod, each) for each in judgements.each if self._relies(pod, each)}
        for judgement in judgements.charges:
            case = self.cases[judgement.budget]
            entry = self._entry(pod, judgement)
            replaced = self.world.replaced(pod, case.status.ledger)
            after = charged(case.budget, case.status, [entry], replaced=replaced)
            self.cases[judgement.budget] = replace(case, status=after)
            entries[judgement.budget] = entry
        return WaveCharge(ChargeOutcome.CHARGED if entries else ChargeOutcome.FREE, entries)

    def _entry(self, pod: PodFacts, judgement: BudgetVerdict) -> LedgerEntry:
        owner, domain = owner_of(pod, self.world.workloads), judgement.domain
        return LedgerEntry(uid=pod.uid, name=pod.name, domain=domain, owner=owner, time=self.time, source=self.source)

    def _relies(self, pod: PodFacts, judgement: BudgetVerdict) -> bool:
        """On a charge that its maker may take back: an eviction renews it, of a grant nobody else would hear."""
        if self.source is not ChargeSource.SCALE_DOWN or judgement.reason.code is not DisruptionCode.ALREADY_CHARGED:
            return False
        entry = self.cases[judgement.budget].status.ledger[pod.uid]
        return entry.source is not ChargeSource.SCALE_DOWN and not entry.confirmed

    def _held_by(
        self, pod: PodFacts, judgements: PodVerdict, stock: Sequence[PodDisruptionBudget]
    ) -> topology.Reason | None:
        if refused := refusal(pod, stock, self._stock_spent):
            return refused.reason
        if self.unlimited_left == 0 and _is_unlimited(pod, judgements, stock):
            return _ONE_AT_A_TIME
        return None

    def _spend(self, pod: PodFacts, judgements: PodVerdict, stock: Sequence[PodDisruptionBudget]) -> None:
        if self.unlimited_left is not None and _is_unlimited(pod, judgements, stock):
            self.unlimited_left -= 1
        if pod.ready:
            for pdb in stock:
                self._stock_spent[key_of(pdb)] = self._stock_spent.get(key_of(pdb), 0) + 1

    def _stock(self, pod: PodFacts) -> Sequence[PodDisruptionBudget]:
        """Only an eviction asks them, and only about a pod that runs."""
        runs = pod.stage is PodStage.RUNNING and not pod.terminating
        return self.world.stock(pod) if runs and self.request is DisruptionKind.EVICTIONS else ()


def _is_unlimited(pod: PodFacts, judgements: PodVerdict, stock: Sequence[PodDisruptionBudget]) -> bool:
    if stock or not pod.ready or not pod.active:
        return False
    return all(judgement.reason.code in _UNLIMITED for judgement in judgements.each)
