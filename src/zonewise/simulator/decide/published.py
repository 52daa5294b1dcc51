"""The two published tables, and the sweeps that make them again.

They come from the proposal for topology aware routing (KEP-2004): 39 million inputs through five algorithms, and the
starting threshold of `local` on the small set. Published figures stand here as printed.
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


def _plain(*algorithms: Algorithm) -> tuple[Contestant, ...]:
    return tuple(Contestant(algorithm.value, algorithm) for algorithm in algorithms)


def _started(times: int) -> Contestant:
    return Contestant(f"local-{times}x", Algorithm.LOCAL, StartingPoint(times, per_domain=True))


_OTHERS: Final = _plain(Algorithm.LOCAL_SHARED, Algorithm.LOCAL_WEIGHTED, Algorithm.LOCAL_OPT, Algorithm.OPTIMAL)

ALGORITHMS: Final = Publication(
    LARGE,
    Rules((*_plain(Algorithm.BALANCED, Algorithm.LOCAL), *_OTHERS)),
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
    Rules((*_plain(Algorithm.BALANCED), *map(_started, range(1, 6)), *_OTHERS)),
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
    """At two decimals, as printed; None where nothing was published."""
    printed: float | None = getattr(row.published, column, None)
    obtained: float = getattr(row, column)
    return None if printed is None else f"{obtained:.2f}" == f"{printed:.2f}"


def verdict(table: ResultTable) -> str:
    """One sentence on how far obtained and published figures agree; empty where nothing was published."""
    found = [agrees(row, column) for row in table.rows for column in COLUMNS]
    same, differ = found.count(True), found.count(False)
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
