"""The best sizes for given blocks: round the expected sizes, then improve step by step.

Three kinds of step find what a plain climb by single endpoints cannot: *level* shrinks blocks that import endpoints to
the highest load that exists anyway, so that more traffic stays in its zone; *cut* takes a block down to full slices; and
after each of them single endpoints move again.
"""

from __future__ import annotations

import math
from typing import Final

from zonewise.routing.algorithms.blocks import TIE, Goal, Search, price, score, worth
from zonewise.routing.algorithms.score import SLICE_CAPACITY, slices_of
from zonewise.routing.algorithms.workspace import Counts, Ints

MOST_CUTS: Final = 8
ONE_START_TO: Final = 3
"""Blocks; up to so many, rounding off leads to the best sizes."""


def copy(source: Counts, target: Ints, count: int) -> None:
    for at in range(count):
        target[at] = source[at]


def round_off(blocks: int, search: Search, goal: Goal) -> None:
    """Rounds expected sizes down, not below the fewest; then corrects one by one where most are missing or too many."""
    left = goal.endpoints
    for block in range(blocks):
        search.sizes[block] = max(math.floor(search.demand[block] + TIE), search.fewest[block])
        left -= search.sizes[block]
    step = 1 if left > 0 else -1
    while left != 0:
        chosen = -1
        for block in range(blocks):
            if step < 0 and search.sizes[block] == search.fewest[block]:
                continue
            missing = (search.demand[block] - search.sizes[block]) * step
            if chosen < 0 or missing > (search.demand[chosen] - search.sizes[chosen]) * step + TIE:
                chosen = block
        search.sizes[chosen] += step
        left -= step


def round_up(blocks: int, sizes: Ints, search: Search, goal: Goal) -> None:
    """Rounds expected sizes up, then removes one by one so that the highest load stays lowest."""
    over = -goal.endpoints
    for block in range(blocks):
        sizes[block] = max(math.ceil(search.demand[block] - TIE), search.fewest[block])
        over += sizes[block]
    while over > 0:
        chosen = -1
        lowest = math.inf
        for block in range(blocks):
            if sizes[block] > search.fewest[block] and search.demand[block] < lowest * (sizes[block] - 1):
                chosen = block
                lowest = search.demand[block] / (sizes[block] - 1)
        sizes[chosen] -= 1
        over -= 1


def weigh(block: int, size: int, search: Search, goal: Goal) -> None:
    """Stores the worth of the block, and the change by one endpoint more or less."""
    now = worth(block, size, search, goal)
    search.worth[block] = now
    search.gain[block] = worth(block, size + 1, search, goal) - now
    if size > search.fewest[block]:
        search.loss[block] = worth(block, size - 1, search, goal) - now


def two_highest(blocks: int, sizes: Ints, search: Search) -> tuple[int, float, float]:
    """The block with the highest load above 1, that load, and the next."""
    first = -1
    highest = 1.0
    second = 1.0
    for block in range(blocks):
        load = search.demand[block] / sizes[block]
        if load > highest:
            second = highest
            highest = load
            first = block
        elif load > second:
            second = load
    return first, highest, second


def best_step(blocks: int, sizes: Ints, search: Search, goal: Goal) -> tuple[int, int, float]:
    """The giver and taker of one endpoint that gain the most; no giver if nothing gains. And the score before it."""
    own = 0.0
    slices = 0
    highest_gain = -math.inf
    for block in range(blocks):
        own += search.worth[block]
        slices += slices_of(sizes[block])
        highest_gain = max(highest_gain, search.gain[block])
    first, highest, second = two_highest(blocks, sizes, search)
    now = own + price(highest, slices, goal)
    one_less = own + price(0.0, max(slices - 1, 1), goal)
    as_many = own + price(0.0, slices, goal)
    one_more = own + price(0.0, slices + 1, goal)
    best = now + TIE
    giver = -1
    taker = -1
    for source in range(blocks):
        if sizes[source] <= search.fewest[source]:
            continue
        frees = sizes[source] % SLICE_CAPACITY == 1
        after = search.demand[source] / (sizes[source] - 1)
        rest = (one_less if frees else as_many) + search.loss[source]
        if rest + highest_gain - goal.weights.highest * max(after, second) <= best:
            continue
        fuller = (as_many if frees else one_more) + search.loss[source]
        for target in range(blocks):
            if target == source:
                continue
            load = max(after, highest)
            if target == first:
                load = max(after, second, search.demand[target] / (sizes[target] + 1))
            reached = (fuller if sizes[target] % SLICE_CAPACITY == 0 else rest) + search.gain[target]
            reached -= goal.weights.highest * load
            if reached > best:
                giver = source
                taker = target
                best = reached
    return giver, taker, now


def shift(giver: int, taker: int, count: int, sizes: Ints, search: Search, goal: Goal) -> None:
    sizes[giver] -= count
    sizes[taker] += count
    for block in (giver, taker):
        weigh(block, sizes[block], search, goal)


def longest_stride(giver: int, taker: int, sizes: Ints, search: Search) -> int:
    """The most endpoints to move at once: beyond the end of a slice each one counts differently."""
    until_freed = (sizes[giver] - 1) % SLICE_CAPACITY + 1
    until_full = max(-sizes[taker] % SLICE_CAPACITY, 1)
    return int(min(sizes[giver] - search.fewest[giver], until_freed, until_full))


def climb(blocks: int, sizes: Ints, search: Search, goal: Goal) -> float:
    """Moves endpoints while that gains, doubling the stride while the same two blocks repeat; returns the score."""
    for block in range(blocks):
        weigh(block, sizes[block], search, goal)
    source = -1
    target = -1
    stride = 1
    before = -math.inf
    while True:
        giver, taker, now = best_step(blocks, sizes, search, goal)
        too_far = stride > 1 and now <= before + TIE
        if too_far:
            giver = target
            taker = source
        elif giver < 0:
            return now
        elif giver == source and taker == target:
            stride = min(2 * stride, longest_stride(giver, taker, sizes, search))
        else:
            stride = 1
        shift(giver, taker, stride, sizes, search, goal)
        if too_far:
            stride = 1
        source = giver
        target = taker
        before = now


def level_to(load: float, blocks: int, sizes: Ints, levelled: Ints, search: Search) -> bool:
    """Shrinks importing blocks to this load in favour of blocks with own endpoints to keep; returns whether any did."""
    copy(sizes, levelled, blocks)
    taker = 0
    changed = False
    for block in range(blocks):
        free = sizes[block] - max(search.own[block], search.fewest[block], math.ceil(search.demand[block] / load - TIE))
        while free > 0 and taker < blocks:
            count = max(min(free, search.own[taker] - levelled[taker]), 0)
            levelled[taker] += count
            levelled[block] -= count
            free -= count
            changed = changed or count > 0
            if free > 0:
                taker += 1
    return changed


def imports(blocks: int, sizes: Ints, search: Search) -> bool:
    """Whether a block uses endpoints that another block has of its own."""
    missing = 0
    over = 0
    for block in range(blocks):
        missing += max(sizes[block] - search.own[block], 0)
        over += max(search.own[block] - sizes[block], 0)
    return missing > 0 and over > 0


def level(blocks: int, sizes: Ints, levelled: Ints, best: float, search: Search, goal: Goal) -> float:
    """After a climb: tries the current highest load, and the load of each importing block with one less."""
    if not imports(blocks, sizes, search):
        return best
    reached = best
    chosen = 0.0
    _, highest, _ = two_highest(blocks, sizes, search)
    for at in range(blocks + 1):
        load = highest
        if at < blocks:
            if sizes[at] <= max(search.fewest[at], search.own[at]) or search.demand[at] <= highest * (sizes[at] - 1):
                continue
            load = search.demand[at] / (sizes[at] - 1)
        if level_to(load, blocks, sizes, levelled, search):
            candidate = score(blocks, levelled, sizes, search, goal)
            if candidate > reached + TIE:
                reached = candidate
                chosen = load
    if chosen == 0:
        return best
    level_to(chosen, blocks, sizes, levelled, search)
    copy(levelled, sizes, blocks)
    return climb(blocks, sizes, search, goal)


def cut_to(block: int, receiver: int, blocks: int, sizes: Ints, cut: Ints, search: Search) -> bool:
    """Cuts the block down to full slices; others take their own endpoints, the receiver the rest, if any."""
    copy(sizes, cut, blocks)
    cut[block] = (sizes[block] - 1) // SLICE_CAPACITY * SLICE_CAPACITY
    free = sizes[block] - cut[block]
    for taker in range(blocks):
        if taker != block:
            count = max(min(free, search.own[taker] - cut[taker]), 0)
            cut[taker] += count
            free -= count
    cut[receiver] += free
    return free > 0


def best_cut(blocks: int, sizes: Ints, cut: Ints, trial: Ints, search: Search, goal: Goal) -> bool:
    """Finds the best cut of one block down to full slices; returns whether there is one."""
    best = -math.inf
    for block in range(blocks):
        search.worth[block] = worth(block, sizes[block], search, goal)
    for block in range(blocks):
        if (sizes[block] - 1) // SLICE_CAPACITY * SLICE_CAPACITY < max(search.fewest[block], 1):
            continue
        for receiver in range(blocks):
            if receiver != block:
                has_rest = cut_to(block, receiver, blocks, sizes, trial, search)
                candidate = score(blocks, trial, sizes, search, goal)
                if candidate > best + TIE:
                    best = candidate
                    copy(trial, cut, blocks)
                if not has_rest:
                    break
    return best > -math.inf


def start_again(blocks: int, best: float, search: Search, goal: Goal) -> float:
    """Starts from the lowest highest load, which single steps cannot reach if several blocks share the highest."""
    round_up(blocks, search.trial, search, goal)
    reached = climb(blocks, search.trial, search, goal)
    reached = level(blocks, search.trial, search.scratch, reached, search, goal)
    if reached <= best + TIE:
        return best
    copy(search.trial, search.sizes, blocks)
    return reached


def settle(blocks: int, known: float, ceiling: float, search: Search, goal: Goal) -> float:
    """The best score, with its sizes in `sizes`; cuts that cannot beat `known` are not tried."""
    round_off(blocks, search, goal)
    best = climb(blocks, search.sizes, search, goal)
    copy(search.sizes, search.chain, blocks)
    best = level(blocks, search.sizes, search.scratch, best, search, goal)
    if blocks > ONE_START_TO:
        best = start_again(blocks, best, search, goal)
    fewest_slices = max(slices_of(goal.endpoints), blocks)
    slices = 0
    for block in range(blocks):
        slices += slices_of(search.chain[block])
    last = max(slices - MOST_CUTS, fewest_slices)
    while slices > last and ceiling > max(best, known) + TIE:
        if not best_cut(blocks, search.chain, search.trial, search.scratch, search, goal):
            break
        copy(search.trial, search.chain, blocks)
        slices -= 1
        lost = price(1.0, fewest_slices, goal) - price(1.0, slices, goal)
        if ceiling - lost > max(best, known) + TIE:
            reached = climb(blocks, search.trial, search, goal)
            reached = level(blocks, search.trial, search.scratch, reached, search, goal)
            if reached > best + TIE:
                best = reached
                copy(search.trial, search.sizes, blocks)
    return best
