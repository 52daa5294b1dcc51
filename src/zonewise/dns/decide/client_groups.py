"""Who sees which endpoints: a routing decision as one set of addresses per group of client nodes.

A decision depends on a client only through its node's domains for the decision's label keys. Nodes that agree on these
form a group; the groupings of all nodes by the same keys are a profile, which every Service with these keys shares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count

from zonewise.objects import Endpoint, Service
from zonewise.routing import EVERYONE, NO_DRAIN, Decision, Drain, RoutingNodes, choose, decide, recall


@dataclass(frozen=True, slots=True)
class ClientProfile:
    id: int
    groups: Mapping[str, int]
    """Of each node, by its name; from 1 on."""
    examples: tuple[str, ...]
    """A node of each group."""


@dataclass(frozen=True, slots=True)
class ClientGroupView:
    """By group, group 0 being of clients on no node we know: `keys` of 1 and up, `near` of all.

    `near` means that a rule or preference was kept: not all endpoints for want of nearer ones.
    """

    profile: ClientProfile
    keys: tuple[frozenset[str], ...]
    near: tuple[bool, ...]


@dataclass(slots=True)
class ClientProfiles:
    """The profiles of the nodes as they are now. One whose groups are as before keeps its number; others get new ones."""

    cluster: RoutingNodes
    _current: dict[tuple[str, ...], ClientProfile] = field(default_factory=dict)
    _last: dict[tuple[str, ...], ClientProfile] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def renew(self, cluster: RoutingNodes) -> None:
        self.cluster = cluster
        self._last |= self._current
        self._current = {}

    def forget(self, profile: ClientProfile) -> None:
        """Nobody has it any more: rules come and go, and each may name other labels."""
        for known in (self._current, self._last):
            for keys in [keys for keys, found in known.items() if found.id == profile.id]:
                del known[keys]

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
            place = tuple(found.get(node) for found in domains)
            if place not in numbers:
                numbers[place] = len(numbers) + 1
                examples.append(node)
            groups[node] = numbers[place]
        return ClientProfile(0, groups, tuple(examples))


def decisions(
    service: Service, families: Iterable[list[Endpoint]], cluster: RoutingNodes, drained: Drain = NO_DRAIN
) -> list[Decision]:
    """One per address family. What slices recall is the only memory, so that all replicas answer alike."""
    return [
        decide(service, endpoints, cluster, recall(endpoints, cluster), drained=drained)
        for endpoints in families
        if endpoints
    ]


def group_view(made: list[Decision], profiles: ClientProfiles) -> ClientGroupView | None:
    """None where every client gets every endpoint."""
    keys = tuple(sorted({key for decision in made for key in _keys(decision)}))
    if not keys:
        return None
    profile = profiles.of(keys)
    seen = [_seen(made, profiles.cluster, node) for node in profile.examples]
    return ClientGroupView(profile, tuple(keys for keys, _ in seen), (False, *(near for _, near in seen)))


def _keys(decision: Decision) -> Iterable[str]:
    yield from (tier.key for tier in decision.tiers if tier is not EVERYONE)
    if decision.walls:
        yield decision.walls.key


def _seen(made: list[Decision], cluster: RoutingNodes, node: str) -> tuple[frozenset[str], bool]:
    choices = [choose(decision, cluster, node) for decision in made]
    near = all(
        choice.tier is not EVERYONE or bool(decision.walls) for choice, decision in zip(choices, made, strict=True)
    )
    return frozenset(address for choice in choices for address in choice.shares), near
