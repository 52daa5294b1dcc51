"""Execution of a data set chunk for every contestant in compiled loops. Only this module of a sweep needs numba."""

from __future__ import annotations

import time
from functools import cache
from typing import Any, Final

import msgspec
import numpy as np

from zonewise.routing.algorithms import Algorithm
from zonewise.simulator.compiled import CompiledMemory, compare, memory, sweeper
from zonewise.simulator.decide.datasets import Chunk, Triple
from zonewise.simulator.decide.kernels import INVALID, KernelConfig
from zonewise.simulator.decide.results import SCORE_BINS, Loss
from zonewise.simulator.decide.tasks import Contestant, Partial, Rules, Sums, Task

ZONES: Final = 3


def perform_chunk(task: Task, chunk: Chunk) -> Partial:
    contestants = task.rules.contestants
    totals = np.full((len(contestants), chunk.inputs), INVALID)
    sums = {
        contestant.name: _sweep(contestant, task.rules, chunk, row)
        for contestant, row in zip(contestants, totals, strict=True)
    }
    worst = np.zeros((len(contestants), 4 + ZONES))
    bound = np.zeros(1)
    loop_arguments = _ratio(chunk.nodes), _values(chunk.values), chunk.first, chunk.last, chunk.ordered
    compare()(*loop_arguments, task.rules.weights, totals, worst, bound)
    sums = {
        name: _with_loss(contestant_sums, row, chunk.nodes, contestants)
        for (name, contestant_sums), row in zip(sums.items(), worst, strict=True)
    }
    return Partial(task.number, task.inputs, sums, float(bound[0]) * chunk.times)


def _sweep(contestant: Contestant, rules: Rules, chunk: Chunk, totals: Any) -> Sums:
    run = warm(contestant.algorithm)
    arrays = _memory()
    sums, histogram = np.zeros(5), np.zeros(SCORE_BINS, np.int64)
    settings = KernelConfig(rules.threshold, contestant.start.at(ZONES), rules.weights)
    loop_arguments = _ratio(chunk.nodes), _values(chunk.values), chunk.first, chunk.last, chunk.ordered, settings
    started = time.process_time()
    run(*loop_arguments, arrays.search, arrays.work, arrays.traffic, sums, histogram, totals)
    cpu_seconds = time.process_time() - started
    total, in_zone, overload, slices, invalid = (float(value) * chunk.times for value in sums)
    binned = tuple(int(count) * chunk.times for count in histogram)
    return Sums(total, in_zone, overload, slices, int(invalid), binned, cpu_seconds)


@cache
def warm(algorithm: Algorithm) -> Any:
    """Compile, or load from the cache, by one small call outside the measured time."""
    run, arrays = sweeper(algorithm), _memory()
    settings = KernelConfig(0.5, 0, Rules(()).weights)
    loop_arguments = (1 / 3, 1 / 3, 1 / 3), _values(range(2)), 0, 1, True, settings
    run(
        *loop_arguments,
        arrays.search,
        arrays.work,
        arrays.traffic,
        np.zeros(5),
        np.zeros(SCORE_BINS, np.int64),
        np.zeros(3),
    )
    return run


@cache
def _memory() -> CompiledMemory:
    return memory(ZONES)


def _ratio(nodes: Triple) -> tuple[float, float, float]:
    total = sum(nodes)
    return nodes[0] / total, nodes[1] / total, nodes[2] / total


def _values(values: range) -> Any:
    return np.array(values, np.int64)


def _with_loss(sums: Sums, worst: Any, nodes: Triple, contestants: tuple[Contestant, ...]) -> Sums:
    behind, total, best, best_index, *endpoints = worst
    if behind <= 0:
        return sums
    loss = Loss(nodes, tuple(map(int, endpoints)), float(total), float(best), contestants[int(best_index)].name)
    return msgspec.structs.replace(sums, loss=loss)
