"""Allowed disruptions per domain, computed from slots and healthy pods. Pure.

`count` makes the tally from pods. A charge changes the tally and is computed here as well, so the leader's full count and
a webhook's single step give the same numbers. A budget without a term gives exactly the numbers of a stock PDB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from zonewise.disruption.decide.budget import Budget, BudgetDomainKey


class DomainFill(NamedTuple):
    """`slots`: pods of a domain that exist or are missing. `healthy`: those that serve."""

    slots: int
    healthy: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainCount:
    """`expected`: wanted by all owners. `surplus`: pods beyond that, by owner. `unplaced`: missing from an unknown domain.

    `outside`: slots of the same owners in domains that the budget does not cover; they take part in a scale-down.
    `failure`: why it is not known how many pods there should be; the budget allows nothing then.
    """

    expected: int = 0
    uncovered: int = 0
    unmanaged: int = 0
    unplaced: int = 0
    domains: Mapping[str, DomainFill] = field(default_factory=dict)
    surplus: Mapping[str, int] = field(default_factory=dict)
    outside: Mapping[str, int] = field(default_factory=dict)
    failure: str = ""

    def charged(self, domain: str, owner: str) -> DomainCount:
        """With one more pod charged. If its owner has a surplus, the pod takes its slot along."""
        slots, healthy = self.domains.get(domain, DomainFill(0, 0))
        left = self.surplus.get(owner, 0)
        filling = DomainFill(max(0, slots - 1) if left else slots, max(0, healthy - 1))
        surplus = {uid: pods - (uid == owner) for uid, pods in self.surplus.items()}
        surplus = {uid: pods for uid, pods in surplus.items() if pods}
        outside = self.outside if surplus else {}
        return replace(self, domains={**self.domains, domain: filling}, surplus=surplus, outside=outside)


@dataclass(frozen=True, slots=True)
class DomainAllowance:
    """`target`: the domain's share once any surplus has left. `desired`: how many of it must be healthy."""

    name: str
    slots: int
    target: int
    healthy: int
    desired: int
    allowed: int

    @property
    def surplus(self) -> int:
        return max(0, self.slots - self.target)

    @property
    def disrupted(self) -> bool:
        return self.healthy < self.slots


@dataclass(frozen=True, slots=True)
class BudgetAllowance:
    """What a budget publishes. `outside_surplus`: domains it does not cover that have more pods than their share."""

    tally: DomainCount
    domains: Mapping[str, DomainAllowance]
    outside_surplus: frozenset[str] = frozenset()

    @property
    def allowed(self) -> int:
        return sum(domain.allowed for domain in self.domains.values())

    @property
    def healthy(self) -> int:
        return sum(domain.healthy for domain in self.domains.values())

    @property
    def desired(self) -> int:
        return sum(domain.desired for domain in self.domains.values())

    def has_surplus(self, domain_key: BudgetDomainKey) -> bool:
        """Whether the domain has more pods than its share."""
        if not domain_key.covered:
            return domain_key.domain in self.outside_surplus
        return domain_key.domain in self.domains and self.domains[domain_key.domain].surplus > 0

    @property
    def any_surplus(self) -> bool:
        if not self.tally.surplus:
            return False
        return bool(self.outside_surplus) or any(domain.surplus for domain in self.domains.values())


NO_NUMBERS: Final = BudgetAllowance(DomainCount(), {})


def compute_allowance(budget: Budget, tally: DomainCount) -> BudgetAllowance:
    targets = _targets(budget, tally)
    domains = {
        name: _domain(budget, tally, name, filling, targets[BudgetDomainKey(name, covered=True)])
        for name, filling in sorted(tally.domains.items())
    }
    outside = {name for name, slots in tally.outside.items() if slots > targets[BudgetDomainKey(name, covered=False)]}
    return BudgetAllowance(tally, _spare_whole_domains(budget, tally, domains), frozenset(outside))


def charge(budget: Budget, numbers: BudgetAllowance, domain: str, owner: str) -> BudgetAllowance:
    """The numbers with one more pod of a domain charged. Usually only those of that domain change.

    A wave over thousands of domains takes as many steps, so a step must not compute all of them.
    """
    tally = numbers.tally.charged(domain, owner)
    target = _only_change(budget, numbers, tally, domain)
    if target is None:
        return compute_allowance(budget, tally)
    own = _domain(budget, tally, domain, tally.domains[domain], target)
    return replace(numbers, tally=tally, domains={**numbers.domains, domain: own})


def _only_change(budget: Budget, numbers: BudgetAllowance, tally: DomainCount, domain: str) -> int | None:
    """The domain's new target if only its own numbers change, otherwise None."""
    before = numbers.domains.get(domain)
    if before is None or not budget.split_keys:
        return None
    if budget.max_disrupted_domains is not None and not before.disrupted:
        return None
    if tally.surplus == numbers.tally.surplus:
        return before.target
    level = _level(tally)
    return None if level is None or level != _level(numbers.tally) else min(tally.domains[domain].slots, level)


def _domain(budget: Budget, tally: DomainCount, name: str, filling: DomainFill, target: int) -> DomainAllowance:
    desired = budget.desired(target)
    spare = spare_pods(budget, tally, filling.healthy, desired)
    closed = budget.frozen or tally.failure or _without_base(budget, tally)
    allowed = 0 if closed else max(0, spare)
    return DomainAllowance(name, filling.slots, target, filling.healthy, desired, allowed)


def spare_pods(budget: Budget, tally: DomainCount, healthy: int, desired: int) -> int:
    """Unplaced missing pods may be missing here, so they lower every domain; not so with minAvailable."""
    return healthy - desired - (tally.unplaced if budget.maximum is not None else 0)


def _without_base(budget: Budget, tally: DomainCount) -> bool:
    """No controller tells how many pods there should be, so only a plain minimum over all pods can be kept."""
    return tally.expected == 0 and tally.unmanaged > 0 and not (budget.whole and budget.fixed_minimum)


def _targets(budget: Budget, tally: DomainCount) -> dict[BudgetDomainKey, int]:
    slots = {BudgetDomainKey(name, covered=True): filling.slots for name, filling in tally.domains.items()}
    slots |= {BudgetDomainKey(name, covered=False): count for name, count in tally.outside.items()}
    if budget.whole:
        return dict.fromkeys(slots, tally.expected)
    if not budget.split_keys:
        return _shares(slots, max(0, sum(slots.values()) - sum(tally.surplus.values())))
    level = _level(tally)
    return {domain_key: count if level is None else min(count, level) for domain_key, count in slots.items()}


def _level(tally: DomainCount) -> int | None:
    slots = [*(filling.slots for filling in tally.domains.values()), *tally.outside.values()]
    return level_down(slots, sum(slots) - sum(tally.surplus.values()))


def _shares(slots: Mapping[BudgetDomainKey, int], staying: int) -> dict[BudgetDomainKey, int]:
    total = sum(slots.values())
    return {domain_key: -(-count * staying // total) if total else 0 for domain_key, count in slots.items()}


def level_down(slots: Iterable[int], staying: int) -> int | None:
    """The highest level that no domain need exceed for `staying` pods to remain; None if all may stay as they are."""
    rising = sorted(slots)
    if sum(rising) <= staying:
        return None
    below = 0
    for index, count in enumerate(rising):
        higher = len(rising) - index
        if below + count * higher > staying:
            return max(0, (staying - below) // higher)
        below += count
    return None


def _spare_whole_domains(
    budget: Budget, tally: DomainCount, domains: dict[str, DomainAllowance]
) -> dict[str, DomainAllowance]:
    """Once enough domains are disrupted, the whole ones stay whole. An unplaced missing pod may disrupt one more domain."""
    disrupted = sum(domain.disrupted for domain in domains.values()) + (tally.unplaced > 0)
    if budget.max_disrupted_domains is None or disrupted < budget.max_disrupted_domains:
        return domains
    return {name: domain if domain.disrupted else replace(domain, allowed=0) for name, domain in domains.items()}
