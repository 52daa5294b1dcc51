"""Forecast of every Service of a snapshot: its policy, its assignment, and the effect on traffic and cost. Pure.

The controllers' own functions decide, from the same slices, and the data plane of each Service is applied to that.
Traffic is assumed to come evenly from all client nodes, and in proportion to a Service's endpoints unless it is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from zonewise.objects import EndpointSlice, Key, Service
from zonewise.planning import slice_count
from zonewise.planning.data_plane import DataPlane
from zonewise.planning.effective_routing import apply_data_plane
from zonewise.planning.snapshot import ServiceSnapshot, Snapshot, is_own
from zonewise.routing import Decision, HintsForm, RoutingNodes, drained_zones
from zonewise.routing.load import names
from zonewise.routing.slice_memory import recalled
from zonewise.routing.tiers import EVERYONE
from zonewise.slices.decide.families import ServiceFamily
from zonewise.slices.decide.overlay import is_stock
from zonewise.slices.decide.route import RoutedEndpoints, route
from zonewise.slices.decide.service_status import ServiceRoutingState, state_of
from zonewise.topology import ZONE

EVERY_CLIENT: Final = "*"
PRICE_PER_GB: Final = 0.02
"""Dollars, as the large clouds charge: 0.01 for traffic that leaves a zone and 0.01 for traffic that enters one."""
_PROGRAMS: Final[Mapping[DataPlane, str]] = {DataPlane.KUBE_PROXY: "kube-proxy", DataPlane.STOCK_DNS: "stock DNS"}
RUN_DNS: Final = "run `zonewise dns`, which gives each client its own: zonewise install --only dns"


class ZoneAssignment(msgspec.Struct, frozen=True, rename="camel"):
    """Endpoints of one zone that serve the clients of the zones `consumers`; `*` stands for all."""

    zone: str
    consumers: tuple[str, ...]
    endpoints: int


class ServiceForecast(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Shares are between 0 and 1. `losses` are parts of the decision that stock proxies ignore.

    `cut_off` are nodes whose clients reach no endpoint. `astray` are nodes whose clients reach endpoints that the policy
    withholds from them, because a stock data plane serves them: then the policy is not in force.
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
    assignment: tuple[ZoneAssignment, ...]
    losses: tuple[str, ...]
    complaints: tuple[str, ...]
    astray: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)


def forecast_services(
    snapshot: Snapshot, chosen: Callable[[Service], bool], hints: HintsForm = HintsForm.STABLE
) -> list[ServiceForecast]:
    """Sorted by namespace and name."""
    return [_cached(service, snapshot, hints) for service in snapshot.services if chosen(service.service)]


def _cached(service: ServiceSnapshot, snapshot: Snapshot, hints: HintsForm) -> ServiceForecast:
    key = service.key, hints
    if key not in snapshot.forecasts:
        snapshot.forecasts[key] = _forecast(service, snapshot, hints)
    return snapshot.forecasts[key]


def _forecast(service: ServiceSnapshot, snapshot: Snapshot, hints: HintsForm) -> ServiceForecast:
    cluster, data_plane = snapshot.cluster, snapshot.data_planes.of(service.service)
    routed = {family: route_family(service, family, snapshot, hints) for family in service.by_family}
    decisions = {family.value: endpoints.decision for family, endpoints in routed.items()}
    expressions = {family.value: endpoints.expression for family, endpoints in routed.items()}
    effects = [
        apply_data_plane(endpoints.decision, endpoints.expression, cluster, data_plane)
        for endpoints in routed.values()
        if endpoints.decision.endpoints
    ]
    forecasts = [effect.forecast for effect in effects]
    state = state_of(service.service, decisions, expressions, forecasts, now="")
    astray = tuple(sorted({name for effect in effects for name in effect.astray}))
    return ServiceForecast(
        namespace=service.key.namespace,
        name=service.key.name,
        policy=state.policy,
        source=state.source,
        active=state.active and not astray,
        code=state.code,
        sentence=_sentence(state, data_plane, astray),
        remedy=_remedy(state, data_plane, astray, routed.values()),
        endpoints=state.endpoints,
        in_zone=min((forecast.in_zone for forecast in forecasts), default=0.0),
        worst_overload=max((forecast.worst_overload for forecast in forecasts), default=0.0),
        cut_off=tuple(sorted({name for forecast in forecasts for name in forecast.cut_off})),
        slices=sum(_count_slices(service, family, endpoints, own=snapshot.own) for family, endpoints in routed.items()),
        assignment=tuple(_assignments(decisions.values(), cluster)),
        losses=() if data_plane.is_ours else state.losses,
        complaints=state.complaints,
        astray=astray,
    )


def _sentence(state: ServiceRoutingState, data_plane: DataPlane, astray: Sequence[str]) -> str:
    """The decision, and the clients that it does not hold for."""
    if not astray:
        return state.sentence
    nodes = "1 node" if len(astray) == 1 else f"{len(astray)} nodes"
    return f"{state.sentence}; but {_PROGRAMS[data_plane]} lets the clients of {nodes} reach others, too"


def _remedy(
    state: ServiceRoutingState, data_plane: DataPlane, astray: Sequence[str], routed: Iterable[RoutedEndpoints]
) -> str:
    if not astray:
        return state.remedy
    losses = [loss.remedy for endpoints in routed for loss in endpoints.expression.losses]
    remedies = dict.fromkeys((state.remedy, *([RUN_DNS] if data_plane.is_dns else losses)))
    return "; ".join(remedy for remedy in remedies if remedy)


def route_family(
    service: ServiceSnapshot, family: ServiceFamily, snapshot: Snapshot, hints: HintsForm = HintsForm.STABLE
) -> RoutedEndpoints:
    """The controller's decision for one address family, from the present slices."""
    namespace = snapshot.namespaces.get(service.key.namespace)
    annotations = namespace.metadata.annotations if namespace else {}
    drained = drained_zones(service.service, annotations, snapshot.cluster.node_drains)
    slices = _of_family(service.slices, family)
    memory = None
    if any(map(is_stock, slices)) and not any(map(is_own, slices)):  # mode overlay: the overlay keeps the memory
        memory = recalled(service.service, service.endpoints(family), snapshot.cluster)
    return route(service.service, service.by_family[family], slices, snapshot.cluster, hints, drained, memory)


def _of_family(slices: Iterable[EndpointSlice], family: ServiceFamily) -> list[EndpointSlice]:
    return [slice_ for slice_ in slices if slice_.address_type == family]


def _count_slices(service: ServiceSnapshot, family: ServiceFamily, routed: RoutedEndpoints, *, own: bool) -> int:
    if own:
        return slice_count.count_own(routed)
    return slice_count.count_stock(service.by_family[family], _of_family(service.slices, family))


def _assignments(decisions: Iterable[Decision], cluster: RoutingNodes) -> Iterable[ZoneAssignment]:
    counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for decision in decisions:
        homes = cluster.homes(decision.endpoints, ZONE)
        tier = next((tier for tier in (*decision.tiers, decision.walls) if tier and tier is not EVERYONE), EVERYONE)
        for address in decision.endpoints:
            consumers = names(tier.consumers.get(address, ())) if tier is not EVERYONE else (EVERY_CLIENT,)
            counts[homes[address] or "", consumers] += 1
    return (ZoneAssignment(zone, consumers, number) for (zone, consumers), number in sorted(counts.items()))


class CrossZoneCost(msgspec.Struct, frozen=True, rename="camel"):
    """Monthly traffic of a Service, the part that leaves its zone, and its price."""

    gb: float
    cross_zone_gb: float
    cost: float


def cross_zone_costs(
    forecasts: Iterable[ServiceForecast], gb: Mapping[Key, float], price_per_gb: float
) -> dict[Key, CrossZoneCost]:
    """A Service without endpoints has no traffic."""
    crossing = {
        forecast.key: gb[forecast.key] * (1 - forecast.in_zone) if forecast.endpoints else 0.0
        for forecast in forecasts
        if forecast.key in gb
    }
    return {key: CrossZoneCost(gb[key], crosses, crosses * price_per_gb) for key, crosses in crossing.items()}


def share_traffic(
    forecasts: Iterable[ServiceForecast], total_gb: float, given: Mapping[Key, float]
) -> dict[Key, float]:
    """Given figures stay; the total is divided among the other Services in proportion to their endpoints."""
    endpoints = {forecast.key: forecast.endpoints for forecast in forecasts if forecast.key not in given}
    total = sum(endpoints.values())
    return {**{key: total_gb * number / total for key, number in endpoints.items() if total}, **given}
