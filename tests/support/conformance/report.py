"""Results of a tier: its table and its section of docs/conformance.md. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from support.conformance.junit import SpecOutcome, SpecResult
from support.conformance.tiers import Tier

Json = dict[str, Any]
_HEAD: Final = "| set-up | specs | passed | failed | skipped | seconds |\n|---|---:|---:|---:|---:|---:|"


@dataclass(frozen=True, slots=True)
class SetupResult:
    """A run of a tier against one set-up. `seconds` is the suite's, without the start of the lab."""

    setup: str
    specs: Sequence[SpecResult]
    seconds: float

    def count(self, outcome: SpecOutcome) -> int:
        return Counter(spec.outcome for spec in self.specs)[outcome]

    @property
    def failures(self) -> list[SpecResult]:
        return [spec for spec in self.specs if spec.outcome is SpecOutcome.FAILED]


def table(results: Sequence[SetupResult]) -> str:
    return "\n".join([_HEAD, *map(_row, results)])


def _row(result: SetupResult) -> str:
    counts = " | ".join(str(result.count(outcome)) for outcome in SpecOutcome)
    return f"| {result.setup} | {len(result.specs)} | {counts} | {result.seconds:.0f} |"


def failures(results: Sequence[SetupResult]) -> str:
    """Each failed spec once, with the set-ups in which it failed."""
    where: dict[str, list[str]] = {}
    for result in results:
        for spec in result.failures:
            where.setdefault(spec.name, []).append(result.setup)
    return "\n".join(f"- {', '.join(setups)}: `{name}`" for name, setups in sorted(where.items()))


def document(tier: Tier, results: Sequence[SetupResult], facts: Mapping[str, str]) -> Json:
    return {
        "tier": tier.name,
        **facts,
        "setups": {
            result.setup: {"seconds": round(result.seconds, 1), "specs": [asdict(spec) for spec in result.specs]}
            for result in results
        },
    }


def from_document(saved: Json) -> list[SetupResult]:
    return [
        SetupResult(
            name,
            [SpecResult(**{**spec, "outcome": SpecOutcome(spec["outcome"])}) for spec in run["specs"]],
            run["seconds"],
        )
        for name, run in saved.get("setups", {}).items()
    ]


def merged(before: Sequence[SetupResult], now: Sequence[SetupResult], order: Sequence[str]) -> list[SetupResult]:
    """What ran now replaces what ran before: a run of one set-up leaves the rows of the others."""
    known = {result.setup: result for result in (*before, *now)}
    return [known[setup] for setup in order if setup in known]


def section(tier: Tier, results: Sequence[SetupResult], facts: Mapping[str, str]) -> str:
    failed = failures(results)
    about = ", ".join(facts.values())
    listed = f"\n\nFailed:\n\n{failed}" if failed else ""
    return f"`make e2e TIER={tier.name}`: {tier.what}. {about}.\n\n{table(results)}{listed}"


def replace_section(page: str, tier: str, text: str) -> str:
    """The page with this tier's section between its marks replaced, or added at the end."""
    begin, end = f"<!-- e2e:{tier} -->", f"<!-- /e2e:{tier} -->"
    new = f"{begin}\n{text}\n{end}"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: new, page) if pattern.search(page) else f"{page.rstrip()}\n\n{new}\n"
