"""Working copy of budgets and stock PDBs, to which the pods of one wave are charged. Pure.

`wave` charges pod after pod. Our budgets are judged as a webhook would judge them. Of stock PDBs the published allowance
is counted down, so that no pod is tried which the API server would refuse.
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
"""Reasons with which a budget allows a pod without limiting how many may go."""

_ONE_AT_A_TIME: Final = topology.Reason(
    "OneAtATime", "no budget says how many pods like it may be away, so they go one at a time, as in a stock rollout"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Lookups for a pod: the budgets and the stock PDBs that select it, and the pods of its ReplicaSet."""

    node_domains: NodeDomains
    workloads: Workloads
    selecting: Callable[[PodFacts], Sequence[Key]]
    pdbs: Callable[[PodFacts], Sequence[PodDisruptionBudget]] = lambda _pod: ()
    peers: Callable[[PodFacts], Iterable[PodFacts]] = lambda _pod: ()
    replaced: Callable[[PodFacts, Ledger], bool] = lambda _pod, _ledger: False
    """Whether its controller makes another pod once the pods of this ledger are gone."""


@dataclass(slots=True)
class WaveBudget:
    """`unlimited_pods`: how many ready pods may still go that no budget limits; None for any number."""

    cluster: ClusterView
    cases: dict[Key, BudgetCase]
    kind: DisruptionKind = DisruptionKind.EVICTIONS
    source: ChargeSource = ChargeSource.ROLLOUT
    time: str = ""
    unlimited_pods: int | None = None
    _pdb_spent: dict[Key, int] = field(default_factory=dict)

    def charge(self, pod: PodFacts) -> WaveCharge:
        verdicts = self._judge(pod)
        if verdicts.verdict is EvictionVerdict.DENY:
            return WaveCharge(ChargeOutcome.HELD, {}, tuple(denial.reason for denial in verdicts.denials))
        pdbs = self._pdbs_of(pod)
        if held_by := self._held_by(pod, verdicts, pdbs):
            return WaveCharge(ChargeOutcome.HELD, {}, (held_by,))
        self._spend(pod, verdicts, pdbs)
        return self._charge(pod, verdicts)

    def _judge(self, pod: PodFacts) -> PodVerdict:
        cases = [self.cases[key] for key in sorted(self.cluster.selecting(pod)) if key in self.cases]
        owner, node_domains = owner_of(pod, self.cluster.workloads), self.cluster.node_domains
        verdicts = (judge(case, pod, node_domains, self._peers(pod, case), self.kind, cases, owner) for case in cases)
        return PodVerdict(tuple(verdicts))

    def _peers(self, pod: PodFacts, case: BudgetCase) -> Sequence[PodFacts]:
        """Pods that could go instead: none if it is evicted and replaced."""
        if not case.status.numbers.any_surplus:
            return ()
        evicted = self.kind is DisruptionKind.EVICTIONS
        return () if evicted and self.cluster.replaced(pod, case.status.ledger) else tuple(self.cluster.peers(pod))

    def _charge(self, pod: PodFacts, verdicts: PodVerdict) -> WaveCharge:
        entries = {
            verdict.budget: self._entry(pod, verdict) for verdict in verdicts.verdicts if self._relies(pod, verdict)
        }
        for verdict in verdicts.charges:
            case = self.cases[verdict.budget]
            entry = self._entry(pod, verdict)
            replaced = self.cluster.replaced(pod, case.status.ledger)
            after = charged(case.budget, case.status, [entry], replaced=replaced)
            self.cases[verdict.budget] = replace(case, status=after)
            entries[verdict.budget] = entry
        return WaveCharge(ChargeOutcome.CHARGED if entries else ChargeOutcome.FREE, entries)

    def _entry(self, pod: PodFacts, verdict: BudgetVerdict) -> LedgerEntry:
        owner, domain = owner_of(pod, self.cluster.workloads), verdict.domain
        return LedgerEntry(uid=pod.uid, name=pod.name, domain=domain, owner=owner, time=self.time, source=self.source)

    def _relies(self, pod: PodFacts, verdict: BudgetVerdict) -> bool:
        """Whether a grant relies on a charge that another client may take back. An eviction renews the charge; a grant must."""
        if self.source is not ChargeSource.SCALE_DOWN or verdict.reason.code is not DisruptionCode.ALREADY_CHARGED:
            return False
        entry = self.cases[verdict.budget].status.ledger[pod.uid]
        return entry.source is not ChargeSource.SCALE_DOWN and not entry.confirmed

    def _held_by(
        self, pod: PodFacts, verdicts: PodVerdict, pdbs: Sequence[PodDisruptionBudget]
    ) -> topology.Reason | None:
        if refused := refusal(pod, pdbs, self._pdb_spent):
            return refused.reason
        if self.unlimited_pods == 0 and _is_unlimited(pod, verdicts, pdbs):
            return _ONE_AT_A_TIME
        return None

    def _spend(self, pod: PodFacts, verdicts: PodVerdict, pdbs: Sequence[PodDisruptionBudget]) -> None:
        if self.unlimited_pods is not None and _is_unlimited(pod, verdicts, pdbs):
            self.unlimited_pods -= 1
        if pod.ready:
            for pdb in pdbs:
                self._pdb_spent[key_of(pdb)] = self._pdb_spent.get(key_of(pdb), 0) + 1

    def _pdbs_of(self, pod: PodFacts) -> Sequence[PodDisruptionBudget]:
        """PDBs only limit evictions, and only of running pods."""
        runs = pod.stage is PodStage.RUNNING and not pod.terminating
        return self.cluster.pdbs(pod) if runs and self.kind is DisruptionKind.EVICTIONS else ()


def _is_unlimited(pod: PodFacts, verdicts: PodVerdict, pdbs: Sequence[PodDisruptionBudget]) -> bool:
    if pdbs or not pod.ready or not pod.active:
        return False
    return all(verdict.reason.code in _UNLIMITED for verdict in verdicts.verdicts)
