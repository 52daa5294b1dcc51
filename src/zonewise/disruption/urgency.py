"""How soon a changed count must be published: what takes a promise back at once, the rest in company. Pure.

Webhooks promise pods away by what was published. A number that falls makes a promise wrong, as does a domain that now has
fewer healthy pods than it must: that is written at once, and can't be often. A number that rises only lets somebody wait,
and what nobody judges by, such as a confirmation, waits longer. While a rollout of ours is at work on a budget its next
reservation carries the new count anyway.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from zonewise.disruption.numbers import DomainNumbers
from zonewise.disruption.status import Published

SOON_SECONDS: Final = 1.0
LAZY_SECONDS: Final = 5.0
HELD_SECONDS: Final = 60.0
NEVER: Final = float("-inf")


class Urgency(Enum):
    NOTHING = "nothing changed"
    LAZY = "only the books changed"
    SOON = "numbers changed"
    NOW = "a promise is wrong"


def urgency(before: Published, after: Published) -> Urgency:
    if before == after:
        return Urgency.NOTHING
    if before.observed_generation != after.observed_generation or _falls(before, after):
        return Urgency.NOW
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
        case _ if held:
            return written_at + HELD_SECONDS
        case Urgency.SOON:
            return max(noticed_at, written_at + SOON_SECONDS)
        case Urgency.LAZY:
            return max(noticed_at, written_at) + LAZY_SECONDS


def _falls(before: Published, after: Published) -> bool:
    now, missing = after.numbers.domains, (before.numbers.tally.unplaced, after.numbers.tally.unplaced)
    return any(_promises_less(domain, now.get(name), missing) for name, domain in before.numbers.domains.items())


def _promises_less(before: DomainNumbers, after: DomainNumbers | None, missing: tuple[int, int]) -> bool:
    """Also where nothing may leave before or after: pods that are not ready go uncharged while enough others are healthy.

    Whether what is `missing` from nobody knows where counts for that is the budget's matter: either way is looked at.
    """
    if after is None:
        return before.allowed > 0
    spare, spare_now = before.healthy - before.desired, after.healthy - after.desired
    short_now = spare >= 0 > spare_now or spare - missing[0] >= 0 > spare_now - missing[1]
    return before.allowed > after.allowed or short_now
