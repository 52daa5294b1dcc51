"""What comes of a situation: for every Service its policy, its assignment, and what that does to traffic and cost. Pure.

The decision is the controllers' own, from the same slices, so what is foreseen here is what they will write. Traffic is
taken to come evenly from all client nodes, and a Service's share of it to be that of its endpoints, unless told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from zonewise.objects import EndpointSlice, Key, Service
from zonewise.planning import slicecount
from zonewise.planning.situation import Served, Situation, is_own
from zonewise.routing import Cluster, Decision, HintsForm, drained_zones
from zonewise.routing.load import names
from zonewise.routing.stockproxy import PROXY_NAME_LABEL
from zonewise.routing.tiers import EVERYONE
from zonewise.slices.families import Family
from zonewise.slices.overlay import is_stock, recalled
from zonewise.slices.routed import Routed, route
from zonewise.slices.state import STOCK_DNS_LOSS, State, forecasts_of, state_of
from zonewise.topology import ZONE

EVERY_CLIENT: Final = "*"
PRICE_PER_GB: Final = 0.02
"""Dollars, as the large clouds ask: 0.01 for what leaves a zone and 0.01 for what enters one."""


class Assignment(msgspec.Struct, frozen=True, rename="camel"):
    """So many endpoints of one zone are for the clients of these; `*` stands for all."""

    zone: str
    consumers: tuple[str, ...]
    endpoints: int


class Outlook(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Of one Service. Shares are of 1; `losses` are what stock proxies will not do of it, `cut_off` nodes without any."""

    namespace: str
    name: str
    policy: str
    source: str
    active: bool
    code: str
    sentence: str
    remedy: str
    endpoints: int
    in_zone: float
    worst_overload: float
    cut_off: tuple[str, ...]
    slices: int
    assignment: tuple[Assignment, ...]
    losses: tuple[str, ...]
    complaints: tuple[str, ...]

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)


def look(situation: Situation, chosen: Callable[[Service], bool], hints: HintsForm = HintsForm.STABLE) -> list[Outlook]:
    """By namespace and name."""
    return [_foreseen(served, situation, hints) for served in situation.services if chosen(served.service)]


def _foreseen(served: Served, situation: Situation, hints: HintsForm) -> Outlook:
    """Once for each situation."""
    place = served.key, hints
    if place not in situation.foreseen:
        situation.foreseen[place] = _outlook(served, situation, hints)
    return situation.foreseen[place]


def _outlook(served: Served, situation: Situation, hints: HintsForm) -> Outlook:
    cluster = situation.cluster
    found = {family: routed(served, family, situation, hints) for family in served.by_family}
    decisions = {family.value: each.decision for family, each in found.items()}
    expressions = {family.value: each.expression for family, each in found.items()}
    forecasts = forecasts_of(decisions.values(), cluster)
    state = state_of(served.service, decisions, expressions, forecasts, now="")
    return Outlook(
        namespace=served.key.namespace,
        name=served.key.name,
        policy=state.policy,
        source=state.source,
        active=state.active,
        code=state.code,
        sentence=state.sentence,
        remedy=state.remedy,
        endpoints=state.endpoints,
        in_zone=min((each.in_zone for each in forecasts), default=0.0),
        worst_overload=max((each.worst_overload for each in forecasts), default=0.0),
        cut_off=tuple(sorted({name for each in forecasts for name in each.cut_off})),
        slices=sum(_slices(served, family, each, own=situation.own) for family, each in found.items()),
        assignment=tuple(_assignments(decisions.values(), cluster)),
        losses=_losses(served.service, state, all_services=situation.all_services),
        complaints=state.complaints,
    )


def routed(served: Served, family: Family, situation: Situation, hints: HintsForm = HintsForm.STABLE) -> Routed:
    """What the controller decides of one family, from the slices as they are."""
    namespace = situation.namespaces.get(served.key.namespace)
    said = namespace.metadata.annotations if namespace else {}
    drained = drained_zones(served.service, said, situation.cluster.node_drains)
    slices = _of_family(served.slices, family)
    memory = None
    if any(map(is_stock, slices)) and not any(map(is_own, slices)):  # there it is the overlay that remembers
        memory = recalled(served.service, served.endpoints(family), situation.cluster)
    return route(served.service, served.by_family[family], slices, situation.cluster, hints, drained, memory)


def _losses(service: Service, state: State, *, all_services: bool) -> tuple[str, ...]:
    """The Zonewise proxy loses nothing; in kube-proxy's place it serves whoever names no other. Headless ones are DNS's."""
    ours = all_services and PROXY_NAME_LABEL not in service.metadata.labels and STOCK_DNS_LOSS not in state.losses
    return () if ours else state.losses


def _of_family(slices: Iterable[EndpointSlice], family: Family) -> list[EndpointSlice]:
    return [found for found in slices if found.address_type == family]


def _slices(served: Served, family: Family, routed: Routed, *, own: bool) -> int:
    if own:
        return slicecount.own(routed)
    return slicecount.stock(served.by_family[family], _of_family(served.slices, family))


def _assignments(decisions: Iterable[Decision], cluster: Cluster) -> Iterable[Assignment]:
    counted: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for decision in decisions:
        homes = cluster.homes(decision.endpoints, ZONE)
        tier = next((tier for tier in (*decision.tiers, decision.walls) if tier and tier is not EVERYONE), EVERYONE)
        for address in decision.endpoints:
            consumers = names(tier.consumers.get(address, ())) if tier is not EVERYONE else (EVERY_CLIENT,)
            counted[homes[address] or "", consumers] += 1
    return (Assignment(zone, consumers, number) for (zone, consumers), number in sorted(counted.items()))


class Money(msgspec.Struct, frozen=True, rename="camel"):
    """Traffic of a month, what of it leaves its zone, and the price of that."""

    gb: float
    cross_zone_gb: float
    cost: float


def price(outlooks: Iterable[Outlook], gb: Mapping[Key, float], price_per_gb: float) -> dict[Key, Money]:
    """A Service without endpoints sends nothing anywhere."""
    crossing = {
        found.key: gb[found.key] * (1 - found.in_zone) if found.endpoints else 0.0
        for found in outlooks
        if found.key in gb
    }
    return {key: Money(gb[key], crosses, crosses * price_per_gb) for key, crosses in crossing.items()}


def share_traffic(outlooks: Iterable[Outlook], total_gb: float, told: Mapping[Key, float]) -> dict[Key, float]:
    """What was told of a Service holds; the total is that of the others, in proportion to their endpoints."""
    untold = {found.key: found.endpoints for found in outlooks if found.key not in told}
    whole = sum(untold.values())
    return {**{key: total_gb * endpoints / whole for key, endpoints in untold.items() if whole}, **told}
