"""Nodes as routing sees them: the domains of endpoints and clients, and the traffic demand of each domain.

Built once per node change and shared by the decisions for all Services.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from zonewise.objects import Endpoint, Node
from zonewise.routing.drain import NodeDrains, drained_by_nodes
from zonewise.routing.hints_strict import cpu_shares
from zonewise.routing.reason import RoutingReason
from zonewise.topology import (
    ZONE,
    DomainCapacities,
    capacities_by_domain,
    domain_of,
    is_control_plane,
    is_ready,
)

NODE_NAME: Final = "metadata.name"
"""Used as a label key for the domain that is the node itself."""


Domains = tuple[str | None, ...]
"""The domains of a node for several keys; None for a missing one."""


@dataclass(frozen=True)
class RoutingNodes:
    nodes: Mapping[str, Node]
    _domains: dict[str, dict[str, str]] = field(default_factory=dict, repr=False, compare=False)
    _clients_by: dict[tuple[str, ...], Mapping[Domains, tuple[str, ...]]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> RoutingNodes:
        return cls({node.metadata.name: node for node in nodes})

    def domains(self, key: str) -> Mapping[str, str]:
        """The domain of every node that has one, by node name."""
        if key not in self._domains:
            all_domains = {
                name: name if key == NODE_NAME else domain_of(node.metadata.labels, key)
                for name, node in self.nodes.items()
            }
            self._domains[key] = {name: domain for name, domain in all_domains.items() if domain}
        return self._domains[key]

    def members(self, key: str, member_key: str) -> Mapping[str, set[str]]:
        """The domains of another key within each domain, such as the zones of a region; empty for an unknown domain."""
        members: dict[str, set[str]] = defaultdict(set)
        member_of = self.domains(member_key)
        for name, domain in self.domains(key).items():
            if name in member_of:
                members[domain].add(member_of[name])
        return members

    def homes(self, endpoints: Mapping[str, Endpoint], key: str) -> dict[str, str | None]:
        """The domain of each endpoint, by address: from the labels of its node, else from the slice."""
        if key == NODE_NAME:
            return {address: endpoint.node_name for address, endpoint in endpoints.items()}
        domains = self.domains(key)
        homes = {address: domains.get(endpoint.node_name or "") for address, endpoint in endpoints.items()}
        if key == ZONE and None in homes.values():
            return {address: home or endpoints[address].zone or None for address, home in homes.items()}
        return homes

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """The nodes that traffic is expected from: ready workers, else ready nodes, else all."""
        ready = [node for node in self.nodes.values() if is_ready(node)]
        workers = [node for node in ready if not is_control_plane(node.metadata.labels)]
        return tuple(node.metadata.name for node in workers or ready or self.nodes.values())

    @cached_property
    def client_names(self) -> frozenset[str]:
        return frozenset(self.clients)

    def clients_by(self, keys: tuple[str, ...]) -> Mapping[Domains, tuple[str, ...]]:
        """Clients grouped by their domains, which are all that routing distinguishes."""
        if keys not in self._clients_by:
            clients: dict[Domains, list[str]] = {}
            domains = [self.domains(key) for key in keys]
            for name in self.clients:
                clients.setdefault(tuple(by_name.get(name) for by_name in domains), []).append(name)
            self._clients_by[keys] = {same_domains: tuple(names) for same_domains, names in clients.items()}
        return self._clients_by[keys]

    def demand(self, key: str, clients: Iterable[str] | None = None) -> dict[str, int]:
        """The number of client nodes per domain, sorted by name: traffic is assumed proportional to it."""
        if clients is None:
            return self._demand(key)
        domains = self.domains(key)
        return dict(sorted(Counter(domains[name] for name in clients if name in domains).items()))

    def _demand(self, key: str) -> dict[str, int]:
        clients = self.clients_by((key,))
        return dict(sorted((domain, len(names)) for (domain,), names in clients.items() if domain))

    def clients_without(self, key: str) -> list[str]:
        return sorted(self.clients_by((key,)).get((None,), ()))

    @cached_property
    def capacities(self) -> DomainCapacities:
        return capacities_by_domain(self.nodes.values())

    @cached_property
    def node_drains(self) -> NodeDrains:
        return drained_by_nodes(self.nodes.values())

    @cached_property
    def cpu_shares(self) -> Mapping[str, float] | RoutingReason:
        """CPU shares of the zones as the stock controller computes them, or why it cannot."""
        return cpu_shares(self.nodes.values())
