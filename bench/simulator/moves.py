"""How many old endpoints change hands when one is added, with a full rebalance: the controller's own logic, not lazy."""

from __future__ import annotations

from random import Random

from zonewise.routing.algorithms import Algorithm
from zonewise.routing.prefer import Limits, prefer
from zonewise.routing.tuning import Start

ZONES = ("a", "b", "c")


def moved_per_added(name: str, shapes: int = 1_000) -> float:
    limits = Limits(Algorithm(name), Start(0, per_domain=False), padding=0, lazy=False)
    random = Random(3)
    moved = added = 0
    for _ in range(shapes):
        demand = {zone: random.randint(1, 10) for zone in ZONES}
        homes = {f"{zone}{number:03}": zone for zone in ZONES for number in range(random.randint(3, 60))}
        before = prefer(demand, homes, limits)
        after = prefer(demand, {**homes, "new": random.choice(ZONES)}, limits, before.memory)
        if before.consumers and after.consumers:
            moved += after.moved
            added += 1
    return moved / added
