"""What `rollouts` and `scaledown` plan with: the purse of fresh numbers, and where pods stand, read from the caches.

What comes out is given to `waves`, which decides; only `reserve` then writes, through the leader's books.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

from zonewise.disruption.decide.budget import Budget, DisruptionKind, Enforcement
from zonewise.disruption.decide.ledger import ChargeSource, LedgerEntry
from zonewise.disruption.decide.pod_order import Domain
from zonewise.disruption.decide.pods import PodFacts
from zonewise.disruption.decide.verdict import BudgetCase
from zonewise.disruption.decide.wave import Wave, WaveCandidate, WavePick
from zonewise.disruption.decide.wave_budget import ClusterView, WaveBudget
from zonewise.disruption.watch.informers import DisruptionInformers
from zonewise.disruption.watch.replicas import WorkloadInformers
from zonewise.kube.controller.elector import utc_now
from zonewise.kube.wire.errors import Conflict
from zonewise.objects import Key, micro_time
from zonewise.topology import zone_of

UNCOUNTED_SECONDS: Final = 1.0
"""When to plan again where a budget could not be counted, because watches fail: nobody tells that they work again."""


class Reservations(Protocol):
    """The leader's books: what every budget has now, and the one way to take from it."""

    def fresh(self, key: Key) -> BudgetCase | None:
        """Counted now, with every charge this process knows of; None while it can't be."""
        ...

    async def reserve(self, wishes: Mapping[Key, Sequence[LedgerEntry]]) -> Collection[str]:
        """One write for each budget. The uids that stand in all their budgets' ledgers."""
        ...

    def give_back(self, uids: Collection[str]) -> None:
        """They stay for another reason: their entries go with the next write."""
        ...

    def hold(self, key: Key, who: str) -> None:
        """`who` is about to reserve: don't write what only raises numbers until then."""
        ...

    def release(self, key: Key, who: str) -> None: ...


class Planner:
    def __init__(self, sources: DisruptionInformers, reservations: Reservations, workloads: WorkloadInformers) -> None:
        self.sources = sources
        self._reservations = reservations
        self._workloads = workloads

    def budgets(self, pods: Iterable[PodFacts]) -> dict[Key, Budget]:
        """All that select one of the pods."""
        return {budget.key: budget for pod in pods for budget in self.sources.budgets_of(pod)}

    def is_guarded(self, pods: Iterable[PodFacts]) -> bool:
        """Whether the workload's own controller needs a grant to delete one of its pods; labels may differ among them."""
        return any(_guards(budget) for pod in pods for budget in self.sources.budgets_of(pod))

    def purse(
        self, budgets: Iterable[Budget], request: DisruptionKind, source: ChargeSource, unlimited_left: int | None
    ) -> WaveBudget | None:
        """None where a budget has not been counted yet."""
        cases: dict[Key, BudgetCase] = {}
        for budget in budgets:
            case = self._reservations.fresh(budget.key)
            if case is None:
                return None
            cases[budget.key] = case
        world = ClusterView(
            atlas=self.sources.atlas,
            workloads=self._workloads.wanted,
            selecting=lambda pod: [budget.key for budget in self.sources.budgets_of(pod)],
            stock=self.sources.pdbs_of,
            peers=lambda pod: self.sources.pods_of(pod.controller_uid),
            replaced=self.sources.is_replaced,
        )
        return WaveBudget(world, cases, request, source, micro_time(utc_now()), unlimited_left)

    async def reserve(self, wave: Wave, who: str) -> list[WavePick]:
        """Those of the wave whose places in all ledgers are taken now: they may go. Conflict where that is none."""
        reserved = await self._reservations.reserve(wave.charges) if wave.charges else ()
        picks = [pick for pick in wave.picks if not pick.payment.charges or pick.candidate.uid in reserved]
        if not picks:
            raise Conflict("another took what the wave was planned with", action=f"reserving for {who}")
        return picks

    def candidate(
        self, pod: PodFacts, budgets: Sequence[Budget], rank: tuple[int | str, ...], purse: WaveBudget, turn: int
    ) -> WaveCandidate:
        """Its domain is that of the first budget that splits, or its zone."""
        places = tuple(self.sources.atlas.place(budget, pod) for budget in budgets)
        charged = any(pod.uid in case.status.ledger for case in purse.cases.values())
        return WaveCandidate(pod, self.domain(pod, budgets), rank, places, charged, turn)

    def domain(self, pod: PodFacts, budgets: Sequence[Budget]) -> Domain:
        for budget in budgets:
            if budget.split_keys:
                return self.sources.atlas.place(budget, pod).domain
        node = self.sources.nodes.get(Key("", pod.node))
        return (zone_of(node.metadata.labels) or "") if node else ""

    def node_labels(self, pods: Iterable[PodFacts]) -> dict[str, dict[str, str]]:
        nodes = {pod.node: self.sources.nodes.get(Key("", pod.node)) for pod in pods}
        return {name: node.metadata.labels for name, node in nodes.items() if node is not None}

    def cordoned(self, pods: Iterable[PodFacts]) -> dict[str, bool]:
        names = {pod.node for pod in pods}
        nodes = {name: self.sources.nodes.get(Key("", name)) for name in names}
        return {name: node is not None and node.spec.unschedulable for name, node in nodes.items()}


def _guards(budget: Budget) -> bool:
    return budget.enforcement is Enforcement.ENFORCE and DisruptionKind.CONTROLLER_DELETES in budget.apply_to
