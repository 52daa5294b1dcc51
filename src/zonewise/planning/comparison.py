"""Two snapshots compared Service by Service, with the difference in cost. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from zonewise.objects import Key, Service
from zonewise.planning.forecast import (
    CrossZoneCost,
    ServiceForecast,
    cross_zone_costs,
    forecast_services,
    share_traffic,
)
from zonewise.planning.snapshot import Snapshot
from zonewise.routing import HintsForm
from zonewise.topology import ZONE


class MonthlyTraffic(msgspec.Struct, frozen=True, rename="camel"):
    """`gb` is the traffic of all Services that `by_service` does not list."""

    gb: float = 0.0
    by_service: Mapping[Key, float] = {}
    price_per_gb: float = 0.0


class ServiceSide(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A Service on one side of the comparison."""

    outlook: ServiceForecast
    money: CrossZoneCost | None = None


class ComparisonRow(msgspec.Struct, frozen=True, rename="camel"):
    """`today` and `planned` are equal for a Service that the changes do not affect."""

    today: ServiceSide
    planned: ServiceSide

    @property
    def key(self) -> Key:
        return self.today.outlook.key

    @property
    def differs(self) -> bool:
        return self.today != self.planned


class ComparisonTotal(msgspec.Struct, frozen=True, rename="camel"):
    """`in_zone` is the share of all traffic, weighted by gigabytes if they are known, else by endpoints."""

    services: int
    endpoints: int
    in_zone: float
    worst_overload: float
    slices: int
    cut_off: int
    cost: float | None


class Comparison(msgspec.Struct, frozen=True, rename="camel"):
    zones: Mapping[str, int]
    changes: tuple[str, ...]
    rows: tuple[ComparisonRow, ...]
    today: ComparisonTotal
    planned: ComparisonTotal


def compare(
    today: Snapshot,
    planned: Snapshot,
    chosen: Callable[[Service], bool],
    traffic: MonthlyTraffic | None = None,
    hints: HintsForm = HintsForm.STABLE,
) -> Comparison:
    """`zones` of the result are the planned ones, with their number of client nodes."""
    forecasts = forecast_services(today, chosen, hints)
    gb = share_traffic(forecasts, traffic.gb, traffic.by_service) if traffic else {}
    before = _sides(forecasts, traffic, gb)
    planned.reuse_forecasts(today, _unchanged(today, planned))
    after = _sides(forecast_services(planned, chosen, hints), traffic, gb) if planned.changed else before
    rows = tuple(ComparisonRow(side, after[key]) for key, side in before.items())
    return Comparison(
        zones=planned.cluster.demand(ZONE),
        changes=planned.changed,
        rows=rows,
        today=_total([row.today for row in rows]),
        planned=_total([row.planned for row in rows]),
    )


def _unchanged(today: Snapshot, planned: Snapshot) -> set[Key]:
    """Services that are the same object in both. Changed nodes may affect every Service."""
    if planned.nodes is not today.nodes:
        return set()
    pairs = zip(today.services, planned.services, strict=True)
    return {before.key for before, after in pairs if after is before}


def _sides(
    forecasts: list[ServiceForecast], traffic: MonthlyTraffic | None, gb: Mapping[Key, float]
) -> dict[Key, ServiceSide]:
    """`gb` is today's on both sides: scaling one Service moves no traffic to or from another."""
    costs = cross_zone_costs(forecasts, gb, traffic.price_per_gb) if traffic else {}
    return {forecast.key: ServiceSide(forecast, costs.get(forecast.key)) for forecast in forecasts}


def _total(sides: list[ServiceSide]) -> ComparisonTotal:
    forecasts = [side.outlook for side in sides]
    weights = [side.money.gb if side.money else float(side.outlook.endpoints) for side in sides]
    in_zone = sum(weight * forecast.in_zone for weight, forecast in zip(weights, forecasts, strict=True))
    return ComparisonTotal(
        services=len(sides),
        endpoints=sum(forecast.endpoints for forecast in forecasts),
        in_zone=in_zone / sum(weights) if sum(weights) else 0.0,
        worst_overload=max((forecast.worst_overload for forecast in forecasts), default=0.0),
        slices=sum(forecast.slices for forecast in forecasts),
        cut_off=sum(bool(forecast.cut_off) for forecast in forecasts),
        cost=sum(side.money.cost for side in sides if side.money) if any(side.money for side in sides) else None,
    )
