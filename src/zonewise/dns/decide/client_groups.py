"""Client groups: a routing decision as one set of addresses per group of client nodes.

A decision depends on a client only through its node's domains for the decision's label keys. Nodes with equal domains
form a group. The grouping of all nodes by the same keys is a profile, which all Services with these keys share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from zonewise.objects import Endpoint, EndpointSlice, Service
from zonewise.routing import EVERYONE, NO_DRAIN, Decision, Drain, RoutingNodes, choose, decide
from zonewise.routing.endpoints import is_ready
from zonewise.routing.slice_memory import last_decision


@dataclass(frozen=True, slots=True)
class ClientProfile:
    id: int
    groups: Mapping[str, int]
    """By node name; numbered from 1."""
    examples: tuple[str, ...]
    """One node of each group."""


@dataclass(frozen=True, slots=True)
class ClientGroupView:
    """By group; group 0 has the clients on no known node. `keys` starts with group 1, `near` with group 0.

    `near` means that a rule or preference is met: the group does not get all endpoints for lack of near ones.
    """

    profile: ClientProfile
    keys: tuple[frozenset[str], ...]
    near: tuple[bool, ...]


@dataclass(slots=True)
class ClientProfiles:
    """Profiles of the current nodes. A profile keeps its id as long as its groups are the same."""

    cluster: RoutingNodes
    _current: dict[tuple[str, ...], ClientProfile] = field(default_factory=dict)
    _last: dict[tuple[str, ...], ClientProfile] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def set_nodes(self, cluster: RoutingNodes) -> None:
        self.cluster = cluster
        self._last |= self._current
        self._current = {}

    def forget(self, profile: ClientProfile) -> None:
        """No Service uses it any more. Rules come and go, and each may name other labels."""
        for profiles in (self._current, self._last):
            for keys in [keys for keys, candidate in profiles.items() if candidate.id == profile.id]:
                del profiles[keys]

    def of(self, keys: tuple[str, ...]) -> ClientProfile:
        if keys not in self._current:
            made = self._make(keys)
            last = self._last.get(keys)
            same = last is not None and last.groups == made.groups
            self._current[keys] = last if last and same else replace(made, id=next(self._numbers))
        return self._current[keys]

    def _make(self, keys: tuple[str, ...]) -> ClientProfile:
        domains = [self.cluster.domains(key) for key in keys]
        numbers: dict[tuple[str | None, ...], int] = {}
        examples: list[str] = []
        groups: dict[str, int] = {}
        for node in sorted(self.cluster.nodes):
            node_domains = tuple(by_node.get(node) for by_node in domains)
            if node_domains not in numbers:
                numbers[node_domains] = len(numbers) + 1
                examples.append(node)
            groups[node] = numbers[node_domains]
        return ClientProfile(0, groups, tuple(examples))


def decisions(
    service: Service, slices: Iterable[EndpointSlice], cluster: RoutingNodes, drained: Drain = NO_DRAIN
) -> list[Decision]:
    """One per address family. The slices are the only state, so that all replicas give the same answers."""
    families: dict[str, list[EndpointSlice]] = {}
    for endpoint_slice in slices:
        families.setdefault(endpoint_slice.address_type, []).append(endpoint_slice)
    return [
        decide(service, endpoints, cluster, last_decision(service, members, cluster), drained=drained)
        for family, members in sorted(families.items())
        if family != "FQDN" and (endpoints := ready_endpoints(members))
    ]


def ready_endpoints(slices: Iterable[EndpointSlice]) -> list[Endpoint]:
    """DNS never falls back to terminating ones."""
    return [endpoint for slice_ in slices for endpoint in slice_.endpoints or () if is_ready(endpoint)]


def group_view(made: list[Decision], profiles: ClientProfiles) -> ClientGroupView | None:
    """None if every client gets every endpoint."""
    keys = tuple(sorted({key for decision in made for key in _keys(decision)}))
    if not keys:
        return None
    profile = profiles.of(keys)
    views = [_node_view(made, profiles.cluster, node) for node in profile.examples]
    return ClientGroupView(profile, tuple(keys for keys, _ in views), (False, *(near for _, near in views)))


def _keys(decision: Decision) -> Iterable[str]:
    yield from (tier.key for tier in decision.tiers if tier is not EVERYONE)
    if decision.walls:
        yield decision.walls.key


def _node_view(made: list[Decision], cluster: RoutingNodes, node: str) -> tuple[frozenset[str], bool]:
    choices = [choose(decision, cluster, node) for decision in made]
    near = all(
        choice.tier is not EVERYONE or bool(decision.walls) for choice, decision in zip(choices, made, strict=True)
    )
    return frozenset(address for choice in choices for address in choice.shares), near
