"""Traffic shares as slots: a share of 7/10 is seven of ten slots. Pure.

The kernel picks a slot evenly at random, so shares are exact as long as they are ratios of small numbers. An endpoint
keeps its slots where possible, so that a change touches few elements.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import Final, TypeVar

T = TypeVar("T", bound=Hashable)

MAX_SLOTS: Final = 1024
"""For uneven shares; beyond it they are rounded. Even shares get one slot each, without a limit."""
_DENOMINATOR: Final = 1000


def count_slots(shares: Mapping[T, float], limit: int = MAX_SLOTS) -> dict[T, int]:
    """The number of slots per target, in proportion to its share; none for a share of zero."""
    if len(set(shares.values())) == 1 and next(iter(shares.values())) > 0:
        return dict.fromkeys(shares, 1)
    positive = {target: share for target, share in shares.items() if share > 0}
    if len(set(positive.values())) <= 1:
        return dict.fromkeys(positive, 1)
    exact = _exact(positive)
    return exact if sum(exact.values()) <= limit else _rounded(positive, max(limit, len(positive)))


def _exact(shares: Mapping[T, float]) -> dict[T, int]:
    largest = max(shares.values())
    parts = {target: Fraction(share / largest).limit_denominator(_DENOMINATOR) for target, share in shares.items()}
    parts = {target: part or Fraction(1, _DENOMINATOR) for target, part in parts.items()}
    common = lcm(*(part.denominator for part in parts.values()))
    counts = {target: int(part * common) for target, part in parts.items()}
    divisor = gcd(*counts.values())
    return {target: count // divisor for target, count in counts.items()}


def _rounded(shares: Mapping[T, float], total: int) -> dict[T, int]:
    """`total` slots by the largest remainder, with at least one slot each."""
    if total <= len(shares):
        return dict.fromkeys(shares, 1)
    quotas = _quotas_above_one(shares, total)
    counts = {target: int(quotas.get(target, 1)) for target in shares}
    left = total - sum(counts.values())
    for target in sorted(quotas, key=lambda target: counts[target] - quotas[target])[:left]:
        counts[target] += 1
    return counts


def _quotas_above_one(shares: Mapping[T, float], total: int) -> dict[T, float]:
    """Targets whose quota is less than one slot get one; the others share what these leave."""
    rest = dict(shares)
    while True:
        slot = sum(rest.values()) / (total - len(shares) + len(rest))
        larger = {target: share for target, share in rest.items() if share >= slot}
        if len(larger) == len(rest):
            return {target: share / slot for target, share in rest.items()}
        rest = larger


def assign_slots(counts: Mapping[T, int], previous: Sequence[T] = ()) -> tuple[T, ...]:
    """The target of each slot: the previous one where possible, the others in order."""
    total = sum(counts.values())
    if not previous and total == len(counts):
        return tuple(counts)
    remaining = dict(counts)
    slots: list[T | None] = [None] * total
    for index, holder in enumerate(previous[:total]):
        if remaining.get(holder, 0) > 0:
            slots[index] = holder
            remaining[holder] -= 1
    unassigned = iter([target for target, count in remaining.items() for _ in range(count)])
    return tuple(next(unassigned) if holder is None else holder for holder in slots)
