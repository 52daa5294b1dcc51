"""How a Service tunes its preference: which algorithm, when it starts, how much overload it takes.

Read by `policy`; used by `prefer` and `hints`. Every value has a default, and a bad one means the default.
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
    if algorithm not in {Algorithm.BALANCED, Algorithm.REQUIRE}  # those are said by the annotation itself
}

_COUNT: Final = re.compile(r"[0-9]{1,9}")
_START: Final = re.compile(r"([0-9]{1,9})(x?)")
_FRACTION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(%?)")
_MOST_OVERLOAD: Final = 10.0


class StartingPoint(NamedTuple):
    """From how many endpoints on a preference is worth it: a number, or so many times the number of domains."""

    number: int
    per_domain: bool

    def at(self, domains: int) -> int:
        return self.number * domains if self.per_domain else self.number


DEFAULT_START: Final = StartingPoint(3, per_domain=True)


@dataclass(frozen=True, slots=True)
class Tuning:
    """`overload` is None where the Service does not say: the rule in force has its own default."""

    algorithm: Algorithm = Algorithm.LOCAL
    start: StartingPoint = DEFAULT_START
    padding: int = 3
    overload: float | None = None


class TuningProblem(NamedTuple):
    annotation: str
    value: str
    allowed: str


def read_tuning(annotations: Mapping[str, str]) -> tuple[Tuning, tuple[TuningProblem, ...]]:
    read: dict[str, Any] = {}
    problems = []
    for annotation, (name, parse, allowed) in _PARSERS.items():
        if (text := annotations.get(annotation)) is None:
            continue
        value = parse(text)
        if value is None:
            problems.append(TuningProblem(annotation, text, allowed))
        else:
            read[name] = value
    if problem := _too_much_padding(annotations, read.get("start", DEFAULT_START), read.get("padding", 0)):
        problems.append(problem)
        del read["padding"]
    return Tuning(**read), tuple(problems)


def _too_much_padding(annotations: Mapping[str, str], start: StartingPoint, padding: int) -> TuningProblem | None:
    """More than the threshold itself would never let a preference end; per domain nobody knows it before deciding."""
    if start.per_domain or padding <= start.number:
        return None
    return TuningProblem(PADDING, annotations[PADDING], f"at most the starting threshold, which is {start.number}")


def _start(text: str) -> StartingPoint | None:
    written = _START.fullmatch(text)
    return StartingPoint(int(written[1]), bool(written[2])) if written else None


def _count(text: str) -> int | None:
    return int(text) if _COUNT.fullmatch(text) else None


def _fraction(text: str) -> float | None:
    written = _FRACTION.fullmatch(text)
    if not written:
        return None
    fraction = float(written[1]) / (100 if written[2] else 1)
    return fraction if 0 < fraction <= _MOST_OVERLOAD else None


_PARSERS: Final[Mapping[str, tuple[str, Callable[[str], Any], str]]] = {
    ALGORITHM: ("algorithm", PREFER_ALGORITHMS.get, f"one of {', '.join(PREFER_ALGORITHMS)}"),
    STARTING_THRESHOLD: ("start", _start, "a number of endpoints such as 9, or of endpoints per zone such as 3x"),
    PADDING: ("padding", _count, "a number of endpoints such as 3"),
    OVERLOAD_THRESHOLD: ("overload", _fraction, "a share above 0% and up to 1000%, such as 50% or 0.5"),
}

TUNING_ANNOTATIONS: Final = tuple(_PARSERS)
