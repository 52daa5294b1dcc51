"""What `zonewise drain --plan -o json` tells, as values. Pure.

Users read these fields in scripts: one is never renamed, only added.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from zonewise.diagnostics.decide.explain.eviction import LeaderReport
from zonewise.disruption.decide.drain import DrainPlan, LeavingPlan, StayingPlan
from zonewise.topology import Reason


class DrainReasonReport(msgspec.Struct, frozen=True, rename="camel"):
    code: str
    message: str
    remedy: str


class DrainChargeReport(msgspec.Struct, frozen=True, rename="camel"):
    namespace: str
    budget: str
    domain: str


class LeavingPod(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`held_by` is why it was not in the wave before."""

    namespace: str
    name: str
    node: str
    charges: tuple[DrainChargeReport, ...]
    held_by: tuple[DrainReasonReport, ...]
    remark: str


class StayingPod(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    namespace: str
    name: str
    node: str
    reasons: tuple[DrainReasonReport, ...]


class WaveReport(msgspec.Struct, frozen=True, rename="camel"):
    """`after_others`: it waits for what is disrupted now to be whole again."""

    node: str
    after_others: bool
    pods: tuple[LeavingPod, ...]


class DrainReport(msgspec.Struct, frozen=True, rename="camel"):
    """`never` are pods that no waiting would let go, `passed_over` those that a drain leaves alone.

    While the `leader` is in trouble no pod goes that is charged.
    """

    waves: tuple[WaveReport, ...]
    never: tuple[StayingPod, ...]
    passed_over: tuple[StayingPod, ...]
    leader: LeaderReport


def build_drain_report(plan: DrainPlan, leader: LeaderReport) -> DrainReport:
    waves = tuple(WaveReport(wave.node, wave.after_others, tuple(map(_leaving, wave.pods))) for wave in plan.waves)
    return DrainReport(waves, tuple(map(_staying, plan.never)), tuple(map(_staying, plan.passed_over)), leader)


def _leaving(each: LeavingPlan) -> LeavingPod:
    return LeavingPod(
        namespace=each.pod.namespace,
        name=each.pod.name,
        node=each.pod.node,
        charges=tuple(DrainChargeReport(*budget, domain) for budget, domain in each.charges.items()),
        held_by=_reasons(each.held_by),
        remark="; ".join(map(str, each.remarks)),
    )


def _staying(each: StayingPlan) -> StayingPod:
    pod = each.pod
    return StayingPod(namespace=pod.namespace, name=pod.name, node=pod.node, reasons=_reasons(each.reasons))


def _reasons(reasons: Iterable[Reason]) -> tuple[DrainReasonReport, ...]:
    return tuple(DrainReasonReport(str(each.code), str(each), getattr(each, "remedy", "")) for each in reasons)
