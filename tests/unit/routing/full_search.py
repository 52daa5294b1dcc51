"""The best assignment by trying all: every partition of the zones, every size of every block that keeps the limit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from zonewise.routing.algorithms import STANDARD, EndpointGroup, EndpointGroups, evaluate, total_score


def partitions(zones: Sequence[int]) -> Iterator[list[list[int]]]:
    if not zones:
        yield []
        return
    first, *rest = zones
    for smaller in partitions(rest):
        yield [[first], *smaller]
        for at, block in enumerate(smaller):
            yield [*smaller[:at], [first, *block], *smaller[at + 1 :]]


def sizes(total: int, blocks: int) -> Iterator[tuple[int, ...]]:
    if blocks == 1:
        yield (total,)
        return
    for size in range(1, total - blocks + 2):
        for others in sizes(total - size, blocks - 1):
            yield size, *others


def filled(
    nodes: Sequence[int], endpoints: Sequence[int], blocks: Sequence[Sequence[int]], wanted: Sequence[int]
) -> EndpointGroups:
    """Own endpoints first, those of the zone with more nodes before others; what is missing from what is over."""
    left = list(endpoints)
    compositions = [[0] * len(nodes) for _ in blocks]

    def take(block: int, zone: int) -> None:
        count = min(left[zone], wanted[block] - sum(compositions[block]))
        compositions[block][zone] += count
        left[zone] -= count

    for at, block in enumerate(blocks):
        for zone in sorted(block, key=lambda zone: -nodes[zone]):
            take(at, zone)
    for at in range(len(blocks)):
        for zone in range(len(nodes)):
            take(at, zone)
    return EndpointGroups(
        tuple(
            EndpointGroup(tuple(composition), tuple(float(zone in block) for zone in range(len(nodes))))
            for composition, block in zip(compositions, blocks, strict=True)
        )
    )


def best_total(nodes: Sequence[int], endpoints: Sequence[int], threshold: float = 0.5) -> float:
    total = sum(endpoints)
    best = 0.0
    for blocks in partitions(range(len(nodes))):
        for wanted in sizes(total, len(blocks)) if len(blocks) <= total else ():
            if keeps_limit(nodes, total, blocks, wanted, Fraction(str(threshold))):
                score = evaluate(nodes, filled(nodes, endpoints, blocks, wanted))
                best = max(best, total_score(score, total, STANDARD))
    return best


def keeps_limit(
    nodes: Sequence[int], endpoints: int, blocks: Sequence[Sequence[int]], wanted: Sequence[int], threshold: Fraction
) -> bool:
    """In exact numbers: at the limit is over it."""
    return all(
        Fraction(sum(nodes[zone] for zone in block) * endpoints, sum(nodes) * size) - 1 < threshold
        for block, size in zip(blocks, wanted, strict=True)
    )
