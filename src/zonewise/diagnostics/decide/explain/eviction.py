"""The report of `zonewise explain eviction`: the fields of its JSON, from the verdict of the eviction webhook. Pure.

It uses the same verdict function, on the same published status, as the webhook. Scripts read these fields: they are added
to, never renamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from zonewise.disruption.decide.budget import Budget, BudgetDomainKey, BudgetError
from zonewise.disruption.decide.ledger import LedgerEntry
from zonewise.disruption.decide.pdb import PdbRefusal, refusal
from zonewise.disruption.decide.pods import NodeDomains, PodFacts, gives_up, staying
from zonewise.disruption.decide.reason import DisruptionCode
from zonewise.disruption.decide.verdict import (
    BudgetCase,
    BudgetVerdict,
    EvictionVerdict,
    depends_on_counts,
    judge_all,
    too_many,
)
from zonewise.objects.policy import PodDisruptionBudget


class DomainReport(msgspec.Struct, frozen=True, rename="camel"):
    """The numbers that the budget publishes for the pod's domain."""

    name: str
    slots: int
    target: int
    healthy: int
    desired: int
    allowed: int


class PodReport(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    why: str


class BudgetReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`verdict` is Allow, Charge or Deny; `would` is the verdict if the budget were enforced.

    `unavailable` are the pods of the domain that do not count as healthy; `missing` counts pods that were not replaced.
    """

    name: str
    limit: str
    enforcement: str
    verdict: str
    would: str
    code: str
    sentence: str
    remedy: str = ""
    domain: DomainReport | None = None
    unavailable: tuple[PodReport, ...] = ()
    missing: int = 0


class PdbReport(msgspec.Struct, frozen=True, rename="camel"):
    """A PodDisruptionBudget that selects the pod. API servers accept at most one per pod."""

    name: str
    allowed: int
    healthy: int
    desired: int


class LeaderReport(msgspec.Struct, frozen=True, rename="camel"):
    """The controller that keeps the published numbers current. `silent_seconds` is None if it never ran."""

    lease: str
    holder: str
    silent_seconds: float | None
    trouble: str


class EvictionReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pod: str
    node: str
    owner: str
    ready: bool
    allowed: bool
    sentence: str
    budgets: tuple[BudgetReport, ...]
    stock: tuple[PdbReport, ...]
    leader: LeaderReport
    guarded: bool
    unreadable: tuple[str, ...]
    remedies: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionFacts:
    """`pods` are those of the pod's namespace; `owner_uid` is that of its top-level controller."""

    pod: PodFacts
    owner: str
    owner_uid: str
    cases: Sequence[BudgetCase]
    pods: Sequence[PodFacts]
    nodes: Mapping[str, Mapping[str, str]]
    stock: Sequence[PodDisruptionBudget]
    leader: LeaderReport
    replicas: int | None = None
    """Of its ReplicaSet."""
    guarded: bool = True
    unreadable: Sequence[BudgetError] = field(default_factory=tuple)


def build_eviction_report(facts: EvictionFacts) -> EvictionReport:
    domains = NodeDomains(facts.nodes)
    peers = [peer for peer in facts.pods if peer.replica_set and peer.replica_set == facts.pod.replica_set]
    charged = {uid for case in facts.cases for uid in case.status.ledger}
    replaceable = peers if gives_up(staying(peers, charged), facts.replicas) else ()
    verdicts = judge_all(facts.cases, facts.pod, domains, replaceable, owner=facts.owner_uid)
    by_name = {case.budget.key: case for case in facts.cases}
    stock = refusal(facts.pod, list(facts.stock))
    refusals = list(_refusals(facts, verdicts.verdicts, stock))
    return EvictionReport(
        pod=str(facts.pod.key),
        node=facts.pod.node,
        owner=facts.owner,
        ready=facts.pod.ready,
        allowed=not refusals,
        sentence=_sentence(facts, verdicts.verdicts, [sentence for sentence, _ in refusals]),
        budgets=tuple(_budget(facts, domains, by_name[verdict.budget], verdict) for verdict in verdicts.verdicts),
        stock=tuple(map(_pdb_report, facts.stock)),
        leader=facts.leader,
        guarded=facts.guarded,
        unreadable=tuple(str(error) for error in facts.unreadable),
        remedies=tuple(dict.fromkeys(remedy for _, remedy in refusals if remedy)),
    )


def _refusals(
    facts: EvictionFacts, verdicts: Sequence[BudgetVerdict], stock: PdbRefusal | None
) -> Iterator[tuple[str, str]]:
    """Each with its remedy, in the order of the webhook's checks."""
    if not facts.guarded:
        verdicts = ()
    exempt = {DisruptionCode.NOT_ENFORCED, DisruptionCode.NOT_APPLIED}
    applied = {verdict.budget for verdict in verdicts if verdict.reason.code not in exempt}
    if reason := too_many(facts.pod, [case.budget for case in facts.cases if case.budget.key in applied]):
        yield str(reason), reason.remedy
        return
    if facts.leader.trouble and depends_on_counts(verdicts, (case.budget for case in facts.cases)):
        yield facts.leader.trouble, "start `zonewise controller --parts disruption`"
    for verdict in verdicts:
        if verdict.verdict is EvictionVerdict.DENY:
            yield str(verdict.reason), verdict.reason.remedy
    if stock is not None:
        cause = stock.cause or stock.message
        yield cause[:1].lower() + cause[1:], "" if stock.cause else "leave one PodDisruptionBudget that selects the pod"


def _sentence(facts: EvictionFacts, verdicts: Sequence[BudgetVerdict], refusals: Sequence[str]) -> str:
    if refusals:
        return f"may not be evicted now: {'; '.join(refusals)}"
    if not verdicts:
        return "may be evicted: no TopologyDisruptionBudget selects it"
    if not facts.guarded:
        return "may be evicted: no webhook is registered for its namespace, so budgets are not enforced"
    charged = [verdict.budget.name for verdict in verdicts if verdict.verdict is EvictionVerdict.CHARGE]
    if charged:
        return f"may be evicted, and is charged to {' and '.join(charged)}"
    return f"may be evicted: {verdicts[0].reason}"


def _budget(facts: EvictionFacts, domains: NodeDomains, case: BudgetCase, verdict: BudgetVerdict) -> BudgetReport:
    budget, pod_domain = case.budget, domains.domain_key(case.budget, facts.pod)
    numbers = case.status.numbers.domains.get(pod_domain.domain) if pod_domain.covered else None
    domain = (
        DomainReport(numbers.name, numbers.slots, numbers.target, numbers.healthy, numbers.desired, numbers.allowed)
        if numbers
        else None
    )
    return BudgetReport(
        name=budget.key.name,
        limit=_limit(budget),
        enforcement=budget.enforcement,
        verdict=verdict.verdict,
        would=verdict.if_enforced,
        code=verdict.reason.code,
        sentence=str(verdict.reason),
        remedy=verdict.reason.remedy,
        domain=domain,
        unavailable=tuple(_unavailable(case, pod_domain, facts.pods, domains)) if domain else (),
        missing=sum(departure.missing for departure in case.status.departures if departure.domain_key == pod_domain),
    )


def _limit(budget: Budget) -> str:
    if budget.whole:
        return f"{budget.limit} of all"
    where = f" where {budget.term}" if budget.term is not None else ""
    split = f" in each {' and '.join(budget.split_keys)}" if budget.split_keys else " of all"
    return f"{budget.limit}{split}{where}"


def _unavailable(
    case: BudgetCase, domain: BudgetDomainKey, pods: Iterable[PodFacts], domains: NodeDomains
) -> Iterator[PodReport]:
    for pod in sorted(pods, key=lambda pod: pod.name):
        if not pod.node or not case.budget.selects(pod.labels) or domains.domain_key(case.budget, pod) != domain:
            continue
        if why := _why_unavailable(pod, case.status.ledger.get(pod.uid), domains):
            yield PodReport(pod.name, why)


def _why_unavailable(pod: PodFacts, entry: LedgerEntry | None, domains: NodeDomains) -> str:
    """Why a pod does not count as healthy; empty if it does, or if it has ended."""
    by = f", charged by {entry.source} at {entry.time}" if entry is not None else ""
    if pod.terminating:
        return f"terminating{by}"
    if not pod.active:
        return ""
    if entry is not None:
        return by.removeprefix(", ")
    if pod.leaving:
        return "about to be deleted"
    if not domains.has(pod.node):
        return f"its node {pod.node} is gone"
    return "" if pod.ready else "not ready"


def _pdb_report(pdb: PodDisruptionBudget) -> PdbReport:
    status = pdb.status
    return PdbReport(pdb.metadata.name, status.disruptions_allowed, status.current_healthy, status.desired_healthy)
