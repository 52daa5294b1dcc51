"""Endpoints that move when one is added, with a full rebalance by the controller's logic."""

from __future__ import annotations

from random import Random
from typing import Final

from zonewise.routing.algorithms import Algorithm
from zonewise.routing.prefer import PreferLimits, prefer
from zonewise.routing.tuning import StartingPoint

ZONES: Final = ("a", "b", "c")
SHAPES: Final = 300


def moved_per_added(name: str) -> float:
    """As in the data sets, zones with more nodes have more endpoints. A flip to or from balanced moves all."""
    limits = PreferLimits(Algorithm(name), StartingPoint(0, per_domain=False), padding=0, lazy=False)
    random = Random(3)
    moved = 0
    for _ in range(SHAPES):
        demand = dict(zip(ZONES, sorted(random.randint(1, 10) for _ in ZONES), strict=True))
        counts = dict(zip(ZONES, sorted(random.randint(1, 100) for _ in ZONES), strict=True))
        zone_of = {f"{zone}{number:03}": zone for zone in ZONES for number in range(counts[zone])}
        before = prefer(demand, zone_of, limits)
        after = prefer(demand, {**zone_of, "new": random.choice(ZONES)}, limits, before.memory)
        flipped = bool(before.consumers) != bool(after.consumers)
        moved += len(zone_of) if flipped else after.moved
    return moved / SHAPES
