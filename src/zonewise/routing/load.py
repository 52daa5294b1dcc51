"""Load of endpoints by their consumers: the arithmetic under every preference.

A group is a number of endpoints with the same consumers. The traffic of a domain, assumed proportional to its demand, is
divided over the groups it consumes in proportion to size times weight, and evenly within a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

_ROUNDING: Final = 1e-9


class LoadShare(NamedTuple):
    domain: str
    weight: float = 1.0


Consumers = tuple[LoadShare, ...]
"""Sorted by domain. The empty tuple means every client."""

Composition = dict[Consumers, dict[str, int]]
"""Endpoints of each group by home domain; the home "" means outside the given domains."""


def consumed_by(*domains: str) -> Consumers:
    return tuple(LoadShare(domain) for domain in sorted(domains))


def names(consumers: Consumers) -> tuple[str, ...]:
    return tuple(share.domain for share in consumers)


@dataclass(frozen=True, slots=True)
class Loads:
    """Per endpoint, relative to an even spread: 1.5 is half as much again. `unreachable` domains have no endpoint."""

    by_group: Mapping[Consumers, float]
    unreachable: tuple[str, ...]

    @property
    def worst_overload(self) -> float:
        return max(0.0, max(self.by_group.values(), default=0.0) - 1)

    def within(self, threshold: float) -> bool:
        """Whether every domain is served and no endpoint's overload reaches the threshold."""
        return not self.unreachable and not any(is_overload(load, threshold) for load in self.by_group.values())


def is_overload(load: float, threshold: float) -> bool:
    return load - 1 >= threshold - _ROUNDING


def loads(sizes: Mapping[Consumers, int], demand: Mapping[str, int]) -> Loads:
    capacity = _capacity(sizes, demand)
    even = sum(sizes.values()) / sum(demand.values())
    unit = {domain: even * demand[domain] / weight_sum for domain, weight_sum in capacity.items() if weight_sum}
    by_group = {
        consumers: sum(unit[share.domain] * share.weight for share in consumers)
        for consumers, size in sizes.items()
        if size
    }
    return Loads(by_group, tuple(domain for domain in demand if domain not in unit))


def sizes_of(composition: Composition) -> dict[Consumers, int]:
    return {consumers: sum(homes.values()) for consumers, homes in composition.items()}


def in_domain_share(composition: Composition, demand: Mapping[str, int]) -> float:
    """The share of all traffic that reaches an endpoint of its own domain."""
    capacity = _capacity(sizes_of(composition), demand)
    own = dict.fromkeys(demand, 0.0)
    for consumers, homes in composition.items():
        for domain, weight in consumers:
            own[domain] += homes.get(domain, 0) * weight
    in_domain = sum(demand[domain] * own[domain] / weight_sum for domain, weight_sum in capacity.items() if weight_sum)
    return in_domain / sum(demand.values())


def _capacity(sizes: Mapping[Consumers, int], demand: Mapping[str, int]) -> dict[str, float]:
    capacity = dict.fromkeys(demand, 0.0)
    for consumers, size in sizes.items():
        for domain, weight in consumers:
            capacity[domain] += size * weight
    return capacity
