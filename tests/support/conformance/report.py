"""Results of a tier: its table and its section of docs/conformance.md. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from support.conformance.junit import SpecOutcome, SpecResult
from support.conformance.tiers import Tier

Json = dict[str, Any]
_HEAD: Final = "| set-up | specs | passed | failed | skipped | seconds | day |\n|---|---:|---:|---:|---:|---:|---|"


@dataclass(frozen=True, slots=True)
class SetupResult:
    """A run of a tier against one set-up. `seconds` is the suite's, without the start of the lab."""

    setup: str
    specs: Sequence[SpecResult]
    seconds: float
    day: str
    """On which it ran, as in ISO 8601."""

    def count(self, outcome: SpecOutcome) -> int:
        return Counter(spec.outcome for spec in self.specs)[outcome]

    @property
    def failures(self) -> list[SpecResult]:
        return [spec for spec in self.specs if spec.outcome is SpecOutcome.FAILED]


@dataclass(frozen=True, slots=True)
class Row:
    """What is shown of a run: its line of the table, and the names of failed specs."""

    setup: str
    line: str
    failed: Sequence[str]


_OfSetup = TypeVar("_OfSetup", SetupResult, Row)


def rows(results: Sequence[SetupResult]) -> list[Row]:
    return [Row(result.setup, _line(result), sorted(spec.name for spec in result.failures)) for result in results]


def _line(result: SetupResult) -> str:
    counts = " | ".join(str(result.count(outcome)) for outcome in SpecOutcome)
    return f"| {result.setup} | {len(result.specs)} | {counts} | {result.seconds:.0f} | {result.day} |"


def table(shown: Sequence[Row]) -> str:
    return "\n".join([_HEAD, *(row.line for row in shown)])


def failures(shown: Sequence[Row]) -> str:
    """Each failed spec once, with the set-ups in which it failed."""
    where: dict[str, list[str]] = {}
    for row in shown:
        for name in row.failed:
            where.setdefault(name, []).append(row.setup)
    return "\n".join(f"- {', '.join(setups)}: `{name}`" for name, setups in sorted(where.items()))


def document(tier: Tier, results: Sequence[SetupResult], facts: Mapping[str, str]) -> Json:
    return {
        "tier": tier.name,
        **facts,
        "setups": {
            result.setup: {
                "seconds": round(result.seconds, 1),
                "day": result.day,
                "specs": [asdict(spec) for spec in result.specs],
            }
            for result in results
        },
    }


def from_document(saved: Json) -> list[SetupResult]:
    return [
        SetupResult(
            name,
            [SpecResult(**{**spec, "outcome": SpecOutcome(spec["outcome"])}) for spec in run["specs"]],
            run["seconds"],
            run.get("day", ""),
        )
        for name, run in saved.get("setups", {}).items()
    ]


def merged(before: Sequence[_OfSetup], now: Sequence[_OfSetup], order: Sequence[str]) -> list[_OfSetup]:
    """What ran now replaces what ran before: a run of one set-up leaves the rows of the others."""
    known = {result.setup: result for result in (*before, *now)}
    return [known[setup] for setup in order if setup in known]


def section(tier: Tier, shown: Sequence[Row], facts: Mapping[str, str]) -> str:
    failed = failures(shown)
    about = ", ".join(facts.values())
    listed = f"\n\nFailed:\n\n{failed}" if failed else ""
    return f"`make e2e TIER={tier.name}`: {tier.what}. {about}.\n\n{table(shown)}{listed}"


def rows_of_page(page: str, tier: str, kubernetes: str) -> list[Row]:
    """The rows that this tier's section has, if it is of the same Kubernetes."""
    found = _pattern(tier).search(page)
    text = found["text"] if found else ""
    if kubernetes not in re.split(r", |\. |\.$", text.partition("\n")[0]):
        return []
    failed = re.findall(r"^- ([^:`]+): `(.+)`$", text, re.MULTILINE)
    return [
        Row(line[1], line[0], [name for setups, name in failed if line[1] in setups.split(", ")])
        for line in re.finditer(r"^\| ([\w-]+) \|(?: [\d-]* ?\|)+$", text, re.MULTILINE)
    ]


def replace_section(page: str, tier: str, text: str) -> str:
    """The page with this tier's section between its marks replaced, or added at the end."""
    begin, end = _marks(tier)
    new, pattern = f"{begin}\n{text}\n{end}", _pattern(tier)
    return pattern.sub(lambda _: new, page) if pattern.search(page) else f"{page.rstrip()}\n\n{new}\n"


def _pattern(tier: str) -> re.Pattern[str]:
    begin, end = map(re.escape, _marks(tier))
    return re.compile(f"{begin}\n(?P<text>.*?)\n?{end}", re.DOTALL)


def _marks(tier: str) -> tuple[str, str]:
    return f"<!-- e2e:{tier} -->", f"<!-- /e2e:{tier} -->"
