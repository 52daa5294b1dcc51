"""What a decision will do to traffic: the share that stays in its zone, the worst overload, and who is cut off.

For `plan`, `explain` and the dashboard, whatever rule decided. Every client node is taken to send as much as any other,
to everything it gets in proportion to the weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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


def forecast(decision: Decision, cluster: Cluster) -> Forecast:
    zones = cluster.homes(decision.endpoints, ZONE)
    load: dict[str, float] = defaultdict(float)
    met, cut_off = 0.0, []
    for clients in _alike(decision, cluster):
        shares = choose(decision, cluster, clients[0]).shares
        whole = sum(shares.values())
        if not whole:
            cut_off += clients
            continue
        for address, weight in shares.items():
            load[address] += len(clients) * weight / whole
        by_zone = _weight_by_zone(shares, zones)
        met += sum(by_zone.get(cluster.domains(ZONE).get(name), 0.0) / whole for name in clients)
    sending = len(cluster.clients) - len(cut_off)
    if not sending:
        return Forecast(0.0, 0.0, tuple(cut_off))
    worst = max(load.values()) * len(decision.endpoints) / sending - 1
    return Forecast(met / sending, max(0.0, worst), tuple(sorted(cut_off)))


def _alike(decision: Decision, cluster: Cluster) -> Iterator[list[str]]:
    """The client nodes, those together that get the same."""
    asked = (*decision.tiers, decision.walls) if decision.walls else decision.tiers
    served = [(cluster.domains(tier.key), tier.by_domain) for tier in asked if tier is not EVERYONE]
    alike: dict[tuple[str | None, ...], list[str]] = {}
    for name in cluster.clients:
        gets = tuple(domain if (domain := found.get(name)) in there else None for found, there in served)
        alike.setdefault(gets, []).append(name)
    yield from alike.values()


def _weight_by_zone(shares: Mapping[str, float], zones: Mapping[str, str | None]) -> Mapping[str | None, float]:
    found: dict[str | None, float] = defaultdict(float)
    for address, weight in shares.items():
        if zone := zones[address]:
            found[zone] += weight
    return found
