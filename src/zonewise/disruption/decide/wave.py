"""The next wave of a rollout, a scale-down or a drain: the pods that may go together now, and what holds the others. Pure.

Pods are taken one after the other in `steering`'s order. Each is paid for from a `WaveAccount`, a working copy of what every
budget and stock PDB has left, by the same judgement that a webhook gives: what is planned here is not refused there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from zonewise.disruption.decide.ledger import LedgerEntry
from zonewise.disruption.decide.pod_order import Domain, PodOrder, PodQueue
from zonewise.disruption.decide.pods import PodFacts
from zonewise.objects import Key
from zonewise.topology import Reason


@dataclass(frozen=True, slots=True)
class WaveCandidate:
    """A pod that is to go; `rank` orders those of a domain. Where one is held, so are all ready ones that are `alike`."""

    pod: PodFacts
    domain: Domain = ""
    rank: tuple[int | str, ...] = ()
    alike: Hashable = None
    first: bool = False
    """It costs nothing: it is charged already, or doesn't serve."""
    turn: int = 0
    """Others refused it: it comes after those of its domain that were not, or longer ago."""

    @property
    def uid(self) -> str:
        return self.pod.uid

    @property
    def ready(self) -> bool:
        return self.pod.ready and not self.first


class ChargeOutcome(StrEnum):
    FREE = "Free"
    CHARGED = "Charged"
    HELD = "Held"


@dataclass(frozen=True, slots=True)
class WaveCharge:
    """What a pod's leaving costs: a line in the ledger of each of these budgets."""

    outcome: ChargeOutcome
    charges: Mapping[Key, LedgerEntry]
    reasons: tuple[Reason, ...] = ()


class WaveAccount(Protocol):
    def pay(self, pod: PodFacts) -> WaveCharge:
        """What is charged is gone from the purse; a pod that is held costs nothing."""
        ...


class WavePick(NamedTuple):
    candidate: WaveCandidate
    payment: WaveCharge


class HeldPod(NamedTuple):
    candidate: WaveCandidate
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Wave:
    picks: tuple[WavePick, ...]
    held: tuple[HeldPod, ...]

    @property
    def charges(self) -> dict[Key, list[LedgerEntry]]:
        """What is written to each budget before the first pod goes."""
        collected: dict[Key, list[LedgerEntry]] = {}
        for pick in self.picks:
            for budget, entry in pick.payment.charges.items():
                collected.setdefault(budget, []).append(entry)
        return collected


class WaveLimits(NamedTuple):
    """`most`: pods at once. `closed`: a domain that is left alone now. `single`: one from which only one is tried.

    `turn`: domains that refused come after the others, the higher the later.
    """

    most: int | None = None
    closed: Callable[[Domain], bool] = lambda _domain: False
    single: Callable[[Domain], bool] = lambda _domain: False
    turn: Callable[[Domain], int] = lambda _domain: 0


BACKING_OFF: Final = Reason("BackingOff", "its domain refused a pod a moment ago: it is tried again later")
ENOUGH: Final = Reason("EnoughAtOnce", "enough pods of this workload leave now")
_NO_LIMITS: Final = WaveLimits()


def next_wave(
    candidates: Iterable[WaveCandidate],
    purse: WaveAccount,
    order: PodOrder = PodOrder.BY_DOMAIN,
    *,
    levels: Mapping[Domain, int] | None = None,
    limits: WaveLimits = _NO_LIMITS,
) -> Wave:
    """In a fixed order the first that is held holds all behind it."""
    queue = PodQueue(candidates, order, levels, limits.turn)
    picks: list[WavePick] = []
    held: list[HeldPod] = []
    why_not: dict[Hashable, tuple[Reason, ...]] = {}
    tried: set[Domain] = set()
    while (candidate := queue.next()) is not None:
        reasons = _withheld(candidate, limits, len(picks), tried) or (
            why_not.get(candidate.alike, ()) if candidate.ready else ()
        )
        if not reasons:
            payment = purse.pay(candidate.pod)
            reasons = payment.reasons
            if payment.outcome is not ChargeOutcome.HELD:
                queue.went(candidate)
                tried.add(candidate.domain)
                picks.append(WavePick(candidate, payment))
                continue
            if order is PodOrder.AS_GIVEN:
                limits = limits._replace(most=len(picks))
            elif candidate.ready and candidate.alike is not None:
                why_not[candidate.alike] = reasons
        held.append(HeldPod(candidate, reasons))
    return Wave(tuple(picks), tuple(held))


def _withheld(candidate: WaveCandidate, limits: WaveLimits, taken: int, tried: set[Domain]) -> tuple[Reason, ...]:
    domain = candidate.domain
    if limits.most is not None and taken >= limits.most:
        return (ENOUGH,)
    if limits.closed(domain) or (domain in tried and limits.single(domain)):
        return (BACKING_OFF,)
    return ()
