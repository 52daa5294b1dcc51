"""Next wave of a rollout, a scale-down or a drain: the pods that may go together now, and what holds the others. Pure.

Pods are taken one after the other in the order of `pod_order`. Each is charged to a `WaveAccount`, a working copy of what
every budget and stock PDB has left, by the verdict that a webhook would give: what is planned here is not refused there.
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
    """A pod that is to go. `rank` orders the pods of a domain. If one is held, so are all ready ones that are `alike`."""

    pod: PodFacts
    domain: Domain = ""
    rank: tuple[int | str, ...] = ()
    alike: Hashable = None
    first: bool = False
    """It costs nothing: it is charged already, or it does not serve."""
    refusal_rank: int = 0
    """Above 0 if it was refused: it comes after the pods of its domain that were not, or longer ago."""

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
    """The cost of a pod: an entry in the ledger of each of these budgets."""

    outcome: ChargeOutcome
    charges: Mapping[Key, LedgerEntry]
    reasons: tuple[Reason, ...] = ()


class WaveAccount(Protocol):
    def charge(self, pod: PodFacts) -> WaveCharge:
        """A charge lowers what is left in the account; a held pod costs nothing."""
        ...


class WavePick(NamedTuple):
    candidate: WaveCandidate
    charge: WaveCharge


class HeldPod(NamedTuple):
    candidate: WaveCandidate
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Wave:
    picks: tuple[WavePick, ...]
    held: tuple[HeldPod, ...]

    @property
    def charges(self) -> dict[Key, list[LedgerEntry]]:
        """The entries written to each budget before the first pod goes."""
        collected: dict[Key, list[LedgerEntry]] = {}
        for pick in self.picks:
            for budget, entry in pick.charge.charges.items():
                collected.setdefault(budget, []).append(entry)
        return collected


class WaveLimits(NamedTuple):
    """`most`: pods at once. `closed`: domains to skip now. `single`: domains of which only one pod is tried.

    `refusal_rank`: domains that refused a pod come after the others, the higher the later.
    """

    most: int | None = None
    closed: Callable[[Domain], bool] = lambda _domain: False
    single: Callable[[Domain], bool] = lambda _domain: False
    refusal_rank: Callable[[Domain], int] = lambda _domain: 0


BACKING_OFF: Final = Reason("BackingOff", "its domain refused a pod a moment ago: it is tried again later")
ENOUGH: Final = Reason("EnoughAtOnce", "enough pods of this workload leave now")
_NO_LIMITS: Final = WaveLimits()


def next_wave(
    candidates: Iterable[WaveCandidate],
    account: WaveAccount,
    order: PodOrder = PodOrder.BY_DOMAIN,
    *,
    levels: Mapping[Domain, int] | None = None,
    limits: WaveLimits = _NO_LIMITS,
) -> Wave:
    """In a fixed order the first held pod holds all behind it."""
    queue = PodQueue(candidates, order, levels, limits.refusal_rank)
    picks: list[WavePick] = []
    held: list[HeldPod] = []
    held_reasons: dict[Hashable, tuple[Reason, ...]] = {}
    tried: set[Domain] = set()
    while (candidate := queue.next()) is not None:
        reasons = _withheld(candidate, limits, len(picks), tried) or (
            held_reasons.get(candidate.alike, ()) if candidate.ready else ()
        )
        if not reasons:
            charge = account.charge(candidate.pod)
            reasons = charge.reasons
            if charge.outcome is not ChargeOutcome.HELD:
                queue.went(candidate)
                tried.add(candidate.domain)
                picks.append(WavePick(candidate, charge))
                continue
            if order is PodOrder.AS_GIVEN:
                limits = limits._replace(most=len(picks))
            elif candidate.ready and candidate.alike is not None:
                held_reasons[candidate.alike] = reasons
        held.append(HeldPod(candidate, reasons))
    return Wave(tuple(picks), tuple(held))


def _withheld(candidate: WaveCandidate, limits: WaveLimits, taken: int, tried: set[Domain]) -> tuple[Reason, ...]:
    domain = candidate.domain
    if limits.most is not None and taken >= limits.most:
        return (ENOUGH,)
    if limits.closed(domain) or (domain in tried and limits.single(domain)):
        return (BACKING_OFF,)
    return ()
