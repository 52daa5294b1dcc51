"""What `zonewise drain --plan -o json` tells, as values. Pure.

Users read these fields in scripts: one is never renamed, only added.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from zonewise.diagnostics.decide.explain.eviction import LeaderAccount
from zonewise.disruption.decide.drain import DrainPlan, Leaving, Staying
from zonewise.topology import Reason


class ReasonAccount(msgspec.Struct, frozen=True, rename="camel"):
    code: str
    message: str
    remedy: str


class ChargeAccount(msgspec.Struct, frozen=True, rename="camel"):
    namespace: str
    budget: str
    domain: str


class LeavingPod(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`held_by` is why it was not in the wave before."""

    namespace: str
    name: str
    node: str
    charges: tuple[ChargeAccount, ...]
    held_by: tuple[ReasonAccount, ...]
    remark: str


class StayingPod(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    namespace: str
    name: str
    node: str
    reasons: tuple[ReasonAccount, ...]


class WaveAccount(msgspec.Struct, frozen=True, rename="camel"):
    """`after_others`: it waits for what is disrupted now to be whole again."""

    node: str
    after_others: bool
    pods: tuple[LeavingPod, ...]


class DrainAccount(msgspec.Struct, frozen=True, rename="camel"):
    """`never` are pods that no waiting would let go, `passed_over` those that a drain leaves alone.

    While the `leader` is in trouble no pod goes that is charged.
    """

    waves: tuple[WaveAccount, ...]
    never: tuple[StayingPod, ...]
    passed_over: tuple[StayingPod, ...]
    leader: LeaderAccount


def account_of(plan: DrainPlan, leader: LeaderAccount) -> DrainAccount:
    waves = tuple(WaveAccount(wave.node, wave.after_others, tuple(map(_leaving, wave.pods))) for wave in plan.waves)
    return DrainAccount(waves, tuple(map(_staying, plan.never)), tuple(map(_staying, plan.passed_over)), leader)


def _leaving(each: Leaving) -> LeavingPod:
    return LeavingPod(
        namespace=each.pod.namespace,
        name=each.pod.name,
        node=each.pod.node,
        charges=tuple(ChargeAccount(*budget, domain) for budget, domain in each.charges.items()),
        held_by=_reasons(each.held_by),
        remark="; ".join(map(str, each.remarks)),
    )


def _staying(each: Staying) -> StayingPod:
    pod = each.pod
    return StayingPod(namespace=pod.namespace, name=pod.name, node=pod.node, reasons=_reasons(each.reasons))


def _reasons(reasons: Iterable[Reason]) -> tuple[ReasonAccount, ...]:
    return tuple(ReasonAccount(str(each.code), str(each), getattr(each, "remedy", "")) for each in reasons)
