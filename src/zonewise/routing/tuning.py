"""Tuning of a preference by annotations: algorithm, starting threshold, padding and overload threshold.

`policy` reads it; `prefer` and automatic hints use it. Every value has a default, which also replaces a bad value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from zonewise.api.names import ALGORITHM, OVERLOAD_THRESHOLD, PADDING, STARTING_THRESHOLD
from zonewise.routing.algorithms import Algorithm

PREFER_ALGORITHMS: Final = {
    algorithm.value: algorithm
    for algorithm in Algorithm
    if algorithm not in {Algorithm.BALANCED, Algorithm.REQUIRE}  # selected by the policy annotation itself
}

_COUNT: Final = re.compile(r"[0-9]{1,9}")
_START: Final = re.compile(r"([0-9]{1,9})(x?)")
_FRACTION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(%?)")
_MOST_OVERLOAD: Final = 10.0


class StartingPoint(NamedTuple):
    """The number of endpoints that starts a preference: absolute, or per domain."""

    number: int
    per_domain: bool

    def at(self, domains: int) -> int:
        return self.number * domains if self.per_domain else self.number


DEFAULT_START: Final = StartingPoint(3, per_domain=True)


@dataclass(frozen=True, slots=True)
class Tuning:
    """`overload` is None if unset: each rule has its own default."""

    algorithm: Algorithm = Algorithm.LOCAL
    start: StartingPoint = DEFAULT_START
    padding: int = 3
    overload: float | None = None


class TuningProblem(NamedTuple):
    annotation: str
    value: str
    allowed: str
    applied: str = "the default"


def read_tuning(annotations: Mapping[str, str]) -> tuple[Tuning, tuple[TuningProblem, ...]]:
    values: dict[str, Any] = {}
    problems = []
    for annotation, (name, parse, allowed) in _PARSERS.items():
        if (text := annotations.get(annotation)) is None:
            continue
        value = parse(text)
        if value is None:
            problems.append(TuningProblem(annotation, text, allowed))
        else:
            values[name] = value
    if problem := _too_much_padding(annotations, values.get("start", DEFAULT_START), values.get("padding", 0)):
        problems.append(problem)
        values["padding"] = values["start"].number
    return Tuning(**values), tuple(problems)


def _too_much_padding(annotations: Mapping[str, str], start: StartingPoint, padding: int) -> TuningProblem | None:
    """A padding above the threshold would never end a preference. `prefer` limits it where the threshold is per domain."""
    if start.per_domain or padding <= start.number:
        return None
    allowed = f"at most the starting threshold, which is {start.number}"
    return TuningProblem(PADDING, annotations[PADDING], allowed, f"{start.number}")


def _start(text: str) -> StartingPoint | None:
    match = _START.fullmatch(text)
    return StartingPoint(int(match[1]), bool(match[2])) if match else None


def _count(text: str) -> int | None:
    return int(text) if _COUNT.fullmatch(text) else None


def _fraction(text: str) -> float | None:
    match = _FRACTION.fullmatch(text)
    if not match:
        return None
    fraction = float(match[1]) / (100 if match[2] else 1)
    return fraction if 0 < fraction <= _MOST_OVERLOAD else None


_PARSERS: Final[Mapping[str, tuple[str, Callable[[str], Any], str]]] = {
    ALGORITHM: ("algorithm", PREFER_ALGORITHMS.get, f"one of {', '.join(PREFER_ALGORITHMS)}"),
    STARTING_THRESHOLD: ("start", _start, "a number of endpoints such as 9, or of endpoints per zone such as 3x"),
    PADDING: ("padding", _count, "a number of endpoints such as 3"),
    OVERLOAD_THRESHOLD: ("overload", _fraction, "a share above 0% and up to 1000%, such as 50% or 0.5"),
}

TUNING_ANNOTATIONS: Final = tuple(_PARSERS)
