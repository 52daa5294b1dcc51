"""Results of a sweep: means, distributions and losses per algorithm, as shown by tables and reports."""

from __future__ import annotations

from typing import Final

import msgspec

from zonewise.simulator.decide.churn import Churn

SCORE_BINS: Final = 101
"""One bin per point from 0 to 100; scores below 0 count as 0."""


class Figures(msgspec.Struct, frozen=True, rename="camel"):
    total: float
    in_zone: float | None = None
    overload: float | None = None
    slices: float | None = None


class Loss(msgspec.Struct, frozen=True, rename="camel"):
    """An input on which an algorithm is far behind the best one."""

    nodes: tuple[int, ...]
    endpoints: tuple[int, ...]
    total: float
    best: float
    best_algorithm: str


class AlgorithmResult(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """Mean scores of one algorithm; `invalid` inputs leave a zone without endpoints and are not in the means."""

    algorithm: str
    total: float
    in_zone: float
    overload: float
    slices: float
    published: Figures | None = None
    cpu_seconds: float = 0.0
    invalid: int = 0
    histogram: tuple[int, ...] = ()
    losses: tuple[Loss, ...] = ()


class JudgedInput(msgspec.Struct, frozen=True, rename="camel"):
    """One input of the user's own, with the total of each algorithm; None if a zone is left without endpoints."""

    name: str
    zones: tuple[str, ...]
    nodes: tuple[int, ...]
    endpoints: tuple[int, ...]
    totals: dict[str, float | None]


class ResultTable(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """`upper_bound` is a mean total that no assignment exceeds."""

    dataset: str
    inputs: int
    rows: tuple[AlgorithmResult, ...]
    about: str = ""
    upper_bound: float | None = None
    judged: tuple[JudgedInput, ...] = ()


class Results(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    """The JSON of `zonewise simulate -o json`; `churn` has the replayed traces."""

    tables: tuple[ResultTable, ...]
    churn: tuple[Churn, ...] = ()
