"""Two situations side by side, Service by Service, with what the difference costs or saves. Pure; `plan` prints it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from zonewise.objects import Key, Service
from zonewise.planning.forecast import ClusterForecast, CrossZoneCost, look, price, share_traffic
from zonewise.planning.snapshot import Snapshot
from zonewise.routing import HintsForm
from zonewise.topology import ZONE


class TrafficDifference(msgspec.Struct, frozen=True, rename="camel"):
    """Of a month. `gb` is that of all Services together that `by_service` does not tell of."""

    gb: float = 0.0
    by_service: Mapping[Key, float] = {}
    price_per_gb: float = 0.0


class ServiceSide(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A Service on one side of the comparison."""

    outlook: ClusterForecast
    money: CrossZoneCost | None = None


class ComparisonRow(msgspec.Struct, frozen=True, rename="camel"):
    """`planned` is what `today` becomes; both are the same where nothing changes."""

    today: ServiceSide
    planned: ServiceSide

    @property
    def key(self) -> Key:
        return self.today.outlook.key

    @property
    def differs(self) -> bool:
        return self.today != self.planned


class ComparisonTotal(msgspec.Struct, frozen=True, rename="camel"):
    """`in_zone` is the share of all traffic, weighed by gigabytes where they are known, else by endpoints."""

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
    traffic: TrafficDifference | None = None,
    hints: HintsForm = HintsForm.STABLE,
) -> Comparison:
    """`zones` are the planned ones, with their client nodes."""
    outlooks = look(today, chosen, hints)
    gb = share_traffic(outlooks, traffic.gb, traffic.by_service) if traffic else {}
    before = _sides(outlooks, traffic, gb)
    planned.recall(today, _unchanged(today, planned))
    after = _sides(look(planned, chosen, hints), traffic, gb) if planned.changed else before
    rows = tuple(ComparisonRow(side, after[key]) for key, side in before.items())
    return Comparison(
        zones=planned.cluster.demand(ZONE),
        changes=planned.changed,
        rows=rows,
        today=_total([row.today for row in rows]),
        planned=_total([row.planned for row in rows]),
    )


def _unchanged(today: Snapshot, planned: Snapshot) -> set[Key]:
    """Services that nothing was done to; with other nodes, anything may become of any of them."""
    if planned.nodes is not today.nodes:
        return set()
    pairs = zip(today.services, planned.services, strict=True)
    return {served.key for served, then in pairs if then is served}


def _sides(
    outlooks: list[ClusterForecast], traffic: TrafficDifference | None, gb: Mapping[Key, float]
) -> dict[Key, ServiceSide]:
    """`gb` is of today on both sides: who scales one Service sends no more to it, and no less to another."""
    if traffic is None:
        return {found.key: ServiceSide(found) for found in outlooks}
    money = price(outlooks, gb, traffic.price_per_gb)
    return {found.key: ServiceSide(found, money.get(found.key)) for found in outlooks}


def _total(sides: list[ServiceSide]) -> ComparisonTotal:
    outlooks = [side.outlook for side in sides]
    weights = [side.money.gb if side.money else float(side.outlook.endpoints) for side in sides]
    met = sum(weight * found.in_zone for weight, found in zip(weights, outlooks, strict=True))
    return ComparisonTotal(
        services=len(sides),
        endpoints=sum(found.endpoints for found in outlooks),
        in_zone=met / sum(weights) if sum(weights) else 0.0,
        worst_overload=max((found.worst_overload for found in outlooks), default=0.0),
        slices=sum(found.slices for found in outlooks),
        cut_off=sum(bool(found.cut_off) for found in outlooks),
        cost=sum(side.money.cost for side in sides if side.money) if any(side.money for side in sides) else None,
    )
