"""Numbers of endpoints per domain and consumers: a new assignment by an algorithm, or a repair of the last one.

Works on counts only. `prefer` chooses between the two, and `assign` turns the counts into endpoints.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from zonewise.routing.algorithms import Algorithm, EndpointGroup, EndpointGroups, assign
from zonewise.routing.load import (
    Composition,
    Consumers,
    Loads,
    LoadShare,
    consumed_by,
    is_overload,
    loads,
    names,
    sizes_of,
)

OUTSIDE: Final = ""
"""The home of endpoints outside the given domains."""


def new_composition(
    algorithm: Algorithm, demand: Mapping[str, int], homes: Counter[str], threshold: float, settled: Composition
) -> Composition:
    """The assignment by the algorithm; empty for an even spread.

    Endpoints from outside (guests) count for the domains that lack most. Algorithms that weigh moves get `settled`.
    """
    guests = _place_guests(demand, homes)
    own = [homes[domain] + guests[domain] for domain in demand]
    previous = _as_groups(settled, demand, guests) if settled else None
    groups = assign(algorithm, list(demand.values()), own, threshold=threshold, starting_factor=0, previous=previous)
    if groups.is_balanced:
        return {}
    composition: Composition = {}
    for group in groups.groups:
        consumers = tuple(LoadShare(d, weight) for d, weight in zip(demand, group.weights, strict=True) if weight)
        for domain, count in zip(demand, group.composition, strict=True):
            _shift(composition.setdefault(consumers, {}), domain, count)
    for domain, count in guests.items():
        _admit_guests(composition, domain, count)
    return composition


def _as_groups(settled: Composition, demand: Mapping[str, int], guests: Counter[str]) -> EndpointGroups:
    """Settled endpoints by domain; guests count for the domain they are placed in."""
    unplaced = Counter(guests)
    groups = []
    for consumers, homes in settled.items():
        own = {domain: homes.get(domain, 0) for domain in demand}
        for domain in demand:
            taken = min(unplaced[domain], sum(homes.values()) - sum(own.values()))
            own[domain] += taken
            unplaced[domain] -= taken
        weights = dict(consumers)
        groups.append(EndpointGroup(tuple(own.values()), tuple(weights.get(domain, 0.0) for domain in demand)))
    return EndpointGroups(tuple(groups))


def _place_guests(demand: Mapping[str, int], homes: Counter[str]) -> Counter[str]:
    """Places guests one by one in the domain that lacks most of its share."""
    total_demand, endpoints = sum(demand.values()), sum(homes.values())
    lacking = {domain: endpoints * nodes - homes[domain] * total_demand for domain, nodes in demand.items()}
    guests: Counter[str] = Counter()
    for _ in range(homes[OUTSIDE]):
        domain = max(lacking, key=lacking.__getitem__)
        lacking[domain] -= total_demand
        guests[domain] += 1
    return guests


def _admit_guests(composition: Composition, domain: str, count: int) -> None:
    """Relabels endpoints of a domain as guests, beginning with those that serve other domains."""
    lent_first = sorted(composition, key=lambda consumers: domain in names(consumers))
    for consumers in lent_first:
        taken = min(count, composition[consumers].get(domain, 0))
        if taken:
            _shift(composition[consumers], domain, -taken)
            _shift(composition[consumers], OUTSIDE, taken)
            count -= taken


class AssignmentDraft:
    """An assignment in counts during a repair: settled endpoints, and free ones, which are moved first."""

    def __init__(self, demand: Mapping[str, int], settled: Composition, free: Mapping[str, int]) -> None:
        self.demand = demand
        self.settled = {consumers: dict(homes) for consumers, homes in settled.items()}
        self.free: Composition = {}
        self.sizes = sizes_of(settled)
        for home in sorted(free, reverse=True):
            self._add_new(home, free[home])

    def composition(self) -> Composition:
        total: Composition = {}
        for part in (self.settled, self.free):
            for consumers, homes in part.items():
                for home, count in homes.items():
                    _shift(total.setdefault(consumers, {}), home, count)
        return {consumers: homes for consumers, homes in total.items() if homes}

    def loads(self) -> Loads:
        return loads(self.sizes, self.demand)

    def repair(self, threshold: float) -> bool:
        """Moves endpoints one by one until no threshold is broken; False if no further move is possible.

        Terminates: a move takes from a group within the threshold, which stays within it, and gives to one that is not.
        """
        while not (current := self.loads()).within(threshold):
            if not self._help(_neediest(current), current, threshold):
                return False
        return True

    def _add_new(self, home: str, count: int) -> None:
        """Adds new endpoints to their own domain, guests to the group with the highest load."""
        if home != OUTSIDE:
            self._add(self._group_of(home), home, count)
            return
        for _ in range(count):
            self._add(_neediest(self.loads()), home, 1)

    def _group_of(self, home: str) -> Consumers:
        shared = [consumers for consumers in self.sizes if home in names(consumers)]
        return min(shared, key=lambda consumers: (len(consumers), consumers), default=consumed_by(home))

    def _add(self, consumers: Consumers, home: str, count: int) -> None:
        _shift(self.free.setdefault(consumers, {}), home, count)
        self.sizes[consumers] = self.sizes.get(consumers, 0) + count

    def _help(self, needy: Consumers, current: Loads, threshold: float) -> bool:
        donors = (consumers for consumers in current.by_group if consumers != needy)
        for donor in sorted(donors, key=lambda consumers: (not self.free.get(consumers), current.by_group[consumers])):
            self.sizes[donor] -= 1
            self.sizes[needy] = self.sizes.get(needy, 0) + 1
            if _no_worse(self.loads(), current, threshold):
                self._move_one(donor, needy)
                return True
            self.sizes[donor] += 1
            self.sizes[needy] -= 1
        return False

    def _move_one(self, donor: Consumers, needy: Consumers) -> None:
        part = self.free if self.free.get(donor) else self.settled
        home = _best_home(part[donor], names(donor), names(needy))
        _shift(part[donor], home, -1)
        _shift(part.setdefault(needy, {}), home, 1)


def _neediest(current: Loads) -> Consumers:
    """An unreachable domain first, then the group with the highest load."""
    return (
        consumed_by(current.unreachable[0])
        if current.unreachable
        else max(current.by_group, key=current.by_group.__getitem__)
    )


def _no_worse(after: Loads, before: Loads, threshold: float) -> bool:
    """Whether a move cuts off no domain and breaks no further group."""
    if not set(after.unreachable) <= set(before.unreachable):
        return False
    return all(
        not is_overload(load, threshold) or load <= before.by_group.get(consumers, 0.0)
        for consumers, load in after.by_group.items()
    )


def _best_home(homes: Iterable[str], donor: tuple[str, ...], needy: tuple[str, ...]) -> str:
    """The home to move from with the most in-domain traffic: moves into the home domain first, out of it last."""
    return min(homes, key=lambda home: (home not in needy, home in donor, home))


def _shift(homes: dict[str, int], home: str, count: int) -> None:
    changed = homes.get(home, 0) + count
    if changed:
        homes[home] = changed
    else:
        homes.pop(home, None)
