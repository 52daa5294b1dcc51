"""A routing decision, and what one client gets from it.

`decide` makes decisions; the node proxy, DNS and `explain` call `choose` for the clients of a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from zonewise.objects import Endpoint
from zonewise.routing.drain import NO_CONSUMERS, NO_DRAIN, Drain
from zonewise.routing.policy import PolicyReading
from zonewise.routing.reason import NO_ENDPOINT_READY, RoutingCode, RoutingReason, RoutingSubject
from zonewise.routing.routing_nodes import RoutingNodes
from zonewise.routing.tiers import EVERYONE, Memory, Tier


@dataclass(frozen=True, slots=True)
class Decision:
    """Tiers are tried in order; `walls`, if any, are domains that no traffic leaves in any tier.

    `endpoints` take traffic, by address. The first of `reasons` is the main one; more follow if several levels apply or
    a zone is drained. `drained` are the endpoints that take no traffic because of a drain.
    """

    reading: PolicyReading
    endpoints: Mapping[str, Endpoint]
    tiers: tuple[Tier, ...]
    reasons: tuple[RoutingReason, ...]
    walls: Tier | None = None
    drained: Mapping[str, Endpoint] = field(default_factory=dict)
    drain: Drain = NO_DRAIN

    @property
    def reason(self) -> RoutingReason:
        return self.reasons[0]

    @property
    def complaints(self) -> tuple[RoutingReason, ...]:
        return (*self.reading.complaints, *self.drain.complaints)

    @property
    def memory(self) -> Memory:
        """The input of the next decision."""
        drained = dict.fromkeys(self.drained, NO_CONSUMERS)
        return {tier.key: {**tier.consumers, **drained} for tier in self.tiers if tier is not EVERYONE}


@dataclass(frozen=True, slots=True)
class ClientChoice:
    """The endpoints of one client: addresses with weights, and the tier they come from (None if there are none)."""

    shares: Mapping[str, float]
    tier: Tier | None
    reason: RoutingReason


def choose(decision: Decision, cluster: RoutingNodes, client: str) -> ClientChoice:
    """The endpoints for clients on one node. An unknown node counts as one without labels."""
    within = _served(decision.walls, cluster, client) if decision.walls else decision.endpoints
    for tier in decision.tiers:
        if tier is EVERYONE:
            shares = dict.fromkeys(within, 1.0)
        else:
            served = _served(tier, cluster, client)
            shares = {address: weight for address, weight in served.items() if address in within}
        if shares:
            return ClientChoice(shares, tier, _chosen(decision, cluster, client, tier, len(shares)))
    return ClientChoice({}, None, _none_reachable(decision, cluster, client))


def _served(tier: Tier, cluster: RoutingNodes, client: str) -> Mapping[str, float]:
    domain = cluster.domains(tier.key).get(client)
    return tier.by_domain.get(domain, {}) if domain else {}


def _chosen(decision: Decision, cluster: RoutingNodes, client: str, tier: Tier, count: int) -> RoutingReason:
    limit = decision.walls if tier is EVERYONE and decision.walls else tier
    where = "for every client" if limit is EVERYONE else f"for {limit.key}={cluster.domains(limit.key).get(client)}"
    sentence = f"{count} of {len(decision.endpoints)} endpoints, {where}"
    facts = {"client": client, "chosen": count, "endpoints": len(decision.endpoints), "tier": tier.key}
    return RoutingReason(RoutingCode.CHOSEN, sentence, facts)


def _none_reachable(decision: Decision, cluster: RoutingNodes, client: str) -> RoutingReason:
    if not decision.endpoints:
        return NO_ENDPOINT_READY
    facts = {"client": client, "endpoints": len(decision.endpoints)}
    tiers = (decision.walls,) if decision.walls else decision.tiers
    where = ", ".join(f"{tier.key}={cluster.domains(tier.key).get(client, '(none)')}" for tier in tiers)
    return RoutingReason(
        RoutingCode.NONE_REACHABLE,
        f"none of {len(decision.endpoints)} endpoints is for node {client} ({where}), and the rule is hard",
        facts,
        (RoutingSubject("Node", client),),
        "run an endpoint there, or make the rule soft",
    )
