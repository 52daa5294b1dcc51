"""Stable automatic hints: the same contract as the strict form, also in cases that it refuses.

Zones share the endpoints in proportion to CPU, as upstream. But a node without zone or CPU is left out and named instead
of disabling hints for the whole cluster; an endpoint may be hinted for several zones, so that 4, 4 and 3 endpoints keep
their zones; and existing hints stay until the overload is half as large again as the limit for a new assignment, so that
a Service near the limit does not flap. They end earlier only if new ones keep more traffic in its zone: upstream decides
anew with every change and so gives each zone its own endpoints as soon as these suffice, while `Prefer` is lazy by design.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from zonewise.routing.algorithms import Algorithm
from zonewise.routing.hints_strict import OVERLOAD_THRESHOLD
from zonewise.routing.load import Consumers
from zonewise.routing.prefer import Preference, PreferLimits, prefer
from zonewise.routing.reason import RoutingCode, RoutingReason, RoutingSubject
from zonewise.routing.tuning import StartingPoint
from zonewise.topology import DomainCapacities

KEEP_FACTOR: Final = 1.5


def hint_stably(
    capacities: DomainCapacities,
    homes: Mapping[str, str | None],
    overload: float | None = None,
    previous: Mapping[str, Consumers] | None = None,
) -> Preference:
    demand = {zone: total.cpu_millis for zone, total in capacities.domains.items()}
    threshold = overload or OVERLOAD_THRESHOLD
    at_once = StartingPoint(0, per_domain=False)
    limits = PreferLimits(Algorithm.OPTIMAL, at_once, 0, threshold, threshold * KEEP_FACTOR, regain=True)
    preference = prefer(demand, homes, limits, previous)
    return replace(preference, reason=_with_nodes_left_out(preference.reason, capacities))


def _with_nodes_left_out(reason: RoutingReason, capacities: DomainCapacities) -> RoutingReason:
    code = RoutingCode.HINTED if reason.code is RoutingCode.PREFERRED else reason.code
    lacking = sorted(capacities.lacking())
    if not lacking:
        return replace(reason, code=code)
    why = "; ".join(str(capacities.left_out[name]) for name in lacking[:3])
    return replace(
        reason,
        code=code,
        sentence=f"{reason.sentence}; {len(lacking)} nodes are left out: {why}",
        facts={**reason.facts, "nodes_left_out": tuple(lacking)},
        blame=(*reason.blame, *(RoutingSubject("Node", name) for name in lacking)),
    )
