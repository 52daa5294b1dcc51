"""The common form of every routing decision: tiers, tried in order until one has endpoints for the client.

A tier says for each endpoint which domains of one label key consume it. A preference list is a tier per key; `Prefer`
is the assignment of endpoints to zones and then everyone; a hard rule is a list that does not end with everyone.
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
    """`consumers` by address; an endpoint that is not there is for nobody in this tier."""

    key: str
    consumers: Mapping[str, Consumers]

    @cached_property
    def by_domain(self) -> Mapping[str, Mapping[str, float]]:
        """The addresses that each domain consumes, with their weights."""
        found: dict[str, dict[str, float]] = {}
        for address, consumers in self.consumers.items():
            for domain, weight in consumers:
                found.setdefault(domain, {})[address] = weight
        return found


EVERYONE: Final = Tier(EVERY_CLIENT, {})
"""The last tier of every soft rule: all endpoints for all clients."""

Memory = Mapping[str, Mapping[str, Consumers]]
"""Who consumed which endpoints last time, by the key of the tier: what the next decision starts from."""


def own_tier(key: str, homes: Mapping[str, str | None]) -> Tier:
    """Every endpoint for the clients of its own domain."""
    alone = {home: consumed_by(home) for home in homes.values() if home}
    return Tier(key, {address: alone[home] for address, home in homes.items() if home})
