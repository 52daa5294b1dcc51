"""Shares as slots: a share of 7/10 is seven of ten equal chances. Pure.

The kernel picks a slot evenly at random, so shares are exact as long as they are ratios of small numbers. An endpoint
keeps the slots it has while it may, so that a change touches few elements.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm
from typing import Final, TypeVar

T = TypeVar("T", bound=Hashable)

MOST_SLOTS: Final = 1024
"""For uneven shares; beyond it they are rounded to so many parts. Even shares get one slot each, however many."""
_DENOMINATOR: Final = 1000


def count_slots(shares: Mapping[T, float], most: int = MOST_SLOTS) -> dict[T, int]:
    """How many slots each has, in proportion to its share; those without a share have none."""
    if len(set(shares.values())) == 1 and next(iter(shares.values())) > 0:
        return dict.fromkeys(shares, 1)
    positive = {each: share for each, share in shares.items() if share > 0}
    if len(set(positive.values())) <= 1:
        return dict.fromkeys(positive, 1)
    exact = _exact(positive)
    return exact if sum(exact.values()) <= most else _rounded(positive, max(most, len(positive)))


def _exact(shares: Mapping[T, float]) -> dict[T, int]:
    largest = max(shares.values())
    parts = {each: Fraction(share / largest).limit_denominator(_DENOMINATOR) for each, share in shares.items()}
    parts = {each: part or Fraction(1, _DENOMINATOR) for each, part in parts.items()}
    common = lcm(*(part.denominator for part in parts.values()))
    counts = {each: int(part * common) for each, part in parts.items()}
    divisor = gcd(*counts.values())
    return {each: count // divisor for each, count in counts.items()}


def _rounded(shares: Mapping[T, float], total: int) -> dict[T, int]:
    """By the largest remainder, but nobody with a share goes without a slot."""
    whole = sum(shares.values())
    quotas = {each: share * total / whole for each, share in shares.items()}
    counts = {each: max(1, int(quota)) for each, quota in quotas.items()}
    left = total - sum(counts.values())
    for each in sorted(quotas, key=lambda each: counts[each] - quotas[each])[: max(0, left)]:
        counts[each] += 1
    return counts


def assign_slots(counts: Mapping[T, int], previous: Sequence[T] = ()) -> tuple[T, ...]:
    """Who has which slot: as before where possible, the rest in order."""
    total = sum(counts.values())
    if not previous and total == len(counts):
        return tuple(counts)
    wanted = dict(counts)
    slots: list[T | None] = [None] * total
    for index, holder in enumerate(previous[:total]):
        if wanted.get(holder, 0) > 0:
            slots[index] = holder
            wanted[holder] -= 1
    waiting = iter([each for each, count in wanted.items() for _ in range(count)])
    return tuple(next(waiting) if holder is None else holder for holder in slots)
