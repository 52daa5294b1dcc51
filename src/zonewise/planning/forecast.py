"""What comes of a situation: for every Service its policy, its assignment, and what that does to traffic and cost. Pure.

The decision is the controllers' own, from the same slices, so what is foreseen here is what they will write, and what
whoever carries the Service makes of that. Traffic is taken to come evenly from all client nodes, and a Service's share of
it to be that of its endpoints, unless told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from zonewise.objects import EndpointSlice, Key, Service
from zonewise.planning import slice_count
from zonewise.planning.data_plane import DataPlane
from zonewise.planning.effective_routing import carried
from zonewise.planning.snapshot import ServiceSnapshot, Snapshot, is_own
from zonewise.routing import Decision, HintsForm, RoutingNodes, drained_zones
from zonewise.routing.load import names
from zonewise.routing.tiers import EVERYONE
from zonewise.slices.decide.families import ServiceFamily
from zonewise.slices.decide.overlay import is_stock, recalled
from zonewise.slices.decide.route import RoutedEndpoints, route
from zonewise.slices.decide.service_status import ServiceRoutingState, state_of
from zonewise.topology import ZONE

EVERY_CLIENT: Final = "*"
PRICE_PER_GB: Final = 0.02
"""Dollars, as the large clouds ask: 0.01 for what leaves a zone and 0.01 for what enters one."""
_PROGRAMS: Final[Mapping[DataPlane, str]] = {DataPlane.KUBE_PROXY: "kube-proxy", DataPlane.STOCK_DNS: "stock DNS"}
RUN_DNS: Final = "run `zonewise dns`, which gives each client its own: zonewise install --only dns"


class ServiceForecast(msgspec.Struct, frozen=True, rename="camel"):
    """So many endpoints of one zone are for the clients of these; `*` stands for all."""

    zone: str
    consumers: tuple[str, ...]
    endpoints: int


class ClusterForecast(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Of one Service. Shares are of 1; `losses` are what stock proxies will not do of it, `cut_off` nodes without any.

    `astray` are nodes whose clients reach what the rule keeps from them, as stock programs carry the Service: then it is
    not in force.
    """

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
    assignment: tuple[ServiceForecast, ...]
    losses: tuple[str, ...]
    complaints: tuple[str, ...]
    astray: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)


def look(
    situation: Snapshot, chosen: Callable[[Service], bool], hints: HintsForm = HintsForm.STABLE
) -> list[ClusterForecast]:
    """By namespace and name."""
    return [_foreseen(served, situation, hints) for served in situation.services if chosen(served.service)]


def _foreseen(served: ServiceSnapshot, situation: Snapshot, hints: HintsForm) -> ClusterForecast:
    """Once for each situation."""
    place = served.key, hints
    if place not in situation.foreseen:
        situation.foreseen[place] = _outlook(served, situation, hints)
    return situation.foreseen[place]


def _outlook(served: ServiceSnapshot, situation: Snapshot, hints: HintsForm) -> ClusterForecast:
    cluster, carrier = situation.cluster, situation.carriers.of(served.service)
    found = {family: routed(served, family, situation, hints) for family in served.by_family}
    decisions = {family.value: each.decision for family, each in found.items()}
    expressions = {family.value: each.expression for family, each in found.items()}
    made = [
        carried(each.decision, each.expression, cluster, carrier) for each in found.values() if each.decision.endpoints
    ]
    forecasts = [each.forecast for each in made]
    state = state_of(served.service, decisions, expressions, forecasts, now="")
    astray = tuple(sorted({name for each in made for name in each.astray}))
    return ClusterForecast(
        namespace=served.key.namespace,
        name=served.key.name,
        policy=state.policy,
        source=state.source,
        active=state.active and not astray,
        code=state.code,
        sentence=_sentence(state, carrier, astray),
        remedy=_remedy(state, carrier, astray, found.values()),
        endpoints=state.endpoints,
        in_zone=min((each.in_zone for each in forecasts), default=0.0),
        worst_overload=max((each.worst_overload for each in forecasts), default=0.0),
        cut_off=tuple(sorted({name for each in forecasts for name in each.cut_off})),
        slices=sum(_slices(served, family, each, own=situation.own) for family, each in found.items()),
        assignment=tuple(_assignments(decisions.values(), cluster)),
        losses=() if carrier.is_ours else state.losses,
        complaints=state.complaints,
        astray=astray,
    )


def _sentence(state: ServiceRoutingState, carrier: DataPlane, astray: Sequence[str]) -> str:
    """What was decided, and for whom it is not so."""
    if not astray:
        return state.sentence
    nodes = "1 node" if len(astray) == 1 else f"{len(astray)} nodes"
    return f"{state.sentence}; but {_PROGRAMS[carrier]} lets the clients of {nodes} reach others, too"


def _remedy(
    state: ServiceRoutingState, carrier: DataPlane, astray: Sequence[str], found: Iterable[RoutedEndpoints]
) -> str:
    if not astray:
        return state.remedy
    more = [loss.remedy for each in found for loss in each.expression.losses]
    told = dict.fromkeys((state.remedy, *([RUN_DNS] if carrier.is_dns else more)))
    return "; ".join(remedy for remedy in told if remedy)


def routed(
    served: ServiceSnapshot, family: ServiceFamily, situation: Snapshot, hints: HintsForm = HintsForm.STABLE
) -> RoutedEndpoints:
    """What the controller decides of one family, from the slices as they are."""
    namespace = situation.namespaces.get(served.key.namespace)
    said = namespace.metadata.annotations if namespace else {}
    drained = drained_zones(served.service, said, situation.cluster.node_drains)
    slices = _of_family(served.slices, family)
    memory = None
    if any(map(is_stock, slices)) and not any(map(is_own, slices)):  # there it is the overlay that remembers
        memory = recalled(served.service, served.endpoints(family), situation.cluster)
    return route(served.service, served.by_family[family], slices, situation.cluster, hints, drained, memory)


def _of_family(slices: Iterable[EndpointSlice], family: ServiceFamily) -> list[EndpointSlice]:
    return [found for found in slices if found.address_type == family]


def _slices(served: ServiceSnapshot, family: ServiceFamily, routed: RoutedEndpoints, *, own: bool) -> int:
    if own:
        return slice_count.own(routed)
    return slice_count.stock(served.by_family[family], _of_family(served.slices, family))


def _assignments(decisions: Iterable[Decision], cluster: RoutingNodes) -> Iterable[ServiceForecast]:
    counted: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for decision in decisions:
        homes = cluster.homes(decision.endpoints, ZONE)
        tier = next((tier for tier in (*decision.tiers, decision.walls) if tier and tier is not EVERYONE), EVERYONE)
        for address in decision.endpoints:
            consumers = names(tier.consumers.get(address, ())) if tier is not EVERYONE else (EVERY_CLIENT,)
            counted[homes[address] or "", consumers] += 1
    return (ServiceForecast(zone, consumers, number) for (zone, consumers), number in sorted(counted.items()))


class CrossZoneCost(msgspec.Struct, frozen=True, rename="camel"):
    """Traffic of a month, what of it leaves its zone, and the price of that."""

    gb: float
    cross_zone_gb: float
    cost: float


def price(
    outlooks: Iterable[ClusterForecast], gb: Mapping[Key, float], price_per_gb: float
) -> dict[Key, CrossZoneCost]:
    """A Service without endpoints sends nothing anywhere."""
    crossing = {
        found.key: gb[found.key] * (1 - found.in_zone) if found.endpoints else 0.0
        for found in outlooks
        if found.key in gb
    }
    return {key: CrossZoneCost(gb[key], crosses, crosses * price_per_gb) for key, crosses in crossing.items()}


def share_traffic(outlooks: Iterable[ClusterForecast], total_gb: float, told: Mapping[Key, float]) -> dict[Key, float]:
    """What was told of a Service holds; the total is that of the others, in proportion to their endpoints."""
    untold = {found.key: found.endpoints for found in outlooks if found.key not in told}
    whole = sum(untold.values())
    return {**{key: total_gb * endpoints / whole for key, endpoints in untold.items() if whole}, **told}
