"""Inputs of wave plans for the rollout and the scale-down controller, read from the caches; and reservations.

`decide.wave` decides on these inputs. Only `reserve` writes, through the leader's status writer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Protocol

from zonewise.disruption.decide.backoff import RolloutBackoff
from zonewise.disruption.decide.budget import Budget, DisruptionKind, Enforcement
from zonewise.disruption.decide.ledger import ChargeSource, LedgerEntry
from zonewise.disruption.decide.pod_order import Domain
from zonewise.disruption.decide.pods import PodFacts
from zonewise.disruption.decide.verdict import BudgetCase
from zonewise.disruption.decide.wave import Wave, WaveCandidate, WavePick
from zonewise.disruption.decide.wave_budget import ClusterView, WaveBudget
from zonewise.disruption.watch.informers import DisruptionInformers
from zonewise.disruption.watch.replicas import WorkloadInformers
from zonewise.kube.clock import utc_now
from zonewise.kube.wire.errors import Conflict
from zonewise.objects import Key, micro_time
from zonewise.topology import zone_of

UNCOUNTED_SECONDS: Final = 1.0
"""When to plan again if a budget could not be counted because watches fail: no event tells that they work again."""


class Reservations(Protocol):
    """The leader's budgets: their fresh counts, and charges for a wave."""

    def fresh(self, key: Key) -> BudgetCase | None:
        """Counted now, with every charge this process knows of; None while that is impossible."""
        ...

    async def reserve(self, charges: Mapping[Key, Sequence[LedgerEntry]]) -> Collection[str]:
        """Charges with one write per budget. Returns the uids that are in the ledgers of all their budgets."""
        ...

    def give_back(self, uids: Collection[str]) -> None:
        """These pods stay after all: their entries are removed with the next write."""
        ...

    def hold(self, key: Key, holder: str) -> None:
        """`holder` will reserve soon: rising numbers are not written until then."""
        ...

    def release(self, key: Key, holder: str) -> None: ...


class Planner:
    def __init__(
        self, informers: DisruptionInformers, reservations: Reservations, workloads: WorkloadInformers
    ) -> None:
        self.informers = informers
        self._reservations = reservations
        self._workloads = workloads

    def budgets(self, pods: Iterable[PodFacts]) -> dict[Key, Budget]:
        """All budgets that select one of the pods."""
        return {budget.key: budget for pod in pods for budget in self.informers.budgets_of(pod)}

    def is_guarded(self, pods: Iterable[PodFacts]) -> bool:
        """Whether the workload's own controller needs a grant to delete one of its pods; labels may differ among them."""
        return any(_guards(budget) for pod in pods for budget in self.informers.budgets_of(pod))

    def wave_budget(
        self, budgets: Iterable[Budget], kind: DisruptionKind, source: ChargeSource, unlimited_pods: int | None
    ) -> WaveBudget | None:
        """None if a budget has not been counted yet."""
        cases: dict[Key, BudgetCase] = {}
        for budget in budgets:
            case = self._reservations.fresh(budget.key)
            if case is None:
                return None
            cases[budget.key] = case
        cluster = ClusterView(
            node_domains=self.informers.node_domains,
            workloads=self._workloads.desired,
            selecting=lambda pod: [budget.key for budget in self.informers.budgets_of(pod)],
            pdbs=self.informers.pdbs_of,
            peers=lambda pod: self.informers.pods_of(pod.controller_uid),
            replaced=self.informers.is_replaced,
        )
        return WaveBudget(cluster, cases, kind, source, micro_time(utc_now()), unlimited_pods)

    async def reserve(self, wave: Wave, holder: str) -> list[WavePick]:
        """The pods of the wave that are charged to all their budgets now, so that they may go. Raises Conflict if there are none."""
        reserved = await self._reservations.reserve(wave.charges) if wave.charges else ()
        picks = [pick for pick in wave.picks if not pick.charge.charges or pick.candidate.uid in reserved]
        if not picks:
            raise Conflict(
                "another client was charged what the wave was planned with", action=f"reserving for {holder}"
            )
        return picks

    def candidates(
        self,
        pods: Iterable[PodFacts],
        budgets: Sequence[Budget],
        ranks: Mapping[str, tuple[int | str, ...]],
        wave_budget: WaveBudget,
        backoff: RolloutBackoff,
    ) -> list[WaveCandidate]:
        """`ranks` by uid. A pod's domain is that of the first budget with split keys, or its zone."""
        node_domains = self.informers.node_domains
        charged = {uid for case in wave_budget.cases.values() for uid in case.status.ledger}
        return [
            WaveCandidate(
                pod,
                self.domain(pod, budgets),
                ranks[pod.uid],
                alike=tuple(node_domains.domain_key(budget, pod) for budget in budgets),
                first=pod.uid in charged,
                refusal_rank=backoff.pod_refusal_rank(pod.uid),
            )
            for pod in pods
        ]

    def domain(self, pod: PodFacts, budgets: Sequence[Budget]) -> Domain:
        for budget in budgets:
            if budget.split_keys:
                return self.informers.node_domains.domain_key(budget, pod).domain
        node = self.informers.nodes.get(Key("", pod.node))
        return (zone_of(node.metadata.labels) or "") if node else ""

    def node_labels(self, pods: Iterable[PodFacts]) -> dict[str, dict[str, str]]:
        nodes = {pod.node: self.informers.nodes.get(Key("", pod.node)) for pod in pods}
        return {name: node.metadata.labels for name, node in nodes.items() if node is not None}

    def cordoned(self, pods: Iterable[PodFacts]) -> dict[str, bool]:
        names = {pod.node for pod in pods}
        nodes = {name: self.informers.nodes.get(Key("", name)) for name in names}
        return {name: node is not None and node.spec.unschedulable for name, node in nodes.items()}


def _guards(budget: Budget) -> bool:
    return budget.enforcement is Enforcement.ENFORCE and DisruptionKind.CONTROLLER_DELETES in budget.apply_to
