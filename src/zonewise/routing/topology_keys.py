"""Topology keys: the first label in a preference list that an endpoint shares with the client decides.

Both sides are resolved through node labels, so any key works and the host name means the same on both sides. A list
without the catch-all is hard: a client that shares no label with any endpoint reaches none.
"""

from __future__ import annotations

from collections.abc import Mapping

from zonewise.objects import Endpoint
from zonewise.routing.policy import TopologyKeys
from zonewise.routing.reason import RoutingCode, RoutingReason, RoutingSubject
from zonewise.routing.routing_nodes import RoutingNodes
from zonewise.routing.tiers import EVERYONE, Tier, own_tier


def key_tiers(policy: TopologyKeys, endpoints: Mapping[str, Endpoint], cluster: RoutingNodes) -> tuple[Tier, ...]:
    tiers = tuple(own_tier(key, cluster.homes(endpoints, key)) for key in policy.keys)
    return (*tiers, EVERYONE) if policy.soft else tiers


def key_reason(policy: TopologyKeys, tiers: tuple[Tier, ...], endpoints: Mapping[str, Endpoint]) -> RoutingReason:
    """Names the endpoints that match no key: a hard list hides them from all clients."""
    kind = "soft" if policy.soft else "hard"
    sentence = f"clients get the endpoints that share the first of {', '.join(policy.keys) or '*'} with them ({kind})"
    facts = {"keys": policy.keys, "soft": policy.soft, "endpoints": len(endpoints)}
    hidden = [address for address in endpoints if not any(address in tier.consumers for tier in tiers)]
    if policy.soft or not hidden:
        return RoutingReason(RoutingCode.TOPOLOGY_KEYS, sentence, facts)
    return RoutingReason(
        RoutingCode.TOPOLOGY_KEYS,
        f"{sentence}; {len(hidden)} endpoints run on nodes with none of these labels and get no traffic",
        {**facts, "hidden": len(hidden)},
        tuple(RoutingSubject("Endpoint", address) for address in hidden),
        'label their nodes, or end the list with "*"',
    )
