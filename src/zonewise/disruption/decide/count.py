"""Pod count of one budget: the slots of each domain, and how many of them serve. Pure.

A slot is a pod that exists or one that is missing. A missing pod counts in the domain that lost it. That is known from
the slots that its owner had there at the last count, and at the first count from terminating pods and from the ledger. If
several domains may have lost the missing pod, it counts in each; if none can be named, it counts in every domain.
`allowance` computes from the slots how many pods may leave.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from zonewise.disruption.decide.allowance import BudgetAllowance, DomainCount, DomainFill, compute_allowance
from zonewise.disruption.decide.budget import EVERYWHERE, POOL, Budget, BudgetDomainKey
from zonewise.disruption.decide.ledger import Ledger
from zonewise.disruption.decide.pods import (
    NodeDomains,
    PodFacts,
    PodStage,
    Workload,
    Workloads,
    comes_back,
    is_beyond,
)

MOST_DEPARTURES: Final = 2000

_UNMANAGED: Final = ""
_ORDERED: Final = "StatefulSet"
"""The kind that deletes and recreates its pods by ordinal."""

OwnerSlots = Mapping[tuple[str, BudgetDomainKey], int]
"""The slots that an owner (by uid) had in a domain at the last count; the leader passes them on to the next."""


@dataclass(frozen=True, slots=True)
class Departure:
    """`missing` of an owner's `slots` in a domain have no pod; published so that the next leader can continue the count."""

    owner: str
    domain_key: BudgetDomainKey
    missing: int
    slots: int


@dataclass(frozen=True, slots=True)
class PodCount:
    numbers: BudgetAllowance
    owner_slots: OwnerSlots
    departures: tuple[Departure, ...]


def owner_slots_of(departures: Iterable[Departure]) -> OwnerSlots:
    """The slots that a new leader learns from the status."""
    return {(departure.owner, departure.domain_key): departure.slots for departure in departures}


def count(
    budget: Budget,
    pods: Iterable[PodFacts],
    node_domains: NodeDomains,
    workloads: Workloads,
    ledger: Ledger,
    owner_slots: OwnerSlots,
    *,
    use_ledger: bool = True,
    slots_before: Mapping[str, int] | None = None,
) -> PodCount:
    """`pods` are those the budget selects, in any order; one pass over them. `owner_slots` must be of the same term and keys.

    `use_ledger`: whether the ledger has pods that left and that `owner_slots` does not cover, with the same term and keys.
    `slots_before`: the slots of each domain as last published; None if unknown, or if `owner_slots` is more recent.
    """
    selected = _collect(budget, pods, node_domains, workloads, ledger)
    _add_owners_without_pods(selected, workloads, owner_slots)
    if use_ledger:
        _add_gone_entries(selected, ledger, owner_slots)
    if slots_before is not None:
        _drop_replaced(selected, slots_before)
    slots = _Slots()
    by_owner = _by_owner(owner_slots)
    for owner, group in selected.groups.items():
        _settle(
            owner,
            group,
            by_owner.get(owner, {}),
            slots,
            only_certain=budget.max_disrupted_domains is not None,
        )
    _charge_surplus(budget, selected, node_domains, workloads, ledger, slots)
    tally = _tally(budget, selected, slots)
    return PodCount(compute_allowance(budget, tally), slots.owner_slots, _departures(selected, slots))


@dataclass(slots=True)
class _Group:
    """The pods of one owner. `owing`: domains where a pod terminates or is known to have left.

    `beyond`: pods whose ordinals a StatefulSet gives up. They are counted apart, since it may lack others meanwhile.
    """

    desired: int
    ordinals: range | None = None
    active: dict[BudgetDomainKey, int] = field(default_factory=lambda: defaultdict(int))
    owing: dict[BudgetDomainKey, int] = field(default_factory=lambda: defaultdict(int))
    beyond: dict[BudgetDomainKey, int] = field(default_factory=lambda: defaultdict(int))

    @classmethod
    def of(cls, workload: Workload | None) -> _Group:
        return cls(0) if workload is None else cls(workload.desired, workload.ordinals)


@dataclass(slots=True)
class _NodeGroup:
    """The pods of one controller on one node; `example` is one of them. Unscheduled pods share the empty node name.

    `beyond`: the pods whose ordinals a StatefulSet gives up, counted apart.
    """

    example: PodFacts
    beyond: bool = False
    matched: int = 0
    terminating: int = 0
    healthy: int = 0


@dataclass(slots=True)
class _PodGroups:
    """`present`: the charged pods that exist. `excess`: pods of a controller beyond its own replicas.

    `unknown`: pods that stay although the replicas of their controllers are not known.
    """

    groups: dict[str, _Group] = field(default_factory=dict)
    healthy: dict[BudgetDomainKey, int] = field(default_factory=lambda: defaultdict(int))
    present: dict[str, PodFacts] = field(default_factory=dict)
    excess: dict[str, int] = field(default_factory=dict)
    unknown: list[PodFacts] = field(default_factory=list)
    matched: int = 0


@dataclass(slots=True)
class _Slots:
    owner_slots: dict[tuple[str, BudgetDomainKey], int] = field(default_factory=dict)
    by_domain: dict[BudgetDomainKey, int] = field(default_factory=lambda: defaultdict(int))
    surplus: dict[str, int] = field(default_factory=dict)
    unplaced: int = 0


def _collect(
    budget: Budget, pods: Iterable[PodFacts], node_domains: NodeDomains, workloads: Workloads, ledger: Ledger
) -> _PodGroups:
    """The only pass over the pods. Groups them by controller and node, which are few, and looks up the rest per group."""
    selected = _PodGroups()
    node_groups: dict[tuple[str, str, bool], _NodeGroup] = {}
    for pod in pods:
        if pod.stage is PodStage.ENDED:
            continue
        controller = pod.controller
        beyond = (
            controller is not None
            and controller.kind == _ORDERED
            and (workload := workloads.get(controller.uid)) is not None
            and is_beyond(pod.name, workload.ordinals)
        )
        at = ("" if controller is None else controller.uid, pod.node, beyond)
        node_group = node_groups.get(at)
        if node_group is None:
            node_group = node_groups[at] = _NodeGroup(pod, beyond)
        node_group.matched += 1
        if pod.uid in ledger:
            selected.present[pod.uid] = pod
        if pod.terminating:
            node_group.terminating += 1
        elif pod.ready and not pod.disruption_target and not pod.granted and pod.uid not in ledger:
            node_group.healthy += 1
    for node_group in node_groups.values():
        _add(selected, node_group, budget, node_domains, workloads)
    return selected


def _add(
    selected: _PodGroups, node_group: _NodeGroup, budget: Budget, node_domains: NodeDomains, workloads: Workloads
) -> None:
    workload = workloads.get(node_group.example.controller_uid)
    owner = workload.owner.uid if workload is not None else _UNMANAGED
    group = selected.groups.get(owner)
    if group is None:
        group = selected.groups[owner] = _Group.of(workload)
    selected.matched += node_group.matched
    if workload is None and node_group.example.controller and node_group.matched > node_group.terminating:
        selected.unknown.append(node_group.example)
    if workload is not None and workload.own is not None:
        uid = node_group.example.controller_uid
        selected.excess[uid] = selected.excess.get(uid, -workload.own) + node_group.matched - node_group.terminating
    if not node_group.example.node:
        return
    domain_key = node_domains.domain_key(budget, node_group.example)
    if node_group.terminating and not node_group.beyond:
        group.owing[domain_key] += node_group.terminating
    if node_group.matched > node_group.terminating:
        (group.beyond if node_group.beyond else group.active)[domain_key] += node_group.matched - node_group.terminating
    if node_group.healthy and node_domains.has(node_group.example.node):
        selected.healthy[domain_key] += node_group.healthy


def _add_owners_without_pods(selected: _PodGroups, workloads: Workloads, owner_slots: OwnerSlots) -> None:
    """An owner whose pods have all left still wants them."""
    for owner, _ in owner_slots:
        if owner not in selected.groups and (workload := workloads.get(owner)) is not None:
            selected.groups[owner] = _Group.of(workload)


def _add_gone_entries(selected: _PodGroups, ledger: Ledger, owner_slots: OwnerSlots) -> None:
    """Charged pods that are gone show where one is missing, for owners that were not counted there before."""
    for uid, entry in ledger.items():
        domain_key = BudgetDomainKey(entry.domain, covered=True)
        group = selected.groups.get(entry.owner)
        if uid in selected.present or group is None or is_beyond(entry.name, group.ordinals):
            continue
        if (entry.owner, domain_key) not in owner_slots:
            group.owing[domain_key] += 1


def _drop_replaced(selected: _PodGroups, slots_before: Mapping[str, int]) -> None:
    """A domain with as many pods as before owes none, even if some terminate. Otherwise it would owe what another domain
    lost while there was no leader.
    """
    active: dict[BudgetDomainKey, int] = defaultdict(int)
    for group in selected.groups.values():
        for pods in (group.active, group.beyond):
            for domain_key, number in pods.items():
                active[domain_key] += number
    for group in selected.groups.values():
        for domain_key, owed in group.owing.items():
            if domain_key.covered:
                lacking = slots_before.get(domain_key.domain, 0) - active.get(domain_key, 0)
                group.owing[domain_key] = min(owed, max(0, lacking))


def _by_owner(owner_slots: OwnerSlots) -> dict[str, dict[BudgetDomainKey, int]]:
    by_owner: dict[str, dict[BudgetDomainKey, int]] = defaultdict(dict)
    for (owner, domain_key), slots in owner_slots.items():
        by_owner[owner][domain_key] = slots
    return by_owner


def _settle(
    owner: str, group: _Group, before: Mapping[BudgetDomainKey, int], slots: _Slots, *, only_certain: bool
) -> None:
    """Spreads an owner's missing pods over the domains that may have lost them, or records its surplus.

    `only_certain`: a pod that may be missing from either of two domains makes neither of them a disrupted domain, which
    need not wait for others. It counts as unplaced.
    """
    active = sum(group.active.values())
    if owner == _UNMANAGED:
        missing = 0
    else:
        missing = max(0, group.desired - active)
        if surplus := max(0, active - group.desired) + sum(group.beyond.values()):
            slots.surplus[owner] = surplus
    gaps = _gaps(group, before, missing) if missing else {}
    owed = _certain(gaps, missing) if only_certain else gaps
    slots.unplaced += max(0, missing - sum(owed.values()))
    for domain_key in group.active.keys() | gaps.keys():
        present = group.active.get(domain_key, 0)
        slots.owner_slots[owner, domain_key] = present + gaps.get(domain_key, 0)
        slots.by_domain[domain_key] += present + owed.get(domain_key, 0)
    for domain_key, leaving in group.beyond.items():
        slots.by_domain[domain_key] += leaving


def _gaps(group: _Group, before: Mapping[BudgetDomainKey, int], missing: int) -> dict[BudgetDomainKey, int]:
    """No domain owes more than is missing; which of several domains owes it is unknown."""
    lost = {domain_key: slots - group.active.get(domain_key, 0) for domain_key, slots in before.items()}
    lost |= {domain_key: owed for domain_key, owed in group.owing.items() if domain_key not in before}
    return {domain_key: min(gap, missing) for domain_key, gap in lost.items() if gap > 0}


def _certain(gaps: Mapping[BudgetDomainKey, int], missing: int) -> dict[BudgetDomainKey, int]:
    """What a domain misses even if every other domain lost as much as it may have lost."""
    total = sum(gaps.values())
    return {domain_key: min(gap, max(0, missing - (total - gap))) for domain_key, gap in gaps.items()}


def _charge_surplus(
    budget: Budget,
    selected: _PodGroups,
    node_domains: NodeDomains,
    workloads: Workloads,
    ledger: Ledger,
    slots: _Slots,
) -> None:
    """A charged pod counts as gone if its owner has a surplus, unless its controller recreates it. Oldest charges first."""
    excess = dict(selected.excess)
    for uid in ledger:
        pod = selected.present.get(uid)
        if pod is None or not pod.active:
            continue
        controller, workload = pod.controller_uid, workloads.get(pod.controller_uid)
        if workload is None or comes_back(pod.name, workload.ordinals):
            continue
        owner = workload.owner.uid
        if slots.surplus.get(owner, 0) > 0 and excess.get(controller, 1) > 0:
            slots.surplus[owner] -= 1
            slots.by_domain[node_domains.domain_key(budget, pod)] -= 1
            if controller in excess:
                excess[controller] -= 1


def _tally(budget: Budget, selected: _PodGroups, slots: _Slots) -> DomainCount:
    domains = {
        domain_key.domain: DomainFill(count, selected.healthy.get(domain_key, 0))
        for domain_key, count in slots.by_domain.items()
        if domain_key.covered
    }
    if not budget.split_keys:
        domains.setdefault(EVERYWHERE if budget.whole else POOL, DomainFill(0, 0))
    unplaced = slots.unplaced
    if len(domains) == 1 and budget.max_disrupted_domains is None:  # otherwise one more domain may be disrupted
        ((name, filling),) = domains.items()
        domains, unplaced = {name: DomainFill(filling.slots + unplaced, filling.healthy)}, 0
    surplus = {owner: pods for owner, pods in slots.surplus.items() if pods}
    unmanaged = selected.groups.get(_UNMANAGED)
    return DomainCount(
        expected=_expected(budget, selected),
        uncovered=sum(
            count
            for group in selected.groups.values()
            for pods in (group.active, group.beyond)
            for domain_key, count in pods.items()
            if not domain_key.covered
        ),
        unmanaged=sum(unmanaged.active.values()) if unmanaged else 0,
        unplaced=unplaced,
        domains=domains,
        surplus=surplus,
        outside={domain_key.domain: count for domain_key, count in slots.by_domain.items() if not domain_key.covered}
        if surplus
        else {},
        failure=_failure(budget, selected.unknown),
    )


def _expected(budget: Budget, selected: _PodGroups) -> int:
    """As for stock PDBs: a plain minimum needs no controller."""
    if budget.whole and budget.fixed_minimum:
        return selected.matched
    return sum(group.desired for owner, group in selected.groups.items() if owner != _UNMANAGED)


def _failure(budget: Budget, unknown: Sequence[PodFacts]) -> str:
    """As for stock PDBs: a controller without a known scale could want any number of pods. A minimum in numbers needs none."""
    if not unknown or budget.fixed_minimum:
        return ""
    kind, name, *_ = min(pod.controller for pod in unknown if pod.controller)
    return f"the replicas that {kind} {name} wants are not known: it has no scale, or its scale was not read yet"


def _departures(selected: _PodGroups, slots: _Slots) -> tuple[Departure, ...]:
    missing = [
        Departure(owner, domain_key, taken - present, taken)
        for (owner, domain_key), taken in sorted(slots.owner_slots.items())
        if taken > (present := selected.groups[owner].active.get(domain_key, 0))
    ]
    return tuple(missing[-MOST_DEPARTURES:])
