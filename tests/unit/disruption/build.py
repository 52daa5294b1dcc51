"""Builders of budgets and small clusters of pods in zones: `spread("3/3/3").charged("a0").judge("a1", ACROSS)`."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from zonewise.disruption.decide.budget import Budget
from zonewise.disruption.decide.count import OwnerSlots, PodCount, count
from zonewise.disruption.decide.ledger import Ledger, LedgerEntry, ledger_of
from zonewise.disruption.decide.pods import ControllerRef, NodeDomains, Owner, PodFacts, PodStage, Workload, owner_of
from zonewise.disruption.decide.status import PublishedStatus, published
from zonewise.disruption.decide.verdict import BudgetCase, PodVerdict, judge_all
from zonewise.objects.policy import TopologyDisruptionBudget
from zonewise.topology import ZONE

NOW = "2026-11-16T06:00:00Z"
EXISTS = {"key": ZONE, "operator": "Exists"}
NOT_A = {"key": ZONE, "operator": "NotIn", "values": ["a"]}


def budget(*expressions: Mapping[str, Any], name: str = "web", **spec: Any) -> Budget:
    """`budget(EXISTS, maxUnavailable=1)`; with no expression there is no term. Selects all pods by default."""
    term = {"nodeSelectorTerm": {"matchExpressions": list(expressions)}} if expressions else {}
    body = {
        "metadata": {"name": name, "namespace": "shop", "uid": f"uid-of-{name}", "generation": 1},
        "spec": {"selector": {}, **term, **spec},
    }
    return Budget.parse(msgspec.convert(body, TopologyDisruptionBudget))


BY_ZONE = budget(NOT_A, EXISTS, name="by-zone", maxUnavailable=0)
"""Story 1: only zone a may change."""
ACROSS = budget(EXISTS, name="across", maxUnavailable=1)
"""Story 2: one in each zone."""
OVERALL = budget(name="overall", maxUnavailable=1)
"""Story 3: one of all."""

NODES = {f"node-{zone}": {ZONE: zone} for zone in "abcdef"} | {"node-bare": {}}
OLD = ControllerRef("ReplicaSet", "web-old", "rs-old")
NEW = ControllerRef("ReplicaSet", "web-new", "rs-new")
STATEFUL = ControllerRef("StatefulSet", "db", "sts")
NAKED: ControllerRef | None = None


def workloads(desired: int) -> dict[str, Workload]:
    """Both ReplicaSets are the Deployment's; the StatefulSet wants as many."""
    web = Workload(Owner("Deployment", "web", "deployment"), desired)
    return {
        "rs-old": web,
        "rs-new": web,
        "deployment": web,
        "sts": Workload(Owner("StatefulSet", "db", "sts"), desired),
    }


def pod(name: str, node: str = "", controller: ControllerRef | None = OLD, **facts: Any) -> PodFacts:
    """Ready and running on the node of the zone its name begins with, by default."""
    node = node or f"node-{name[0]}"
    return PodFacts(
        uid=f"uid-{name}", name=name, namespace="shop", node=node, controller=controller, **{"ready": True, **facts}
    )


@dataclass(frozen=True)
class Cluster:
    """Each method returns the next state. Earlier states are remembered as a leader remembers them."""

    pods: Mapping[str, PodFacts]
    workloads: Mapping[str, Workload]
    charges: tuple[str, ...] = ()
    nodes: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: NODES)
    before: "Cluster | None" = None
    absent: Mapping[str, PodFacts] = field(default_factory=dict)

    def scaled(self, desired: int) -> "Cluster":
        return replace(self, workloads=workloads(desired), before=self)

    def charged(self, *names: str) -> "Cluster":
        return replace(self, charges=(*self.charges, *names))

    def with_pods(self, *pods: PodFacts) -> "Cluster":
        return replace(self, pods={**self.pods, **{member.name: member for member in pods}})

    def changed(self, *names: str, **facts: Any) -> "Cluster":
        return self.with_pods(*(msgspec.structs.replace(self.pods[name], **facts) for name in names))

    def unready(self, *names: str) -> "Cluster":
        return self.changed(*names, ready=False)

    def terminating(self, *names: str) -> "Cluster":
        return self.changed(*names, terminating=True)

    def gone(self, *names: str) -> "Cluster":
        """Left after having been counted."""
        return replace(self.lost(*names), before=self)

    def lost(self, *names: str) -> "Cluster":
        """Left without having been counted."""
        left = {name: self.pods[name] for name in names}
        staying = {name: member for name, member in self.pods.items() if name not in left}
        return replace(self, pods=staying, absent={**self.absent, **left})

    def pending(self, *names: str, controller: ControllerRef = OLD) -> "Cluster":
        """New unscheduled pods."""
        waiting = {"ready": False, "stage": PodStage.PENDING}
        return self.with_pods(
            *(msgspec.structs.replace(pod(name, controller=controller, **waiting), node="") for name in names)
        )

    @property
    def node_domains(self) -> NodeDomains:
        return NodeDomains(self.nodes)

    def ledger(self, budget: Budget) -> Ledger:
        return ledger_of(self._entry(budget, name) for name in self.charges)

    def _entry(self, budget: Budget, name: str) -> LedgerEntry:
        member = self.pods.get(name) or self.absent[name]
        domain_key = self.node_domains.domain_key(budget, member)
        return LedgerEntry(
            uid=member.uid, name=name, domain=domain_key.domain, owner=owner_of(member, self.workloads), time=NOW
        )

    def pod_count(self, budget: Budget) -> PodCount:
        owner_slots: OwnerSlots = self.before.pod_count(budget).owner_slots if self.before else {}
        return count(budget, self.pods.values(), self.node_domains, self.workloads, self.ledger(budget), owner_slots)

    def status(self, budget: Budget) -> PublishedStatus:
        return published(budget, self.pod_count(budget), self.ledger(budget), (), NOW)

    def allowed(self, budget: Budget) -> dict[str, int]:
        return {name: domain.allowed for name, domain in self.pod_count(budget).numbers.domains.items()}

    def judge(self, name: str, *budgets: Budget) -> PodVerdict:
        """Each budget judges by its own count of this cluster."""
        member = self.pods[name]
        peers = [peer for peer in self.pods.values() if peer.controller_uid == member.controller_uid]
        return judge_all(
            [BudgetCase(budget, self.status(budget)) for budget in budgets], member, self.node_domains, peers
        )


def spread(shape: str, desired: int | None = None, controller: ControllerRef | None = OLD) -> Cluster:
    """`spread("3/3/3")`: pods a0 to a2, b0 to b2, c0 to c2, ready, as many as desired by default."""
    counts = [int(number) for number in shape.split("/")]
    names = [f"{zone}{index}" for zone, number in zip("abcdef", counts, strict=False) for index in range(number)]
    pods = {name: pod(name, controller=controller) for name in names}
    return Cluster(pods, workloads(sum(counts) if desired is None else desired))
