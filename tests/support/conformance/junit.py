"""JUnit reports of Kubernetes' end-to-end tests: which specs ran, and how each ended. Pure.

Ginkgo lists every spec of the suite. One that was not selected is `skipped` without a reason; one that skipped itself gives it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from xml.etree import ElementTree as ET

_SKIPPED: Final = "skipped - "


class SpecOutcome(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class SpecResult:
    name: str
    outcome: SpecOutcome
    seconds: float
    why: str = ""
    """The first line of the failure, or why it was skipped."""


def read(xml: str) -> list[SpecResult]:
    """The specs that ran or skipped themselves, in the report's order, and set-up of the whole suite that failed."""
    cases = ET.fromstring(xml).iter("testcase")
    return [result for case in cases for result in _result(case)]


def _result(case: ET.Element) -> Iterator[SpecResult]:
    kind, name = _split(case.get("name", ""))
    seconds = float(case.get("time", "0"))
    failure = next((case.find(tag) for tag in ("failure", "error") if case.find(tag) is not None), None)
    skipped = case.find("skipped")
    if failure is not None:
        yield SpecResult(name, SpecOutcome.FAILED, seconds, _first_line(failure))
    elif skipped is not None:
        if (why := skipped.get("message", "")).startswith(_SKIPPED):
            yield SpecResult(name, SpecOutcome.SKIPPED, seconds, why.removeprefix(_SKIPPED))
    elif kind == "It":
        yield SpecResult(name, SpecOutcome.PASSED, seconds)


def _split(title: str) -> tuple[str, str]:
    """`[It] [sig-network] DNS ...` is a spec; `[SynchronizedBeforeSuite]` is none."""
    kind, _, name = title.partition("] ")
    return kind.lstrip("["), name or title


def _first_line(failure: ET.Element) -> str:
    text = failure.get("message") or failure.text or ""
    lines = [line.strip() for line in text.splitlines()]
    return next((line for line in lines if line and not line.startswith("[FAILED]")), "")
