"""Partials to tables: sums in task order, so that the result does not depend on who did which task when."""

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
    judged = tuple(judged for partial in in_order for judged in partial.judged)
    return ResultTable(dataset, inputs, rows, about, _bound(in_order, rules, inputs), judged)


def with_published(table: ResultTable, published: Mapping[str, Figures]) -> ResultTable:
    rows = tuple(msgspec.structs.replace(row, published=published.get(row.algorithm)) for row in table.rows)
    return msgspec.structs.replace(table, rows=rows)


def _row(name: str, inputs: int, sums: Sequence[Sums]) -> AlgorithmResult:
    invalid = sum(found.invalid for found in sums)
    valid = (inputs - invalid) or 1
    losses = sorted((found.loss for found in sums if found.loss), key=lambda loss: (loss.total - loss.best, loss.nodes))
    return AlgorithmResult(
        algorithm=name,
        total=fsum(found.total for found in sums) / valid,
        in_zone=fsum(found.in_zone for found in sums) / valid,
        overload=fsum(found.overload for found in sums) / valid,
        slices=fsum(found.slices for found in sums) / valid,
        cpu_seconds=fsum(found.cpu_seconds for found in sums),
        invalid=invalid,
        histogram=tuple(map(sum, zip(*(found.histogram for found in sums), strict=True))),
        losses=tuple(losses[:LOSSES_SHOWN]),
    )


def _bound(partials: Sequence[Partial], rules: Rules, inputs: int) -> float | None:
    """Holds only while overload costs more than it brings home."""
    weights = rules.weights
    if weights.in_zone > 2 * weights.mean + weights.highest or any(partial.bound is None for partial in partials):
        return None
    return fsum(partial.bound or 0.0 for partial in partials) / inputs
