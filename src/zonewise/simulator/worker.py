"""Execution of a task: chunks of a data set in compiled loops, a user's own inputs in plain Python."""

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
    from zonewise.simulator.chunk_worker import perform_chunk  # noqa: PLC0415 - numba is only needed for data sets

    return perform_chunk(task, task.chunk)


def _perform_own(task: Task) -> Partial:
    sums = {}
    totals: list[dict[str, float | None]] = [{} for _ in task.own]
    for contestant in task.rules.contestants:
        started = time.process_time()
        scores_by_input = [scores_of(contestant, item, task.rules) for item in task.own]
        sums[contestant.name] = _sum_up(scores_by_input, time.process_time() - started)
        for item_totals, scores in zip(totals, scores_by_input, strict=True):
            item_totals[contestant.name] = scores[0] if scores else None
    judged = [
        JudgedInput(item.name, item.zones, item.nodes, item.endpoints, item_totals)
        for item, item_totals in zip(task.own, totals, strict=True)
    ]
    return Partial(task.number, len(task.own), sums, judged=tuple(judged))


def _sum_up(scores_by_input: list[Scores | None], cpu_seconds: float) -> Sums:
    valid = [scores for scores in scores_by_input if scores]
    histogram = [0] * SCORE_BINS
    for scores in valid:
        histogram[min(max(int(scores[0]), 0), SCORE_BINS - 1)] += 1
    total, in_zone, overload, slices = (fsum(scores[column] for scores in valid) for column in range(4))
    return Sums(total, in_zone, overload, slices, len(scores_by_input) - len(valid), tuple(histogram), cpu_seconds)


def scores_of(contestant: Contestant, item: NamedInput, rules: Rules) -> Scores | None:
    """None if the algorithm leaves a zone without endpoints."""
    endpoints = sum(item.endpoints)
    algorithm = contestant.algorithm
    if algorithm is Algorithm.LOCAL and endpoints < contestant.start.at(len(item.zones)):
        algorithm = Algorithm.BALANCED
    groups = assign(
        algorithm, item.nodes, item.endpoints, threshold=rules.threshold, starting_factor=0, weights=rules.weights
    )
    evaluation = evaluate(item.nodes, groups)
    if evaluation.unreached:
        return None
    overload = 100 - 50 * evaluation.highest - 50 * evaluation.mean
    slices = 100 * slices_of(endpoints) / evaluation.slices
    return total_score(evaluation, endpoints, rules.weights), 100 * evaluation.in_zone, overload, slices
