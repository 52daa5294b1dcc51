"""Counts the pods of one budget: how many slots each domain has, and how many of them serve. Pure.

Between the caches and the arithmetic of `numbers`. A slot is a pod that is there or one that is missing; a missing one
is owed to the domain that lost it, which is known from how many slots an owner had there when it was last counted, and
at first sight from terminating pods and from the ledger. Where several domains may have lost the one that is missing,
each owes it; where none can be named, it counts in every domain.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from zonewise.disruption.decide.allowance import BudgetAllowance, DomainCount, DomainFill, work_out
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
"""The kind whose pods go and come back by their ordinals."""

Places = Mapping[tuple[str, BudgetDomainKey], int]
"""The slots that an owner (by uid) had in a place when last counted; the leader hands each count to the next."""


@dataclass(frozen=True, slots=True)
class Departure:
    """`missing` of an owner's `slots` in a place are of pods that are not there; lets the next leader count on."""

    owner: str
    place: BudgetDomainKey
    missing: int
    slots: int


@dataclass(frozen=True, slots=True)
class PodCount:
    numbers: BudgetAllowance
    places: Places
    departures: tuple[Departure, ...]


def places_of(departures: Iterable[Departure]) -> Places:
    """What a new leader knows of the slots there were."""
    return {(departure.owner, departure.place): departure.slots for departure in departures}


def count(
    budget: Budget,
    pods: Iterable[PodFacts],
    atlas: NodeDomains,
    workloads: Workloads,
    ledger: Ledger,
    places: Places,
    *,
    ledger_tells: bool = True,
    slots_before: Mapping[str, int] | None = None,
) -> PodCount:
    """`pods` are those the budget selects, in any order; one pass over them. `places` are of the same term and keys.

    `ledger_tells`: whether the ledger knows of pods that left and `places` does not, in domains of the same term and keys.
    `slots_before`: of each domain, when they were last published; None where that is not known or `places` knows better.
    """
    crowd = _look_at(budget, pods, atlas, workloads, ledger)
    _add_owners_without_pods(crowd, workloads, places)
    if ledger_tells:
        _add_gone_entries(crowd, ledger, places)
    if slots_before is not None:
        _leave_out_replaced(crowd, slots_before)
    slots = _Slots()
    held = _by_owner(places)
    for owner, group in crowd.groups.items():
        _settle(owner, group, held.get(owner, {}), slots, only_certain=budget.max_disrupted_domains is not None)
    _let_charges_take_surplus(budget, crowd, atlas, workloads, ledger, slots)
    tally = _tally(budget, crowd, slots)
    return PodCount(work_out(budget, tally), slots.places, _departures(crowd, slots))


@dataclass(slots=True)
class _Group:
    """The pods of one owner. `owing` are places where one is seen leaving or known to have left.

    `beyond`: pods that a StatefulSet gives up by their ordinals. They are no part of the rest: it may lack others meanwhile.
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
class _Heads:
    """How many pods one controller has on one node; `example` is one of them. Unscheduled ones share a node of none.

    Those that a StatefulSet gives up by their ordinals, `beyond`, are counted apart.
    """

    example: PodFacts
    beyond: bool = False
    matched: int = 0
    terminating: int = 0
    healthy: int = 0


@dataclass(slots=True)
class _Crowd:
    """`present` are the charged pods that are there. `excess`: what a controller has beyond what it wants itself."""

    groups: dict[str, _Group] = field(default_factory=dict)
    healthy: dict[BudgetDomainKey, int] = field(default_factory=lambda: defaultdict(int))
    present: dict[str, PodFacts] = field(default_factory=dict)
    excess: dict[str, int] = field(default_factory=dict)
    matched: int = 0


@dataclass(slots=True)
class _Slots:
    places: dict[tuple[str, BudgetDomainKey], int] = field(default_factory=dict)
    by_place: dict[BudgetDomainKey, int] = field(default_factory=lambda: defaultdict(int))
    surplus: dict[str, int] = field(default_factory=dict)
    unplaced: int = 0


def _look_at(
    budget: Budget, pods: Iterable[PodFacts], atlas: NodeDomains, workloads: Workloads, ledger: Ledger
) -> _Crowd:
    """The only pass over the pods. It counts by controller and node, which are few, and looks up the rest for those."""
    crowd = _Crowd()
    heads: dict[tuple[str, str, bool], _Heads] = {}
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
        here = heads.get(at)
        if here is None:
            here = heads[at] = _Heads(pod, beyond)
        here.matched += 1
        if pod.uid in ledger:
            crowd.present[pod.uid] = pod
        if pod.terminating:
            here.terminating += 1
        elif pod.ready and not pod.disruption_target and not pod.granted and pod.uid not in ledger:
            here.healthy += 1
    for here in heads.values():
        _add(crowd, here, budget, atlas, workloads)
    return crowd


def _add(crowd: _Crowd, here: _Heads, budget: Budget, atlas: NodeDomains, workloads: Workloads) -> None:
    workload = workloads.get(here.example.controller_uid)
    owner = workload.owner.uid if workload is not None else _UNMANAGED
    group = crowd.groups.get(owner)
    if group is None:
        group = crowd.groups[owner] = _Group.of(workload)
    crowd.matched += here.matched
    if workload is not None and workload.own is not None:
        uid = here.example.controller_uid
        crowd.excess[uid] = crowd.excess.get(uid, -workload.own) + here.matched - here.terminating
    if not here.example.node:
        return
    place = atlas.place(budget, here.example)
    if here.terminating and not here.beyond:
        group.owing[place] += here.terminating
    if here.matched > here.terminating:
        (group.beyond if here.beyond else group.active)[place] += here.matched - here.terminating
    if here.healthy and atlas.has(here.example.node):
        crowd.healthy[place] += here.healthy


def _add_owners_without_pods(crowd: _Crowd, workloads: Workloads, places: Places) -> None:
    """An owner whose pods have all left still wants them back."""
    for owner, _ in places:
        if owner not in crowd.groups and (workload := workloads.get(owner)) is not None:
            crowd.groups[owner] = _Group.of(workload)


def _add_gone_entries(crowd: _Crowd, ledger: Ledger, places: Places) -> None:
    """Charged pods that are gone tell where one is missing, for owners that were not counted there before."""
    for uid, entry in ledger.items():
        place = BudgetDomainKey(entry.domain, covered=True)
        group = crowd.groups.get(entry.owner)
        if uid in crowd.present or group is None or is_beyond(entry.name, group.ordinals):
            continue
        if (entry.owner, place) not in places:
            group.owing[place] += 1


def _leave_out_replaced(crowd: _Crowd, slots_before: Mapping[str, int]) -> None:
    """A domain with as many pods as it had owes none, though some are seen leaving: else it would be owed there what
    another domain lost while nobody led.
    """
    active: dict[BudgetDomainKey, int] = defaultdict(int)
    for group in crowd.groups.values():
        for pods in (group.active, group.beyond):
            for place, number in pods.items():
                active[place] += number
    for group in crowd.groups.values():
        for place, owed in group.owing.items():
            if place.covered:
                lacking = slots_before.get(place.domain, 0) - active.get(place, 0)
                group.owing[place] = min(owed, max(0, lacking))


def _by_owner(places: Places) -> dict[str, dict[BudgetDomainKey, int]]:
    held: dict[str, dict[BudgetDomainKey, int]] = defaultdict(dict)
    for (owner, place), slots in places.items():
        held[owner][place] = slots
    return held


def _settle(
    owner: str, group: _Group, before: Mapping[BudgetDomainKey, int], slots: _Slots, *, only_certain: bool
) -> None:
    """Spreads what the owner is missing over the places that may have lost it, or notes what it has too many.

    `only_certain`: one that may be missing from either of two domains makes neither of them a disrupted one, which need
    not wait for others; it counts as missing from nobody knows where.
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
    for place in group.active.keys() | gaps.keys():
        here = group.active.get(place, 0)
        slots.places[owner, place] = here + gaps.get(place, 0)
        slots.by_place[place] += here + owed.get(place, 0)
    for place, leaving in group.beyond.items():
        slots.by_place[place] += leaving


def _gaps(group: _Group, before: Mapping[BudgetDomainKey, int], missing: int) -> dict[BudgetDomainKey, int]:
    """No more than is missing is owed by any one place; between places that may owe it, nobody can tell."""
    lost = {place: slots - group.active.get(place, 0) for place, slots in before.items()}
    lost |= {place: owed for place, owed in group.owing.items() if place not in before}
    return {place: min(gap, missing) for place, gap in lost.items() if gap > 0}


def _certain(gaps: Mapping[BudgetDomainKey, int], missing: int) -> dict[BudgetDomainKey, int]:
    """What is missing from a place even if all the others have lost what they may have lost."""
    total = sum(gaps.values())
    return {place: min(gap, max(0, missing - (total - gap))) for place, gap in gaps.items()}


def _let_charges_take_surplus(
    budget: Budget, crowd: _Crowd, atlas: NodeDomains, workloads: Workloads, ledger: Ledger, slots: _Slots
) -> None:
    """A charged pod counts as gone where its owner has too many, unless its controller makes it, or another, again.

    Oldest charges first.
    """
    excess = dict(crowd.excess)
    for uid in ledger:
        pod = crowd.present.get(uid)
        if pod is None or not pod.active:
            continue
        controller, workload = pod.controller_uid, workloads.get(pod.controller_uid)
        if workload is None or comes_back(pod.name, workload.ordinals):
            continue
        owner = workload.owner.uid
        if slots.surplus.get(owner, 0) > 0 and excess.get(controller, 1) > 0:
            slots.surplus[owner] -= 1
            slots.by_place[atlas.place(budget, pod)] -= 1
            if controller in excess:
                excess[controller] -= 1


def _tally(budget: Budget, crowd: _Crowd, slots: _Slots) -> DomainCount:
    domains = {
        place.domain: DomainFill(count, crowd.healthy.get(place, 0))
        for place, count in slots.by_place.items()
        if place.covered
    }
    if not budget.split_keys:
        domains.setdefault(EVERYWHERE if budget.whole else POOL, DomainFill(0, 0))
    unplaced = slots.unplaced
    if len(domains) == 1 and budget.max_disrupted_domains is None:  # else one more domain may be disrupted, unseen
        ((name, filling),) = domains.items()
        domains, unplaced = {name: DomainFill(filling.slots + unplaced, filling.healthy)}, 0
    surplus = {owner: pods for owner, pods in slots.surplus.items() if pods}
    unmanaged = crowd.groups.get(_UNMANAGED)
    return DomainCount(
        expected=_expected(budget, crowd),
        uncovered=sum(
            count
            for group in crowd.groups.values()
            for pods in (group.active, group.beyond)
            for place, count in pods.items()
            if not place.covered
        ),
        unmanaged=sum(unmanaged.active.values()) if unmanaged else 0,
        unplaced=unplaced,
        domains=domains,
        surplus=surplus,
        outside={place.domain: count for place, count in slots.by_place.items() if not place.covered}
        if surplus
        else {},
    )


def _expected(budget: Budget, crowd: _Crowd) -> int:
    """As stock: a plain minimum asks no controller."""
    if budget.whole and budget.minimum is not None and not budget.minimum.percent:
        return crowd.matched
    return sum(group.desired for owner, group in crowd.groups.items() if owner != _UNMANAGED)


def _departures(crowd: _Crowd, slots: _Slots) -> tuple[Departure, ...]:
    missing = [
        Departure(owner, place, taken - here, taken)
        for (owner, place), taken in sorted(slots.places.items())
        if taken > (here := crowd.groups[owner].active.get(place, 0))
    ]
    return tuple(missing[-MOST_DEPARTURES:])
