"""What a decision will do to traffic: the share that stays in its zone, the worst overload, and who is cut off.

For `plan`, `explain` and the dashboard, whatever rule decided. Every client node is taken to send as much as any other,
to everything it gets in proportion to the weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zonewise.objects import Endpoint
from zonewise.routing.cluster import Domains, RoutingNodes
from zonewise.routing.decision import Decision, choose
from zonewise.routing.tiers import EVERYONE
from zonewise.topology import ZONE


@dataclass(frozen=True, slots=True)
class Forecast:
    """Shares of 1; `cut_off` are the nodes that reach no endpoint."""

    in_zone: float
    worst_overload: float
    cut_off: tuple[str, ...]


Alike = tuple[str | None, Sequence[str]]
"""A zone, and client nodes of it that get the same endpoints."""

Gets = Callable[[str], Mapping[str, float]]
"""The addresses that the clients of a node get, with their weights."""


def forecast(decision: Decision, cluster: RoutingNodes) -> Forecast:
    """Where all is done that was decided."""
    alike = clients_alike(cluster, served_domains(decision))
    return foresee(decision.endpoints, cluster, alike, lambda node: choose(decision, cluster, node).shares)


def foresee(endpoints: Mapping[str, Endpoint], cluster: RoutingNodes, alike: Iterable[Alike], gets: Gets) -> Forecast:
    zones = cluster.homes(endpoints, ZONE)
    load: dict[str, float] = defaultdict(float)
    met, cut_off = 0.0, list[str]()
    for zone, clients in alike:
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
        return Forecast(0.0, 0.0, tuple(sorted(cut_off)))
    worst = max(load.values()) * len(endpoints) / sending - 1
    return Forecast(met / sending, max(0.0, worst), tuple(sorted(cut_off)))


def served_domains(decision: Decision) -> dict[str, set[str]]:
    """What a client's answer depends on: by key, the domains that a rule has endpoints for."""
    found: dict[str, set[str]] = {}
    for tier in (*decision.tiers, decision.walls) if decision.walls else decision.tiers:
        if tier is not EVERYONE:
            found.setdefault(tier.key, set()).update(tier.by_domain)
    return found


def clients_alike(cluster: RoutingNodes, served: Mapping[str, Collection[str]]) -> Sequence[Alike]:
    """Clients of one zone whose domains are the same, or served by nobody: of thousands of nodes, all that have no endpoint
    of their own are as one.
    """
    common, few = [ZONE], dict[str, None]()
    for key, domains in served.items():
        if key == ZONE:
            continue
        by_domain = cluster.clients_by((key,))
        found = [name for domain in sorted(domains) for name in by_domain.get((domain,), ())]
        if len(found) * 2 < len(cluster.clients):
            few |= dict.fromkeys(found)
        else:
            common.append(key)
    rest = ((zone, names) for (zone, *_), names in cluster.clients_by(tuple(common)).items())
    many = [(zone, [name for name in names if name not in few]) for zone, names in rest]
    apart: dict[Domains, list[str]] = {}
    for name in few:
        apart.setdefault(tuple(_served(cluster, served, name)), []).append(name)
    return [(zone, names) for zone, names in many if names] + [(zone, names) for (zone, *_), names in apart.items()]


def _served(cluster: RoutingNodes, served: Mapping[str, Collection[str]], client: str) -> Iterator[str | None]:
    """Its zone, and its other domains that somebody serves."""
    yield cluster.domains(ZONE).get(client)
    for key, domains in served.items():
        domain = cluster.domains(key).get(client)
        yield domain if domain in domains else None
