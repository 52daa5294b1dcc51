"""How many endpoints of each domain go to which consumers: afresh by an algorithm, or by repairing what is there.

Works on numbers only. `prefer` chooses between the two answers, and `pick` turns the chosen one into endpoints.
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
"""The home of endpoints outside the domains in question."""


def afresh(
    algorithm: Algorithm, demand: Mapping[str, int], homes: Counter[str], threshold: float, settled: Composition
) -> Composition:
    """What the algorithm makes of these endpoints, empty where it spreads them evenly.

    Endpoints from outside count where they are needed most. An algorithm that weighs moves is told what is `settled`.
    """
    guests = _place_guests(demand, homes)
    own = [homes[domain] + guests[domain] for domain in demand]
    previous = _as_groups(settled, demand, guests) if settled else None
    answer = assign(algorithm, list(demand.values()), own, threshold=threshold, starting_factor=0, previous=previous)
    if answer.is_balanced:
        return {}
    made: Composition = {}
    for group in answer.groups:
        consumers = tuple(LoadShare(d, weight) for d, weight in zip(demand, group.weights, strict=True) if weight)
        for domain, count in zip(demand, group.composition, strict=True):
            _shift(made.setdefault(consumers, {}), domain, count)
    for domain, count in guests.items():
        _admit_guests(made, domain, count)
    return made


def _as_groups(settled: Composition, demand: Mapping[str, int], guests: Counter[str]) -> EndpointGroups:
    """Settled endpoints by domain; those from outside count as the domain's whose guests they are."""
    unnamed = Counter(guests)
    groups = []
    for consumers, homes in settled.items():
        own = {domain: homes.get(domain, 0) for domain in demand}
        for domain in demand:
            taken = min(unnamed[domain], sum(homes.values()) - sum(own.values()))
            own[domain] += taken
            unnamed[domain] -= taken
        weights = dict(consumers)
        groups.append(EndpointGroup(tuple(own.values()), tuple(weights.get(domain, 0.0) for domain in demand)))
    return EndpointGroups(tuple(groups))


def _place_guests(demand: Mapping[str, int], homes: Counter[str]) -> Counter[str]:
    """One by one to the domain that lacks most of its share."""
    whole, endpoints = sum(demand.values()), sum(homes.values())
    lacking = {domain: endpoints * nodes - homes[domain] * whole for domain, nodes in demand.items()}
    guests: Counter[str] = Counter()
    for _ in range(homes[OUTSIDE]):
        domain = max(lacking, key=lacking.__getitem__)
        lacking[domain] -= whole
        guests[domain] += 1
    return guests


def _admit_guests(made: Composition, domain: str, count: int) -> None:
    """Guests counted as a domain's own are the first that it lends to others."""
    lent_first = sorted(made, key=lambda consumers: domain in names(consumers))
    for consumers in lent_first:
        taken = min(count, made[consumers].get(domain, 0))
        if taken:
            _shift(made[consumers], domain, -taken)
            _shift(made[consumers], OUTSIDE, taken)
            count -= taken


class AssignmentDraft:
    """An assignment in numbers while it is repaired: settled endpoints, and free ones that are moved before them."""

    def __init__(self, demand: Mapping[str, int], settled: Composition, free: Mapping[str, int]) -> None:
        self.demand = demand
        self.settled = {consumers: dict(homes) for consumers, homes in settled.items()}
        self.free: Composition = {}
        self.sizes = sizes_of(settled)
        for home in sorted(free, reverse=True):
            self._welcome(home, free[home])

    def composition(self) -> Composition:
        whole: Composition = {}
        for part in (self.settled, self.free):
            for consumers, homes in part.items():
                for home, count in homes.items():
                    _shift(whole.setdefault(consumers, {}), home, count)
        return {consumers: homes for consumers, homes in whole.items() if homes}

    def loads(self) -> Loads:
        return loads(self.sizes, self.demand)

    def repair(self, threshold: float) -> bool:
        """Moves endpoints one by one until no threshold is broken; False when there is none left to take.

        Ends: a move takes from a group that is fine and stays so, and gives to one that is not.
        """
        while not (now := self.loads()).within(threshold):
            if not self._help(_neediest(now), now, threshold):
                return False
        return True

    def _welcome(self, home: str, count: int) -> None:
        """New endpoints go to their own domain, those from outside where the load is highest."""
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

    def _help(self, needy: Consumers, now: Loads, threshold: float) -> bool:
        donors = (consumers for consumers in now.by_group if consumers != needy)
        for donor in sorted(donors, key=lambda consumers: (not self.free.get(consumers), now.by_group[consumers])):
            self.sizes[donor] -= 1
            self.sizes[needy] = self.sizes.get(needy, 0) + 1
            if _no_worse(self.loads(), now, threshold):
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


def _neediest(now: Loads) -> Consumers:
    """A domain that reaches nothing first, then the group with the highest load."""
    return consumed_by(now.unreachable[0]) if now.unreachable else max(now.by_group, key=now.by_group.__getitem__)


def _no_worse(after: Loads, before: Loads, threshold: float) -> bool:
    """No domain is cut off by a move, and no group broken that was not."""
    if not set(after.unreachable) <= set(before.unreachable):
        return False
    return all(
        not is_overload(load, threshold) or load <= before.by_group.get(consumers, 0.0)
        for consumers, load in after.by_group.items()
    )


def _best_home(homes: Iterable[str], donor: tuple[str, ...], needy: tuple[str, ...]) -> str:
    """Whose move keeps most traffic at home: an endpoint that comes home first, one that was at home last."""
    return min(homes, key=lambda home: (home not in needy, home in donor, home))


def _shift(homes: dict[str, int], home: str, count: int) -> None:
    changed = homes.get(home, 0) + count
    if changed:
        homes[home] = changed
    else:
        homes.pop(home, None)
