"""Urgency of a status write: falling numbers at once, the rest batched. Pure.

Webhooks allow evictions by the published numbers. A number that fell makes them allow too much: it is written at once,
which can't be often. A number that rose only makes clients wait. What does not affect verdicts, such as a confirmation,
waits longer. While one of our rollouts works on a budget, its next reservation carries the new count anyway. But a domain
with fewer healthy pods than desired does not wait for the rollout: until webhooks see it, they let unready pods go.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from zonewise.disruption.decide.allowance import DomainAllowance
from zonewise.disruption.decide.status import PublishedStatus

SOON_SECONDS: Final = 1.0
LAZY_SECONDS: Final = 5.0
HELD_SECONDS: Final = 60.0
NEVER: Final = float("-inf")
_GONE: Final = DomainAllowance("", 0, 0, 0, 0, 0)


class Urgency(Enum):
    NOTHING = "nothing changed"
    LAZY = "only the books changed"
    SOON = "numbers changed"
    SHORT = "too few are healthy"
    NOW = "a published number is wrong"


def urgency(before: PublishedStatus, after: PublishedStatus) -> Urgency:
    if before == after:
        return Urgency.NOTHING
    if before.observed_generation != after.observed_generation or _allows_less(before, after):
        return Urgency.NOW
    if _falls_short(before, after):
        return Urgency.SHORT
    if before.numbers != after.numbers or before.conditions != after.conditions:
        return Urgency.SOON
    return Urgency.LAZY


def due_at(level: Urgency, *, noticed_at: float, written_at: float, held: bool) -> float:
    """When to write, on the clock of `noticed_at` and `written_at` (NEVER at first)."""
    match level:
        case Urgency.NOTHING:
            return float("inf")
        case Urgency.NOW:
            return noticed_at
        case Urgency.SOON | Urgency.LAZY if held:
            return written_at + HELD_SECONDS
        case Urgency.SOON | Urgency.SHORT:
            return max(noticed_at, written_at + SOON_SECONDS)
        case Urgency.LAZY:
            return max(noticed_at, written_at) + LAZY_SECONDS


def _allows_less(before: PublishedStatus, after: PublishedStatus) -> bool:
    now = after.numbers.domains
    return any(was.allowed > now.get(name, _GONE).allowed for name, was in before.numbers.domains.items())


def _falls_short(before: PublishedStatus, after: PublishedStatus) -> bool:
    """Unready pods go uncharged while enough others are healthy, even if nothing else may leave.

    Whether unplaced pods count for that depends on the budget: both cases are checked.
    """
    spare, spare_now = _spare(before), _spare(after)
    missing, missing_now = before.numbers.tally.unplaced, after.numbers.tally.unplaced
    return any(
        pods >= 0 > spare_now[name] or pods - missing >= 0 > spare_now[name] - missing_now
        for name, pods in spare.items()
        if name in spare_now
    )


def _spare(status: PublishedStatus) -> dict[str, int]:
    return {name: domain.healthy - domain.desired for name, domain in status.numbers.domains.items()}
