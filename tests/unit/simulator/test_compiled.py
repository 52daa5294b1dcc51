"""Compiled functions give the same results as plain ones, and reproduce the published table.

A million random inputs in all, distributed over the algorithms by their cost in plain Python. A million for each takes
minutes; set `INPUTS` in the environment for it.
"""

from __future__ import annotations

import os
from types import FunctionType
from typing import Any

import numpy as np
import pytest

from zonewise.routing.algorithms import STANDARD, Algorithm
from zonewise.routing.algorithms.blocks import search_space
from zonewise.routing.algorithms.workspace import new_workspace
from zonewise.simulator.chunk_worker import perform_chunk
from zonewise.simulator.compiled import memory, sweeper
from zonewise.simulator.decide import kernels
from zonewise.simulator.decide.datasets import SMALL, chunks
from zonewise.simulator.decide.kernels import KernelConfig
from zonewise.simulator.decide.published import STARTING_THRESHOLDS, agrees
from zonewise.simulator.decide.results import SCORE_BINS
from zonewise.simulator.decide.tally import tally, with_published
from zonewise.simulator.decide.tasks import Task

INPUTS = {
    Algorithm.BALANCED: 200_000,
    Algorithm.REQUIRE: 100_000,
    Algorithm.LOCAL: 140_000,
    Algorithm.LOCAL_SHARED: 100_000,
    Algorithm.LOCAL_WEIGHTED: 200_000,
    Algorithm.LOCAL_OPT: 220_000,
    Algorithm.OPTIMAL: 40_000,
}
BLOCK = 1_000
ALGORITHMS = [
    pytest.param(algorithm, marks=pytest.mark.xdist_group(f"compiled-{algorithm}")) for algorithm in Algorithm
]
"""All parts of an algorithm run in one process, which compiles it once."""


def test_inputs_add_up_to_a_million() -> None:
    assert sum(INPUTS.values()) == 1_000_000


def plain_sweep(algorithm: Algorithm) -> Any:
    run_algorithm = getattr(kernels, f"run_{algorithm.replace('-', '_')}")
    return FunctionType(kernels.sweep.__code__, vars(kernels) | {"run_algorithm": run_algorithm})


def run_sweep(
    run: Any, ratio: tuple[float, ...], values: Any, settings: KernelConfig, arrays: Any
) -> tuple[Any, Any, Any]:
    sums, histogram, totals = np.zeros(5), np.zeros(SCORE_BINS, np.int64), np.zeros(BLOCK)
    run(ratio, values, 0, len(values), False, settings, *arrays, sums, histogram, totals)
    return sums, histogram, totals


@pytest.mark.timeout(1800)  # the first part of each also compiles: a minute of CPU, longer on a busy machine
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_compiled_and_plain_give_equal_results(algorithm: Algorithm, part: int) -> None:
    """A block of a thousand inputs has ten random counts in every order; nodes, start and limit vary by block."""
    random = np.random.default_rng([part, list(Algorithm).index(algorithm)])
    inputs = int(os.environ.get("INPUTS", INPUTS[algorithm])) // 4
    compiled, plain = sweeper(algorithm), plain_sweep(algorithm)
    arrays = memory(3)
    compiled_memory = arrays.search, arrays.work, arrays.traffic
    plain_memory = search_space(3), new_workspace(3), [0.0] * 9
    for _ in range(inputs // BLOCK):
        most = int(random.choice([12, 25, 60, 120, 1_200], p=[0.35, 0.35, 0.2, 0.09, 0.01]))
        values = np.sort(random.choice(np.arange(1, most), 10, replace=False))
        values[0] = 0 if random.random() < 0.5 else values[0]
        nodes = random.integers(1, 40, 3).tolist()
        ratio = tuple(count / sum(nodes) for count in nodes)
        settings = KernelConfig(float(random.choice([0.2, 0.5, 1.0])), int(random.choice([0, 9, 60])), STANDARD)
        from_compiled = run_sweep(compiled, ratio, values, settings, compiled_memory)
        from_plain = run_sweep(plain, ratio, values.tolist(), settings, plain_memory)
        assert all(np.array_equal(left, right) for left, right in zip(from_compiled, from_plain, strict=True)), (
            nodes,
            values,
        )


@pytest.mark.timeout(1800)
def test_small_set_reproduces_published_thresholds_and_optimum() -> None:
    rules = STARTING_THRESHOLDS.rules
    tasks = [Task(number, rules, chunk=chunk) for number, chunk in enumerate(chunks(SMALL))]
    partials = [perform_chunk(task, task.chunk) for task in tasks if task.chunk]
    table = with_published(tally("small", "", rules, partials), STARTING_THRESHOLDS.published)
    assert table.inputs == 390_080
    assert [row.algorithm for row in table.rows if agrees(row, "total")] == list(STARTING_THRESHOLDS.published)
    rows = {row.algorithm: row for row in table.rows}
    assert max(rows, key=lambda name: rows[name].total) == "optimal"
    assert rows["optimal"].overload > rows["local-3x"].overload
    assert table.upper_bound is not None
    assert rows["optimal"].total < table.upper_bound
    near = [partial for partial, task in zip(partials, tasks, strict=True) if task.chunk and task.chunk.values[0] == 0]
    figures = {row.algorithm: row for row in tally("0 to 20", "", rules, near).rows}
    assert f"{figures['optimal'].total:.2f}" == "81.83"
    assert f"{figures['local-weighted'].total:.2f}" == "80.81"
