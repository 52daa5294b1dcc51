"""Forecast of a decision: the share of traffic that stays in its zone, the worst overload, and nodes that are cut off.

For `plan`, `explain` and the dashboard, with any policy. Every client node is assumed to send the same amount, divided
over its endpoints by weight.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from zonewise.objects import Endpoint
from zonewise.routing.decision import Decision, choose
from zonewise.routing.routing_nodes import Domains, RoutingNodes
from zonewise.routing.tiers import EVERYONE
from zonewise.topology import ZONE


@dataclass(frozen=True, slots=True)
class Forecast:
    """Shares are of 1; `cut_off` are the nodes that reach no endpoint."""

    in_zone: float
    worst_overload: float
    cut_off: tuple[str, ...]


Alike = tuple[str | None, Sequence[str]]
"""A zone, and client nodes in it that get the same endpoints."""

Gets = Callable[[str], Mapping[str, float]]
"""The addresses that the clients of a node get, with their weights."""


def forecast(decision: Decision, cluster: RoutingNodes) -> Forecast:
    """The forecast if all components follow the decision."""
    alike = clients_alike(cluster, served_domains(decision))
    return foresee(decision.endpoints, cluster, alike, lambda node: choose(decision, cluster, node).shares)


def foresee(endpoints: Mapping[str, Endpoint], cluster: RoutingNodes, alike: Iterable[Alike], gets: Gets) -> Forecast:
    zones = cluster.homes(endpoints, ZONE)
    load: dict[str, float] = defaultdict(float)
    in_zone, cut_off = 0.0, list[str]()
    for zone, clients in alike:
        shares = gets(clients[0])
        total = sum(shares.values())
        if not total:
            cut_off += clients
            continue
        for address, weight in shares.items():
            load[address] += len(clients) * weight / total
        if zone:
            in_zone += (
                len(clients) * sum(weight for address, weight in shares.items() if zones[address] == zone) / total
            )
    sending = len(cluster.clients) - len(cut_off)
    if not sending:
        return Forecast(0.0, 0.0, tuple(sorted(cut_off)))
    worst_overload = max(load.values()) * len(endpoints) / sending - 1
    return Forecast(in_zone / sending, max(0.0, worst_overload), tuple(sorted(cut_off)))


def served_domains(decision: Decision) -> dict[str, set[str]]:
    """By key, the domains that a tier has endpoints for: all that the choice of a client depends on."""
    domains: dict[str, set[str]] = {}
    for tier in (*decision.tiers, decision.walls) if decision.walls else decision.tiers:
        if tier is not EVERYONE:
            domains.setdefault(tier.key, set()).update(tier.by_domain)
    return domains


def clients_alike(cluster: RoutingNodes, served: Mapping[str, Collection[str]]) -> Sequence[Alike]:
    """Groups of clients of one zone with the same served domains.

    Of thousands of nodes, all that have no endpoint of their own form one group.
    """
    common, individual = [ZONE], dict[str, None]()
    for key, domains in served.items():
        if key == ZONE:
            continue
        by_domain = cluster.clients_by((key,))
        clients = [name for domain in sorted(domains) for name in by_domain.get((domain,), ())]
        if len(clients) * 2 < len(cluster.clients):
            individual |= dict.fromkeys(clients)
        else:
            common.append(key)
    by_zone = ((zone, names) for (zone, *_), names in cluster.clients_by(tuple(common)).items())
    grouped = [(zone, [name for name in names if name not in individual]) for zone, names in by_zone]
    by_domains: dict[Domains, list[str]] = {}
    for name in individual:
        by_domains.setdefault(tuple(_served(cluster, served, name)), []).append(name)
    return [(zone, names) for zone, names in grouped if names] + [
        (zone, names) for (zone, *_), names in by_domains.items()
    ]


def _served(cluster: RoutingNodes, served: Mapping[str, Collection[str]], client: str) -> Iterator[str | None]:
    """The zone of the client, and its other domains that have endpoints."""
    yield cluster.domains(ZONE).get(client)
    for key, domains in served.items():
        domain = cluster.domains(key).get(client)
        yield domain if domain in domains else None
