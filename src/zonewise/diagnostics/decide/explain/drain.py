"""The report of `zonewise drain --plan`: the fields of its JSON. Pure.

Scripts read these fields: they are added to, never renamed.
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
    """`held_by`: why it is not in the previous wave."""

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
    """`after_others`: it starts once the present disruptions are over."""

    node: str
    after_others: bool
    pods: tuple[LeavingPod, ...]


class DrainReport(msgspec.Struct, frozen=True, rename="camel"):
    """`never` are pods that stay however long the drain waits; `passed_over` are pods that a drain skips.

    While the `leader` has a problem, no pod leaves that is charged to a budget.
    """

    waves: tuple[WaveReport, ...]
    never: tuple[StayingPod, ...]
    passed_over: tuple[StayingPod, ...]
    leader: LeaderReport


def build_drain_report(plan: DrainPlan, leader: LeaderReport) -> DrainReport:
    waves = tuple(WaveReport(wave.node, wave.after_others, tuple(map(_leaving, wave.pods))) for wave in plan.waves)
    return DrainReport(waves, tuple(map(_staying, plan.never)), tuple(map(_staying, plan.passed_over)), leader)


def _leaving(plan: LeavingPlan) -> LeavingPod:
    return LeavingPod(
        namespace=plan.pod.namespace,
        name=plan.pod.name,
        node=plan.pod.node,
        charges=tuple(DrainChargeReport(*budget, domain) for budget, domain in plan.charges.items()),
        held_by=_reasons(plan.held_by),
        remark="; ".join(map(str, plan.remarks)),
    )


def _staying(plan: StayingPlan) -> StayingPod:
    pod = plan.pod
    return StayingPod(namespace=pod.namespace, name=pod.name, node=pod.node, reasons=_reasons(plan.reasons))


def _reasons(reasons: Iterable[Reason]) -> tuple[DrainReasonReport, ...]:
    return tuple(DrainReasonReport(str(reason.code), str(reason), getattr(reason, "remedy", "")) for reason in reasons)
