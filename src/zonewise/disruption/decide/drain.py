"""Plan of a node drain: the waves in which pods would leave, and the pods that would never go. Pure.

Simulates the drain on a copy of the cluster. Each wave is planned like a wave of a rollout, by the verdicts of webhooks and
by what stock PDBs publish. Then its pods come back, ready, on other nodes, in the same zone if it has one. Like
`kubectl drain` it goes node by node, and stays at a node until its last pod has left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from zonewise.disruption.decide.budget import Budget
from zonewise.disruption.decide.ledger import ChargeSource, Ledger
from zonewise.disruption.decide.pdb import SEVERAL
from zonewise.disruption.decide.pods import (
    NodeDomains,
    PodFacts,
    PodStage,
    Workloads,
    comes_back,
    gives_up,
    ordinal,
    staying,
)
from zonewise.disruption.decide.status import PublishedStatus, Recollection, published, recollect
from zonewise.disruption.decide.verdict import BudgetCase
from zonewise.disruption.decide.wave import Wave, WaveCandidate, WavePick, next_wave
from zonewise.disruption.decide.wave_budget import ClusterView, WaveBudget
from zonewise.objects import Key, key_of
from zonewise.objects.policy import PodDisruptionBudget
from zonewise.topology import Reason, zone_of

_STAYS_WITH_NODE: Final = {
    "DaemonSet": Reason(
        "DaemonSetPod", "belongs to a DaemonSet: kubectl drain passes it over with --ignore-daemonsets"
    ),
    "Node": Reason("MirrorPod", "is a static pod of the node itself: no drain moves it"),
}
UNMANAGED: Final = Reason("Unmanaged", "no controller will replace it: kubectl drain takes it only with --force")
EMPTY_DIR: Final = Reason(
    "EmptyDir",
    "has an emptyDir volume, whose data goes with it: kubectl drain takes no pod of the node without --delete-emptydir-data",
)
BEHIND: Final = Reason("BehindAnotherNode", "kubectl drain never comes to this node: the one before it keeps a pod")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainView:
    """As read from a live cluster. `statuses` are what budgets publish, by their keys.

    `guards`: whether the eviction webhook covers a namespace; budgets elsewhere hold nothing.
    `empty_dirs`: uids of the pods that have an emptyDir volume.
    """

    pods: Sequence[PodFacts]
    nodes: Mapping[str, Mapping[str, str]]
    unschedulable: frozenset[str] = frozenset()
    budgets: Sequence[Budget] = ()
    statuses: Mapping[Key, PublishedStatus] = field(default_factory=dict)
    stock: Sequence[PodDisruptionBudget] = ()
    stock_selects: Callable[[PodDisruptionBudget, PodFacts], bool] = lambda _pdb, _pod: False
    workloads: Workloads = field(default_factory=dict)
    guards: Callable[[str], bool] = lambda _namespace: True
    empty_dirs: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LeavingPlan:
    """`held_by`: what kept it from going with an earlier wave. `charges`: the budgets it is charged to, with the domain.

    `remarks`: the flags that kubectl drain needs to take it.
    """

    pod: PodFacts
    charges: Mapping[Key, str]
    held_by: tuple[Reason, ...] = ()
    remarks: tuple[Reason, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedWave:
    """`after_others`: it can only go once the current disruptions are over."""

    node: str
    pods: tuple[LeavingPlan, ...]
    after_others: bool = False


@dataclass(frozen=True, slots=True)
class StayingPlan:
    pod: PodFacts
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class DrainPlan:
    waves: tuple[PlannedWave, ...]
    never: tuple[StayingPlan, ...]
    passed_over: tuple[StayingPlan, ...]

    @property
    def charges(self) -> bool:
        """Whether a pod needs a charge: without a leader the guard charges none."""
        return any(plan.charges for wave in self.waves for plan in wave.pods)


def plan_drain(cluster: DrainView, nodes: Sequence[str]) -> DrainPlan:
    simulation = _Simulation(cluster, nodes)
    waves: list[PlannedWave] = []
    never: list[StayingPlan] = []
    passed_over: list[StayingPlan] = []
    for node in nodes:
        here = [pod for pod in cluster.pods if pod.node == node and not pod.terminating]
        passed_over += [StayingPlan(pod, (reason,)) for pod in here if (reason := _passed_over(pod))]
        leaving = [pod for pod in here if _passed_over(pod) is None]
        if any(_is_retried(plan) for plan in never):
            never += [StayingPlan(pod, (BEHIND,)) for pod in leaving]
        else:
            drained, left = simulation.drain(node, leaving)
            waves += drained
            never += left
    return DrainPlan(tuple(waves), tuple(never), tuple(passed_over))


def _is_retried(plan: StayingPlan) -> bool:
    """kubectl drain retries after a 429; after any other refusal it gives the node up and takes the next."""
    return any(reason.code != SEVERAL for reason in plan.reasons)


def _passed_over(pod: PodFacts) -> Reason | None:
    return _STAYS_WITH_NODE.get(pod.controller.kind) if pod.controller else None


class _Simulation:
    """The copy of the cluster on which the drain is simulated."""

    def __init__(self, cluster: DrainView, drained: Iterable[str]) -> None:
        self._cluster = cluster
        self._drained = frozenset(drained)
        self._node_domains = NodeDomains(cluster.nodes)
        here = [pod for pod in cluster.pods if pod.node in self._drained]
        namespaces = {pod.namespace for pod in here}
        self._pods = {pod.uid: pod for pod in cluster.pods if pod.namespace in namespaces}
        guarding = [budget for budget in cluster.budgets if cluster.guards(budget.key.namespace)]
        self._budgets = [budget for budget in guarding if any(_selects(budget, pod) for pod in here)]
        self._recounts: dict[Key, PodDisruptionBudget] = {}
        self._ledgers: dict[Key, Ledger] = {key: status.ledger for key, status in cluster.statuses.items()}
        self._before: dict[Key, Recollection] = {}
        self._settled = False

    def drain(self, node: str, pods: Sequence[PodFacts]) -> tuple[list[PlannedWave], list[StayingPlan]]:
        waves: list[PlannedWave] = []
        waiting = {pod.uid: pod for pod in pods}
        held_by: dict[str, tuple[Reason, ...]] = {}
        after_others = False
        while waiting:
            wave = self._plan(waiting.values())
            if not wave.picks and self._settled:
                return waves, [StayingPlan(held.candidate.pod, held.reasons) for held in wave.held]
            for held in wave.held:
                held_by.setdefault(held.candidate.uid, held.reasons)
            if wave.picks:
                leaving = tuple(self._leaving(pick, held_by) for pick in wave.picks)
                waves.append(PlannedWave(node, leaving, after_others))
                self._replace([waiting.pop(pick.candidate.uid) for pick in wave.picks])
            after_others = not wave.picks
            self._settle()
        return waves, []

    def _plan(self, pods: Iterable[PodFacts]) -> Wave:
        self._recounts.clear()
        cases = {budget.key: self._case(budget) for budget in self._budgets}
        view = ClusterView(
            node_domains=self._node_domains,
            workloads=self._cluster.workloads,
            selecting=self._selecting,
            pdbs=self._stock,
            peers=self._peers,
            replaced=self._is_replaced,
        )
        wave_budget = WaveBudget(view, cases, source=ChargeSource.EVICTION)
        return next_wave([self._candidate(pod) for pod in pods], wave_budget)

    def _case(self, budget: Budget) -> BudgetCase:
        """As the next leader would count it from the status."""
        key, pods = budget.key, [pod for pod in self._pods.values() if _selects(budget, pod)]
        ledger, status = self._ledgers.get(key, {}), self._cluster.statuses.get(key, PublishedStatus())
        before = recollect(budget, status, self._before.get(key, Recollection()))
        pod_count = before.count(budget, pods, self._node_domains, self._cluster.workloads, ledger)
        self._before[key] = replace(before, owner_slots=pod_count.owner_slots)
        return BudgetCase(budget, published(budget, pod_count, ledger, (), ""))

    def _candidate(self, pod: PodFacts) -> WaveCandidate:
        budgets = [budget for budget in self._budgets if _selects(budget, pod)]
        domain_keys = tuple(self._node_domains.domain_key(budget, pod) for budget in budgets)
        alike = (pod.namespace, pod.controller_uid, domain_keys) if pod.controller else None
        return WaveCandidate(pod, str(pod.namespace), (pod.name,), alike)

    def _peers(self, pod: PodFacts) -> list[PodFacts]:
        return [peer for peer in self._pods.values() if peer.controller_uid == pod.controller_uid]

    def _is_replaced(self, pod: PodFacts, ledger: Ledger) -> bool:
        workload = self._cluster.workloads.get(pod.controller_uid)
        if workload is None or workload.ordinals is not None:
            return workload is not None and comes_back(pod.name, workload.ordinals)
        return not gives_up(staying(self._peers(pod), ledger), workload.own)

    def _selecting(self, pod: PodFacts) -> list[Key]:
        return [budget.key for budget in self._budgets if _selects(budget, pod)]

    def _stock(self, pod: PodFacts) -> list[PodDisruptionBudget]:
        selecting = [pdb for pdb in self._cluster.stock if self._cluster.stock_selects(pdb, pod)]
        return [self._recounted(pdb) for pdb in selecting] if self._settled else selecting

    def _recounted(self, pdb: PodDisruptionBudget) -> PodDisruptionBudget:
        """The PDB with the status it will publish once all leaving pods are back."""
        key = key_of(pdb)
        if key not in self._recounts:
            self._recounts[key] = self._recount(pdb)
        return self._recounts[key]

    def _recount(self, pdb: PodDisruptionBudget) -> PodDisruptionBudget:
        healthy = sum(
            pod.ready and not pod.terminating and self._cluster.stock_selects(pdb, pod) for pod in self._pods.values()
        )
        spare = max(0, healthy - pdb.status.desired_healthy) if pdb.status.expected_pods else 0
        status = msgspec.structs.replace(pdb.status, current_healthy=healthy, disruptions_allowed=spare)
        return msgspec.structs.replace(pdb, status=status)

    def _settle(self) -> None:
        """All current disruptions have ended: terminating and charged pods have come back."""
        charged = {uid for ledger in self._ledgers.values() for uid in ledger}
        charged -= {pod.uid for pod in self._pods.values() if pod.node in self._drained}
        self._replace([pod for pod in self._pods.values() if pod.terminating or pod.uid in charged])
        self._ledgers = {key: {} for key in self._ledgers}
        self._settled = True

    def _replace(self, pods: Iterable[PodFacts]) -> None:
        for pod in pods:
            self._pods.pop(pod.uid, None)
            node = self._other_node(pod)
            if self._is_lacking(pod) and pod.stage is not PodStage.ENDED and node is not None:
                successor = msgspec.structs.replace(
                    pod,
                    uid=f"{pod.uid}+",
                    node=node,
                    ready=True,
                    terminating=False,
                    granted=False,
                    disruption_target=False,
                    stage=PodStage.RUNNING,
                )
                self._pods[successor.uid] = successor

    def _is_lacking(self, pod: PodFacts) -> bool:
        """Whether its controller still lacks a pod: while a pod terminates, its successor may exist already."""
        if not pod.controller:
            return False
        workload = self._cluster.workloads.get(pod.controller_uid)
        if workload is None:
            return True
        if workload.ordinals is not None and ordinal(pod.name) >= 0:
            return comes_back(pod.name, workload.ordinals)
        desired = workload.desired if workload.own is None else workload.own
        return sum(peer.active for peer in self._peers(pod)) < desired

    def _leaving(self, pick: WavePick, held_by: Mapping[str, tuple[Reason, ...]]) -> LeavingPlan:
        pod = pick.candidate.pod
        charges = {budget: entry.domain for budget, entry in pick.charge.charges.items()}
        has_empty_dir = pod.uid in self._cluster.empty_dirs and pod.stage is not PodStage.ENDED
        remarks = ((UNMANAGED,) if pod.controller is None else ()) + ((EMPTY_DIR,) if has_empty_dir else ())
        return LeavingPlan(pod, charges, held_by.get(pod.uid, ()), remarks)

    def _other_node(self, pod: PodFacts) -> str | None:
        zone = zone_of(self._cluster.nodes.get(pod.node, {}))
        free = sorted(set(self._cluster.nodes) - self._drained - self._cluster.unschedulable)
        near = [name for name in free if zone_of(self._cluster.nodes[name]) == zone]
        return next(iter(near or free), None)


def _selects(budget: Budget, pod: PodFacts) -> bool:
    return budget.key.namespace == pod.namespace and budget.selects(pod.labels)
