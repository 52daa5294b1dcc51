"""Result tables from partial results, summed in task order, so that the result does not depend on scheduling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import fsum
from typing import Final

import msgspec

from zonewise.simulator.decide.results import AlgorithmResult, Figures, ResultTable
from zonewise.simulator.decide.tasks import Partial, Rules, Sums

LOSSES_SHOWN: Final = 3


def tally(dataset: str, about: str, rules: Rules, partials: Iterable[Partial]) -> ResultTable:
    in_order = sorted(partials, key=lambda partial: partial.number)
    inputs = sum(partial.inputs for partial in in_order)
    rows = tuple(
        _row(contestant.name, inputs, [partial.sums[contestant.name] for partial in in_order])
        for contestant in rules.contestants
    )
    judged_inputs = tuple(item for partial in in_order for item in partial.judged)
    return ResultTable(dataset, inputs, rows, about, _bound(in_order, rules, inputs), judged_inputs)


def with_published(table: ResultTable, published: Mapping[str, Figures]) -> ResultTable:
    rows = tuple(msgspec.structs.replace(row, published=published.get(row.algorithm)) for row in table.rows)
    return msgspec.structs.replace(table, rows=rows)


def _row(name: str, inputs: int, sums: Sequence[Sums]) -> AlgorithmResult:
    invalid = sum(part.invalid for part in sums)
    valid = (inputs - invalid) or 1
    losses = sorted((part.loss for part in sums if part.loss), key=lambda loss: (loss.total - loss.best, loss.nodes))
    return AlgorithmResult(
        algorithm=name,
        total=fsum(part.total for part in sums) / valid,
        in_zone=fsum(part.in_zone for part in sums) / valid,
        overload=fsum(part.overload for part in sums) / valid,
        slices=fsum(part.slices for part in sums) / valid,
        cpu_seconds=fsum(part.cpu_seconds for part in sums),
        invalid=invalid,
        histogram=tuple(map(sum, zip(*(part.histogram for part in sums), strict=True))),
        losses=tuple(losses[:LOSSES_SHOWN]),
    )


def _bound(partials: Sequence[Partial], rules: Rules, inputs: int) -> float | None:
    """None if the bound does not hold: overload must cost more than it gains."""
    weights = rules.weights
    if weights.in_zone > 2 * weights.mean + weights.highest or any(partial.bound is None for partial in partials):
        return None
    return fsum(partial.bound or 0.0 for partial in partials) / inputs
