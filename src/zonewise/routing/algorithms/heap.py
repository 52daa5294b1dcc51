"""Binary heaps of zone numbers, ordered by a rank per zone: the pools the algorithms take givers and takers from.

Ties keep the order the heap happens to have, and the published figures depend on that order: sift from the middle to
build, swap with the last to pop, sift up to push. The rank is read on each comparison, so it may change while a zone
waits. Plain arithmetic on vectors passed in, so that the simulator can compile these very functions.
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
    """The first zone; the pool holds one fewer."""
    first = pool[0]
    pool[0] = pool[count - 1]
    if count > 2:
        sift_down(pool, count - 1, 0, rank)
    return first


def push(pool: Ints, count: int, zone: int, rank: Reals) -> int:
    """The new count."""
    at = count
    while at > 0 and rank[zone] < rank[pool[(at - 1) // 2]]:
        pool[at] = pool[(at - 1) // 2]
        at = (at - 1) // 2
    pool[at] = zone
    return count + 1
