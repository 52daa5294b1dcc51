"""Doing a task: a chunk of a data set by compiled loops, a user's own inputs in plain Python as the controller does."""

from __future__ import annotations

import time
from math import fsum

from zonewise.routing.algorithms import Algorithm, assign, evaluate, total_score
from zonewise.routing.algorithms.score import slices_of
from zonewise.simulator.decide.inputs import NamedInput
from zonewise.simulator.decide.results import SCORE_BINS, JudgedInput
from zonewise.simulator.decide.tasks import Contestant, Partial, Rules, Sums, Task

Scores = tuple[float, float, float, float]
"""Total, in-zone, overload, slices."""


def perform(task: Task) -> Partial:
    if task.chunk is None:
        return _perform_own(task)
    from zonewise.simulator.chunk_worker import perform_chunk  # noqa: PLC0415 - numba only for those who sweep

    return perform_chunk(task, task.chunk)


def _perform_own(task: Task) -> Partial:
    sums = {}
    totals: list[dict[str, float | None]] = [{} for _ in task.own]
    for contestant in task.rules.contestants:
        begin = time.process_time()
        found = [scores_of(contestant, given, task.rules) for given in task.own]
        sums[contestant.name] = _sum_up(found, time.process_time() - begin)
        for reached, scores in zip(totals, found, strict=True):
            reached[contestant.name] = scores[0] if scores else None
    judged = [
        JudgedInput(given.name, given.zones, given.nodes, given.endpoints, reached)
        for given, reached in zip(task.own, totals, strict=True)
    ]
    return Partial(task.number, len(task.own), sums, judged=tuple(judged))


def _sum_up(found: list[Scores | None], cpu_seconds: float) -> Sums:
    valid = [scores for scores in found if scores]
    histogram = [0] * SCORE_BINS
    for scores in valid:
        histogram[min(max(int(scores[0]), 0), SCORE_BINS - 1)] += 1
    total, in_zone, overload, slices = (fsum(scores[column] for scores in valid) for column in range(4))
    return Sums(total, in_zone, overload, slices, len(found) - len(valid), tuple(histogram), cpu_seconds)


def scores_of(contestant: Contestant, given: NamedInput, rules: Rules) -> Scores | None:
    """None where the algorithm leaves a zone without endpoints."""
    endpoints = sum(given.endpoints)
    algorithm = contestant.algorithm
    if algorithm is Algorithm.LOCAL and endpoints < contestant.start.at(len(given.zones)):
        algorithm = Algorithm.BALANCED
    groups = assign(
        algorithm, given.nodes, given.endpoints, threshold=rules.threshold, starting_factor=0, weights=rules.weights
    )
    found = evaluate(given.nodes, groups)
    if found.unreached:
        return None
    overload = 100 - 50 * found.highest - 50 * found.mean
    slices = 100 * slices_of(endpoints) / found.slices
    return total_score(found, endpoints, rules.weights), 100 * found.in_zone, overload, slices
