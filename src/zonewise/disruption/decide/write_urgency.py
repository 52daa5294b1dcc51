"""How soon a changed count must be published: what takes a promise back at once, the rest in company. Pure.

Webhooks promise pods away by what was published. A number that falls makes a promise wrong: that is written at once, and
can't be often. A number that rises only lets somebody wait, and what nobody judges by, such as a confirmation, waits longer.
While a rollout of ours is at work on a budget its next reservation carries the new count anyway. But a domain that has
fewer healthy pods than it must waits for no rollout: until webhooks hear of it they let others go that are not ready.
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
    NOW = "a promise is wrong"


def urgency(before: PublishedStatus, after: PublishedStatus) -> Urgency:
    if before == after:
        return Urgency.NOTHING
    if before.observed_generation != after.observed_generation or _promises_less(before, after):
        return Urgency.NOW
    if _lacks(before, after):
        return Urgency.SHORT
    if before.numbers != after.numbers or before.conditions != after.conditions:
        return Urgency.SOON
    return Urgency.LAZY


def due_at(urgent: Urgency, *, noticed_at: float, written_at: float, held: bool) -> float:
    """When to write, on the clock that `noticed_at` and `written_at` (NEVER at first) were read from."""
    match urgent:
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


def _promises_less(before: PublishedStatus, after: PublishedStatus) -> bool:
    now = after.numbers.domains
    return any(was.allowed > now.get(name, _GONE).allowed for name, was in before.numbers.domains.items())


def _lacks(before: PublishedStatus, after: PublishedStatus) -> bool:
    """Pods that are not ready go uncharged while enough others are healthy, also where nothing else may leave.

    Whether what is missing from nobody knows where counts for that is the budget's matter: either way is looked at.
    """
    spare, spare_now = _spare(before), _spare(after)
    missing, missing_now = before.numbers.tally.unplaced, after.numbers.tally.unplaced
    return any(
        each >= 0 > spare_now[name] or each - missing >= 0 > spare_now[name] - missing_now
        for name, each in spare.items()
        if name in spare_now
    )


def _spare(status: PublishedStatus) -> dict[str, int]:
    return {name: domain.healthy - domain.desired for name, domain in status.numbers.domains.items()}
