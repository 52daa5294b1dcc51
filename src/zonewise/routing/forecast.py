"""What a decision will do to traffic: the share that stays in its zone, the worst overload, and who is cut off.

For `plan`, `explain` and the dashboard, whatever rule decided. Every client node is taken to send as much as any other,
to everything it gets in proportion to the weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from zonewise.objects import Endpoint
from zonewise.routing.cluster import Cluster
from zonewise.routing.decision import Decision, choose
from zonewise.routing.tiers import EVERYONE
from zonewise.topology import ZONE


@dataclass(frozen=True, slots=True)
class Forecast:
    """Shares of 1; `cut_off` are the nodes that reach no endpoint."""

    in_zone: float
    worst_overload: float
    cut_off: tuple[str, ...]


Gets = Callable[[str], Mapping[str, float]]
"""The addresses that the clients of a node get, with their weights."""


def forecast(decision: Decision, cluster: Cluster) -> Forecast:
    """Where all is done that was decided."""
    return foresee(
        decision.endpoints, cluster, client_keys(decision), lambda node: choose(decision, cluster, node).shares
    )


def foresee(endpoints: Mapping[str, Endpoint], cluster: Cluster, keys: tuple[str, ...], gets: Gets) -> Forecast:
    """`keys` tell clients apart that get different endpoints, the first of them by their zone."""
    zones = cluster.homes(endpoints, ZONE)
    load: dict[str, float] = defaultdict(float)
    met, cut_off = 0.0, list[str]()
    for (zone, *_), clients in cluster.clients_by(keys).items():
        shares = gets(clients[0])
        whole = sum(shares.values())
        if not whole:
            cut_off += clients
            continue
        for address, weight in shares.items():
            load[address] += len(clients) * weight / whole
        if zone:
            met += len(clients) * sum(weight for address, weight in shares.items() if zones[address] == zone) / whole
    sending = len(cluster.clients) - len(cut_off)
    if not sending:
        return Forecast(0.0, 0.0, tuple(cut_off))
    worst = max(load.values()) * len(endpoints) / sending - 1
    return Forecast(met / sending, max(0.0, worst), tuple(sorted(cut_off)))


def client_keys(decision: Decision) -> tuple[str, ...]:
    """What a client's answer depends on, after its zone."""
    asked = (*decision.tiers, decision.walls) if decision.walls else decision.tiers
    return (ZONE, *dict.fromkeys(tier.key for tier in asked if tier is not EVERYONE and tier.key != ZONE))
