"""Tasks of a sweep: rules, tasks that can run in any order and process, and their partial results.

A task is a chunk of a data set, or some of a user's own inputs. All of these are plain values that are sent to other
processes and written to a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from zonewise.routing.algorithms import STANDARD, Algorithm, Weights
from zonewise.routing.tuning import DEFAULT_START, StartingPoint
from zonewise.simulator.decide.datasets import Chunk, Dataset, chunks
from zonewise.simulator.decide.inputs import NamedInput
from zonewise.simulator.decide.results import JudgedInput, Loss

INPUTS_PER_TASK: Final = 200


class Contestant(msgspec.Struct, frozen=True):
    """An algorithm with a name of its own, so that a table can have it twice."""

    name: str
    algorithm: Algorithm
    start: StartingPoint = DEFAULT_START


class Rules(msgspec.Struct, frozen=True):
    contestants: tuple[Contestant, ...]
    threshold: float = 0.5
    weights: Weights = STANDARD


class Task(msgspec.Struct, frozen=True):
    number: int
    rules: Rules
    chunk: Chunk | None = None
    own: tuple[NamedInput, ...] = ()

    @property
    def inputs(self) -> int:
        return self.chunk.inputs * self.chunk.times if self.chunk else len(self.own)


class Sums(msgspec.Struct, frozen=True):
    """One contestant's sums over a task's inputs; invalid inputs are only counted."""

    total: float
    in_zone: float
    overload: float
    slices: float
    invalid: int
    histogram: tuple[int, ...]
    cpu_seconds: float
    loss: Loss | None = None


class Partial(msgspec.Struct, frozen=True):
    """`bound` is the sum of the upper bounds of all inputs."""

    number: int
    inputs: int
    sums: dict[str, Sums]
    bound: float | None = None
    judged: tuple[JudgedInput, ...] = ()


def dataset_tasks(dataset: Dataset, rules: Rules) -> list[Task]:
    return [Task(number, rules, chunk=chunk) for number, chunk in enumerate(chunks(dataset))]


def own_tasks(inputs: Sequence[NamedInput], rules: Rules) -> list[Task]:
    starts = enumerate(range(0, len(inputs), INPUTS_PER_TASK))
    return [Task(number, rules, own=tuple(inputs[start : start + INPUTS_PER_TASK])) for number, start in starts]
