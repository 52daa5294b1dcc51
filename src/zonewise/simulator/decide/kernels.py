"""The inner loops of a sweep: all inputs of a chunk through one algorithm, and what came out compared.

Written like the algorithms, on vectors passed in and without allocation, because `compiled` translates them all. The
expected endpoints are computed as the published figures were, `float(E) * (N / sum N)`; the exact quotient the
controller uses gives slightly different tables.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from zonewise.routing.algorithms.blocks import Search
from zonewise.routing.algorithms.local import balanced, local, require
from zonewise.routing.algorithms.optimal import optimal
from zonewise.routing.algorithms.score import Weights, measure, slices_of, total_score
from zonewise.routing.algorithms.shared import local_shared
from zonewise.routing.algorithms.weighted import local_opt, local_weighted
from zonewise.routing.algorithms.workspace import Counts, Numbers, Workspace

INVALID = -1e9
"""Stands for the total of an input that leaves a zone without endpoints."""


class KernelConfig(NamedTuple):
    threshold: float
    start: int
    weights: Weights


def judge_balanced(x: Numbers, r: Numbers, e: Counts, s: KernelConfig, q: Search, w: Workspace) -> int:  # noqa: ARG001
    return balanced(e, w)


def judge_require(x: Numbers, r: Numbers, e: Counts, s: KernelConfig, q: Search, w: Workspace) -> int:  # noqa: ARG001
    return require(e, w)


def judge_local(x: Numbers, r: Numbers, e: Counts, s: KernelConfig, q: Search, w: Workspace) -> int:  # noqa: ARG001
    return local(x, r, e, s.threshold, s.start, w)


def judge_local_shared(x: Numbers, r: Numbers, e: Counts, s: KernelConfig, q: Search, w: Workspace) -> int:  # noqa: ARG001
    return local_shared(x, r, e, s.threshold, w)


def judge_local_weighted(x: Numbers, r: Numbers, e: Counts, s: KernelConfig, q: Search, w: Workspace) -> int:  # noqa: ARG001
    return local_weighted(x, e, w)


def judge_local_opt(x: Numbers, r: Numbers, e: Counts, s: KernelConfig, q: Search, w: Workspace) -> int:  # noqa: ARG001
    return local_opt(x, e, w)


def judge_optimal(x: Numbers, r: Numbers, e: Counts, s: KernelConfig, q: Search, w: Workspace) -> int:
    return optimal(x, r, e, s.threshold, s.weights, q, w)


judge = judge_balanced
"""What `sweep` calls; `compiled` puts the wanted one in its place."""


def sweep(
    ratio: Any,
    values: Any,
    first: int,
    last: int,
    ordered: bool,
    settings: KernelConfig,
    q: Search,
    w: Workspace,
    traffic: Any,
    sums: Any,
    histogram: Any,
    totals: Any,
) -> None:
    """Endpoints `values[i], values[j], values[k]` for i in [first, last), in ascending order unless all are asked for."""
    count = len(values)
    at = 0
    for i in range(first, last):
        for j in range(i if ordered else 0, count):
            for k in range(j if ordered else 0, count):
                e = (values[i], values[j], values[k])
                total = e[0] + e[1] + e[2]
                if total == 0:
                    continue
                x = (float(total) * ratio[0], float(total) * ratio[1], float(total) * ratio[2])
                groups = judge(x, ratio, e, settings, q, w)
                found = measure(max(groups, 1), total, ratio, traffic, w)
                if found.unreached > 0:
                    sums[4] += 1
                    totals[at] = INVALID
                else:
                    reached = total_score(found, total, settings.weights)
                    sums[0] += reached
                    sums[1] += 100 * found.in_zone
                    sums[2] += 100 - 50 * found.highest - 50 * found.mean
                    sums[3] += 100 * slices_of(total) / found.slices
                    histogram[min(max(int(reached), 0), 100)] += 1
                    totals[at] = reached
                at += 1


def ceiling(ratio: Numbers, e: Counts, even: float, weights: Weights) -> float:
    """No assignment of any kind scores higher: all that endpoints can keep home at even load, in as few as two groups.

    More can be kept home only by overload, which costs more than it brings at the standard weights.
    """
    total = e[0] + e[1] + e[2]
    home = 0.0
    for zone in range(3):
        home += min(ratio[zone], e[zone] / total)
    slices = slices_of(total)
    split = weights.in_zone * home + weights.highest + weights.mean + weights.slices * slices / max(slices, 2)
    return max(even, split)


def compare(
    ratio: Any, values: Any, first: int, last: int, ordered: bool, weights: Weights, totals: Any, worst: Any, bound: Any
) -> None:
    """Per algorithm the input where it falls farthest behind the best of all; the sum of the ceilings in `bound`.

    A row of `totals` per algorithm; a row of `worst` per algorithm: how far behind, total, best, whose, and endpoints.
    """
    algorithms = len(totals)
    count = len(values)
    at = 0
    for i in range(first, last):
        for j in range(i if ordered else 0, count):
            for k in range(j if ordered else 0, count):
                e = (values[i], values[j], values[k])
                total = e[0] + e[1] + e[2]
                if total == 0:
                    continue
                best = 0
                for a in range(1, algorithms):
                    if totals[a, at] > totals[best, at]:
                        best = a
                for a in range(algorithms):
                    behind = totals[best, at] - totals[a, at]
                    if totals[a, at] != INVALID and behind > worst[a, 0]:
                        worst[a, 0] = behind
                        worst[a, 1] = totals[a, at]
                        worst[a, 2] = totals[best, at]
                        worst[a, 3] = best
                        for zone in range(3):
                            worst[a, 4 + zone] = e[zone]
                home = (ratio[0] * e[0] + ratio[1] * e[1] + ratio[2] * e[2]) / total
                even = weights.in_zone * home + weights.highest + weights.mean + weights.slices
                bound[0] += ceiling(ratio, e, even, weights)
                at += 1
