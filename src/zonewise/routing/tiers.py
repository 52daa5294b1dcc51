"""Tiers, the common form of every routing decision: tried in order until one has endpoints for the client.

A tier lists for each endpoint the domains of one label key that consume it. A preference list is one tier per key;
`Prefer` is the assignment of endpoints to zones and then everyone; a hard rule does not end with everyone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from zonewise.routing.load import Consumers, consumed_by

EVERY_CLIENT: Final = "*"


@dataclass(frozen=True)
class Tier:
    """`consumers` by address; an endpoint that is missing has no consumer in this tier."""

    key: str
    consumers: Mapping[str, Consumers]

    @cached_property
    def by_domain(self) -> Mapping[str, Mapping[str, float]]:
        """The addresses that each domain consumes, with their weights."""
        addresses: dict[str, dict[str, float]] = {}
        for address, consumers in self.consumers.items():
            for domain, weight in consumers:
                addresses.setdefault(domain, {})[address] = weight
        return addresses


EVERYONE: Final = Tier(EVERY_CLIENT, {})
"""The last tier of every soft rule: all endpoints for all clients."""

Memory = Mapping[str, Mapping[str, Consumers]]
"""The consumers of each endpoint in the last decision, by tier key: the input of the next decision."""


def own_tier(key: str, homes: Mapping[str, str | None]) -> Tier:
    """A tier in which every endpoint serves the clients of its own domain."""
    consumers_of = {home: consumed_by(home) for home in homes.values() if home}
    return Tier(key, {address: consumers_of[home] for address, home in homes.items() if home})
