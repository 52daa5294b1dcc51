"""A routing decision and what one client gets from it.

`decide` makes decisions; the node proxy and DNS ask `choose` for the clients of a node, `explain` for its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from zonewise.routing.cluster import Cluster
from zonewise.routing.policy import Reading
from zonewise.routing.reason import NO_ENDPOINT_READY, Code, Reason, Subject
from zonewise.routing.tiers import EVERYONE, Memory, Tier


@dataclass(frozen=True, slots=True)
class Decision:
    """Tiers are tried in order; `within`, if set, is the key of walls that no traffic crosses.

    `homes` has every endpoint that takes traffic, with its walled domain (None where there are no walls). The first of
    `reasons` is the answer to "why"; more follow where more than one level had a say.
    """

    reading: Reading
    homes: Mapping[str, str | None]
    tiers: tuple[Tier, ...]
    reasons: tuple[Reason, ...]
    within: str | None = None

    @property
    def reason(self) -> Reason:
        return self.reasons[0]

    @property
    def complaints(self) -> tuple[Reason, ...]:
        return self.reading.complaints

    @property
    def memory(self) -> Memory:
        """What the next decision starts from."""
        return {tier.key: tier.consumers for tier in self.tiers if tier is not EVERYONE}


@dataclass(frozen=True, slots=True)
class Choice:
    """What one client gets: addresses and their weights, and the tier that gave them (None when nothing did)."""

    shares: Mapping[str, float]
    tier: Tier | None
    reason: Reason


def choose(decision: Decision, cluster: Cluster, client: str) -> Choice:
    """What the clients on one node get. A node that the cluster does not know has no labels."""
    candidates = _within_walls(decision, cluster, client)
    for tier in decision.tiers:
        if tier is EVERYONE:
            where, served = "for every client", dict.fromkeys(candidates, 1.0)
        else:
            domain = cluster.domains(tier.key).get(client)
            where, served = f"for {tier.key}={domain}", tier.serving(domain, candidates) if domain else {}
        if served:
            facts = {"client": client, "chosen": len(served), "endpoints": len(decision.homes), "tier": tier.key}
            sentence = f"{len(served)} of {len(decision.homes)} endpoints, {where}"
            return Choice(served, tier, Reason(Code.CHOSEN, sentence, facts))
    return Choice({}, None, _none_reachable(decision, cluster, client))


def _within_walls(decision: Decision, cluster: Cluster, client: str) -> list[str]:
    if decision.within is None:
        return list(decision.homes)
    wall = cluster.domains(decision.within).get(client)
    return [address for address, home in decision.homes.items() if wall and home == wall]


def _none_reachable(decision: Decision, cluster: Cluster, client: str) -> Reason:
    if not decision.homes:
        return NO_ENDPOINT_READY
    facts = {"client": client, "endpoints": len(decision.homes)}
    keys = (decision.within,) if decision.within else tuple(tier.key for tier in decision.tiers)
    where = ", ".join(f"{key}={cluster.domains(key).get(client, '(none)')}" for key in keys)
    return Reason(
        Code.NONE_REACHABLE,
        f"none of {len(decision.homes)} endpoints is for node {client} ({where}), and the rule is hard",
        facts,
        (Subject("Node", client),),
        "run an endpoint there, or make the rule soft",
    )
