"""The inner loops of a sweep: all inputs of a chunk through one algorithm, and the comparison of the scores.

Written like the algorithms, on given vectors and without allocation, because `compiled` compiles them all. The
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
"""The total of an input that leaves a zone without endpoints."""


class KernelConfig(NamedTuple):
    threshold: float
    start: int
    weights: Weights


def run_balanced(x: Numbers, r: Numbers, e: Counts, s: KernelConfig, q: Search, w: Workspace) -> int:  # noqa: ARG001
    return balanced(e, w)


def run_require(x: Numbers, r: Numbers, e: Counts, s: KernelConfig, q: Search, w: Workspace) -> int:  # noqa: ARG001
    return require(e, w)


def run_local(x: Numbers, r: Numbers, e: Counts, s: KernelConfig, q: Search, w: Workspace) -> int:  # noqa: ARG001
    return local(x, r, e, s.threshold, s.start, w)


def run_local_shared(x: Numbers, r: Numbers, e: Counts, s: KernelConfig, q: Search, w: Workspace) -> int:  # noqa: ARG001
    return local_shared(x, r, e, s.threshold, w)


def run_local_weighted(x: Numbers, r: Numbers, e: Counts, s: KernelConfig, q: Search, w: Workspace) -> int:  # noqa: ARG001
    return local_weighted(x, e, w)


def run_local_opt(x: Numbers, r: Numbers, e: Counts, s: KernelConfig, q: Search, w: Workspace) -> int:  # noqa: ARG001
    return local_opt(x, e, w)


def run_optimal(x: Numbers, r: Numbers, e: Counts, s: KernelConfig, q: Search, w: Workspace) -> int:
    return optimal(x, r, e, s.threshold, s.weights, q, w)


run_algorithm = run_balanced
"""Called by `sweep`; `compiled` replaces it by the algorithm's function."""


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
    """Endpoints `values[i], values[j], values[k]` for i in [first, last), only in ascending order if `ordered`."""
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
                groups = run_algorithm(x, ratio, e, settings, q, w)
                measured = measure(max(groups, 1), total, ratio, traffic, w)
                if measured.unreached > 0:
                    sums[4] += 1
                    totals[at] = INVALID
                else:
                    score = total_score(measured, total, settings.weights)
                    sums[0] += score
                    sums[1] += 100 * measured.in_zone
                    sums[2] += 100 - 50 * measured.highest - 50 * measured.mean
                    sums[3] += 100 * slices_of(total) / measured.slices
                    histogram[min(max(int(score), 0), 100)] += 1
                    totals[at] = score
                at += 1


def upper_bound(ratio: Numbers, e: Counts, even: float, weights: Weights) -> float:
    """An upper bound of the score: all traffic that can stay in its zone at even load, in as few as two groups.

    More can stay only with overload, which costs more than it gains at the standard weights.
    """
    total = e[0] + e[1] + e[2]
    in_zone = 0.0
    for zone in range(3):
        in_zone += min(ratio[zone], e[zone] / total)
    slices = slices_of(total)
    split = weights.in_zone * in_zone + weights.highest + weights.mean + weights.slices * slices / max(slices, 2)
    return max(even, split)


def compare(
    ratio: Any, values: Any, first: int, last: int, ordered: bool, weights: Weights, totals: Any, worst: Any, bound: Any
) -> None:
    """Per algorithm the input with the largest distance to the best algorithm; `bound` gets the sum of upper bounds.

    `totals` and `worst` have a row per algorithm. A row of `worst`: distance, total, best total, index of the best
    algorithm, and the endpoints.
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
                in_zone = (ratio[0] * e[0] + ratio[1] * e[1] + ratio[2] * e[2]) / total
                even = weights.in_zone * in_zone + weights.highest + weights.mean + weights.slices
                bound[0] += upper_bound(ratio, e, even, weights)
                at += 1
