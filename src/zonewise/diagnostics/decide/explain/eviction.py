"""What `zonewise explain eviction` tells, as values: the fields of its JSON, and how each follows from the cluster. Pure.

Asks the same judge, on the same published status, as the webhook that an eviction comes to. Users read these fields in
scripts: one is never renamed, only added.
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
from zonewise.disruption.decide.verdict import BudgetCase, BudgetVerdict, EvictionVerdict, hangs_on_numbers, judge_all
from zonewise.objects.policy import PodDisruptionBudget


class DomainReport(msgspec.Struct, frozen=True, rename="camel"):
    """The numbers the budget publishes for the pod's domain."""

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
    """`verdict` is Allow, Charge or Deny; `would` what it would be without a dry run.

    `unavailable` are the pods of the domain that do not count as healthy, `missing` how many more are owed there.
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
    """A PodDisruptionBudget that selects the pod; API servers take one per pod, no more."""

    name: str
    allowed: int
    healthy: int
    desired: int


class LeaderReport(msgspec.Struct, frozen=True, rename="camel"):
    """Who keeps the published numbers true; `silent_seconds` is None where nobody ever did."""

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
    """What was read. `pods` are those of the pod's namespace, `owner_uid` is that of its top-level controller."""

    pod: PodFacts
    owner: str
    owner_uid: str
    cases: Sequence[BudgetCase]
    pods: Sequence[PodFacts]
    nodes: Mapping[str, Mapping[str, str]]
    stock: Sequence[PodDisruptionBudget]
    leader: LeaderReport
    replicas: int | None = None
    """How many its ReplicaSet wants."""
    guarded: bool = True
    unreadable: Sequence[BudgetError] = field(default_factory=tuple)


def build_eviction_report(seen: EvictionFacts) -> EvictionReport:
    atlas = NodeDomains(seen.nodes)
    peers = [peer for peer in seen.pods if peer.replica_set and peer.replica_set == seen.pod.replica_set]
    charged = {uid for case in seen.cases for uid in case.status.ledger}
    others = peers if gives_up(staying(peers, charged), seen.replicas) else ()
    judged = judge_all(seen.cases, seen.pod, atlas, others, owner=seen.owner_uid)
    by_name = {case.budget.key: case for case in seen.cases}
    stock = refusal(seen.pod, list(seen.stock))
    refusals = list(_refusals(seen, judged.each, stock))
    return EvictionReport(
        pod=str(seen.pod.key),
        node=seen.pod.node,
        owner=seen.owner,
        ready=seen.pod.ready,
        allowed=not refusals,
        sentence=_sentence(seen, judged.each, [sentence for sentence, _ in refusals]),
        budgets=tuple(_budget(seen, atlas, by_name[each.budget], each) for each in judged.each),
        stock=tuple(_stock(known) for known in seen.stock),
        leader=seen.leader,
        guarded=seen.guarded,
        unreadable=tuple(str(error) for error in seen.unreadable),
        remedies=tuple(dict.fromkeys(remedy for _, remedy in refusals if remedy)),
    )


def _refusals(
    seen: EvictionFacts, judged: Sequence[BudgetVerdict], stock: PdbRefusal | None
) -> Iterator[tuple[str, str]]:
    """Each with what would change it, in the order in which the guard asks."""
    if not seen.guarded:
        judged = ()
    if seen.pod.in_between and any(each.reason.code is not DisruptionCode.NOT_ENFORCED for each in judged):
        yield seen.pod.in_between, "ask again in a moment, or name its uid"
        return
    if seen.leader.trouble and hangs_on_numbers(judged, (case.budget for case in seen.cases)):
        yield seen.leader.trouble, "start `zonewise controller --parts disruption`"
    for each in judged:
        if each.verdict is EvictionVerdict.DENY:
            yield str(each.reason), each.reason.remedy
    if stock is not None:
        said = stock.cause or stock.message
        yield said[:1].lower() + said[1:], "" if stock.cause else "leave one PodDisruptionBudget that selects the pod"


def _sentence(seen: EvictionFacts, judged: Sequence[BudgetVerdict], refusals: Sequence[str]) -> str:
    if refusals:
        return f"may not be evicted now: {'; '.join(refusals)}"
    if not judged:
        return "may be evicted: no TopologyDisruptionBudget selects it"
    if not seen.guarded:
        return "may be evicted: no guard is registered for its namespace, so nobody asks its budgets"
    charged = [each.budget.name for each in judged if each.verdict is EvictionVerdict.CHARGE]
    if charged:
        return f"may be evicted, and is charged to {' and '.join(charged)}"
    return f"may be evicted: {judged[0].reason}"


def _budget(seen: EvictionFacts, atlas: NodeDomains, case: BudgetCase, judged: BudgetVerdict) -> BudgetReport:
    budget, place = case.budget, atlas.place(case.budget, seen.pod)
    numbers = case.status.numbers.domains.get(place.domain) if place.covered else None
    domain = (
        DomainReport(numbers.name, numbers.slots, numbers.target, numbers.healthy, numbers.desired, numbers.allowed)
        if numbers
        else None
    )
    return BudgetReport(
        name=budget.key.name,
        limit=_limit(budget),
        enforcement=budget.enforcement,
        verdict=judged.verdict,
        would=judged.would,
        code=judged.reason.code,
        sentence=str(judged.reason),
        remedy=judged.reason.remedy,
        domain=domain,
        unavailable=tuple(_unavailable(case, place, seen.pods, atlas)) if domain else (),
        missing=sum(gone.missing for gone in case.status.departures if gone.place == place),
    )


def _limit(budget: Budget) -> str:
    if budget.whole:
        return f"{budget.limit} of all"
    where = f" where {budget.term}" if budget.term is not None else ""
    each = f" in each {' and '.join(budget.split_keys)}" if budget.split_keys else " of all"
    return f"{budget.limit}{each}{where}"


def _unavailable(
    case: BudgetCase, place: BudgetDomainKey, pods: Iterable[PodFacts], atlas: NodeDomains
) -> Iterator[PodReport]:
    for pod in sorted(pods, key=lambda known: known.name):
        if not pod.node or not case.budget.selects(pod.labels) or atlas.place(case.budget, pod) != place:
            continue
        if why := _why_unavailable(pod, case.status.ledger.get(pod.uid), atlas):
            yield PodReport(pod.name, why)


def _why_unavailable(pod: PodFacts, entry: LedgerEntry | None, atlas: NodeDomains) -> str:
    """Why a pod does not count as healthy; empty where it does, or where it is no pod any more."""
    by = f", charged by {entry.source} at {entry.time}" if entry is not None else ""
    if pod.terminating:
        return f"terminating{by}"
    if not pod.active:
        return ""
    if entry is not None:
        return by.removeprefix(", ")
    if pod.leaving:
        return "about to be deleted"
    if not atlas.has(pod.node):
        return f"its node {pod.node} is gone"
    return "" if pod.ready else "not ready"


def _stock(known: PodDisruptionBudget) -> PdbReport:
    status = known.status
    return PdbReport(known.metadata.name, status.disruptions_allowed, status.current_healthy, status.desired_healthy)
