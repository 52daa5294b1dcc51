"""Binary heaps of zone numbers, ordered by a rank per zone: the pools of givers and takers.

Ties keep the order of the heap, and published figures depend on that order: sift from the middle to build, swap with the
last to pop, sift up to push. The rank is read on each comparison, so it may change while a zone is in the heap. Plain
arithmetic on vectors passed in, so that the simulator can compile these functions.
"""

from __future__ import annotations

from zonewise.routing.algorithms.workspace import Ints, Reals


def sift_down(pool: Ints, count: int, at: int, rank: Reals) -> None:
    zone = pool[at]
    while 2 * at + 1 < count:
        child = 2 * at + 1
        if child + 1 < count and rank[pool[child + 1]] < rank[pool[child]]:
            child += 1
        if not rank[pool[child]] < rank[zone]:
            break
        pool[at] = pool[child]
        at = child
    pool[at] = zone


def build(pool: Ints, count: int, rank: Reals) -> None:
    for at in range(count // 2 - 1, -1, -1):
        sift_down(pool, count, at, rank)


def pop(pool: Ints, count: int, rank: Reals) -> int:
    """Removes and returns the first zone."""
    first = pool[0]
    pool[0] = pool[count - 1]
    if count > 2:
        sift_down(pool, count - 1, 0, rank)
    return first


def push(pool: Ints, count: int, zone: int, rank: Reals) -> int:
    """Adds a zone and returns the new count."""
    at = count
    while at > 0 and rank[zone] < rank[pool[(at - 1) // 2]]:
        pool[at] = pool[(at - 1) // 2]
        at = (at - 1) // 2
    pool[at] = zone
    return count + 1
