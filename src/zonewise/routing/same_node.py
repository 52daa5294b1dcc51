"""Same node preference: which nodes keep to their own endpoints. Decided after zones and regions.

An endpoint gets traffic from its own node, if that keeps to its endpoints, and from all nodes that do not and share it:
those without endpoints, those that would overload theirs, and those of zones that borrow it. A node keeps to its
endpoints only if none of them is overloaded by the sum. A node that gives up sends more to the endpoints of others, and
never less, so there is one largest set of nodes that can keep to theirs: what is left after those that cannot have been
removed, round by round. It depends on the present endpoints and zones alone. Endpoints that a zone has lent do not count
for their node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from zonewise.objects import Endpoint
from zonewise.routing.load import Consumers, consumed_by, is_overload
from zonewise.routing.routing_nodes import RoutingNodes
from zonewise.routing.tiers import Tier


@dataclass(slots=True)
class _Pool:
    """Endpoints that the same clients share, by address with weights; `clients` counts those that use all of them."""

    shares: Mapping[str, float]
    total: float
    clients: int = 0


class _Alike(NamedTuple):
    """What nodes have in common that can, or cannot, keep to their endpoints: the number of these, and their kinds."""

    pool: int
    own: int
    kinds: frozenset[int]
    is_client: bool


_Nodes = dict[_Alike, dict[str, list[str]]]
"""Nodes and their endpoints."""


@dataclass(frozen=True, slots=True)
class OwnEndpoints:
    """`consumers` of the endpoints whose node keeps to them; `overloaded` nodes have endpoints, but cannot.

    `worst_load` is the highest load of an endpoint relative to an even share, with all traffic.
    """

    consumers: Mapping[str, Consumers]
    overloaded: tuple[str, ...]
    worst_load: float


def keep_to_nodes(
    endpoints: Mapping[str, Endpoint],
    tier: Tier,
    cluster: RoutingNodes,
    limit: float,
    wall: tuple[str, str] | None = None,
) -> OwnEndpoints:
    """`endpoints` and clients are those of the `wall`, a key and its domain; `tier` is that of zones or regions."""
    task = _Task(endpoints, tier, cluster)
    task.count_clients(wall)
    alike = task.group_nodes()
    kept, worst = task.largest_set(alike, limit)
    overloaded = [name for group, names in alike.items() if group not in kept for name in names]
    consumers: dict[str, Consumers] = {}
    for group in kept:
        for name, addresses in alike[group].items():
            consumers.update(dict.fromkeys(addresses, consumed_by(name)))
    return OwnEndpoints(consumers, tuple(sorted(overloaded)), worst)


@dataclass(slots=True)
class _Task:
    endpoints: Mapping[str, Endpoint]
    tier: Tier
    cluster: RoutingNodes
    _pools: list[_Pool] = field(default_factory=list)
    _pool_of: dict[str | None, int] = field(default_factory=dict)
    """By domain; that of clients in none is for all that the tier does not serve."""
    _parts: list[list[tuple[_Pool, float]]] = field(default_factory=list)
    """By kind of endpoint: the pools it is in, and its part of the traffic of each."""

    def count_clients(self, wall: tuple[str, str] | None) -> None:
        keys = (wall[0], self.tier.key) if wall else (self.tier.key,)
        for domains, names in self.cluster.clients_by(keys).items():
            if wall is None or domains[0] == wall[1]:
                self._pools[self._pool(domains[-1])].clients += len(names)

    def group_nodes(self) -> _Nodes:
        """The nodes with endpoints in their own pool."""
        on_node: dict[str, list[str]] = {}
        for address, endpoint in self.endpoints.items():
            if endpoint.node_name:
                on_node.setdefault(endpoint.node_name, []).append(address)
        domains, clients = self.cluster.domains(self.tier.key), self.cluster.client_names
        pools = [self._pool(domains.get(name)) for name in on_node]
        kinds = self._kinds()
        alike: _Nodes = {}
        for (name, addresses), pool in zip(on_node.items(), pools, strict=True):
            shares = self._pools[pool].shares
            if own := [address for address in addresses if address in shares]:
                group = _Alike(pool, len(own), frozenset([kinds[address] for address in own]), name in clients)
                alike.setdefault(group, {})[name] = own
        return alike

    def largest_set(self, alike: _Nodes, limit: float) -> tuple[set[_Alike], float]:
        """The groups of nodes that keep to their endpoints, and the worst load then."""
        even = max(1, sum(pool.clients for pool in self._pools)) / len(self.endpoints)
        clients = {group: len(names) if group.is_client else 0 for group, names in alike.items()}
        kept = set(alike)
        for group in kept:
            self._pools[group.pool].clients -= clients[group]
        while overloaded := [group for group in kept if is_overload(self._load(group) / even, limit)]:
            kept.difference_update(overloaded)
            for group in overloaded:
                self._pools[group.pool].clients += clients[group]
        loads = [self._load(group) for group in kept if group.is_client]
        return kept, max((*loads, *map(self._shared_load, range(len(self._parts))))) / even

    def _load(self, group: _Alike) -> float:
        return 1 / group.own + max(map(self._shared_load, group.kinds))

    def _shared_load(self, kind: int) -> float:
        return sum(pool.clients * part for pool, part in self._parts[kind])

    def _pool(self, domain: str | None) -> int:
        if domain not in self._pool_of:
            served = self.tier.by_domain.get(domain, {}) if domain else {}
            shares = {address: weight for address, weight in served.items() if address in self.endpoints}
            if domain and not shares:
                self._pool_of[domain] = self._pool(None)
            else:
                shares = shares or dict.fromkeys(self.endpoints, 1.0)
                self._pool_of[domain] = len(self._pools)
                self._pools.append(_Pool(shares, sum(shares.values())))
        return self._pool_of[domain]

    def _kinds(self) -> dict[str, int]:
        """The kind of each endpoint: those with the same consumers have the same part of each pool."""
        kind_of: dict[Consumers | None, int] = {}
        kinds: dict[str, int] = {}
        for address, consumers in zip(self.endpoints, map(self.tier.consumers.get, self.endpoints), strict=True):
            if consumers not in kind_of:
                kind_of[consumers] = len(self._parts)
                pools = [pool for pool in self._pools if address in pool.shares]
                self._parts.append([(pool, pool.shares[address] / pool.total) for pool in pools])
            kinds[address] = kind_of[consumers]
        return kinds
