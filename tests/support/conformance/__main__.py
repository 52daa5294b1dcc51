"""`make e2e TIER=conformance`: Kubernetes' own end-to-end tests against labs, Zonewise beside stock.

`python -m support.conformance TIER [--setup NAME]` builds what it needs, then starts a lab per set-up, runs the tier in it and
ends it. The table goes to the terminal, to build/e2e/TIER.json and to docs/conformance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from support.conformance import lab_run, report, setups, tiers
from support.conformance.lab_run import LabRun, RunInputs
from support.conformance.report import SetupResult
from support.conformance.setups import Setup
from support.conformance.tiers import Tier
from zonewise.errors import ZonewiseError
from zonewise.lab.build.binaries import DEFAULT_VERSION
from zonewise.lab.progress import ProgressReporter

ROOT = Path(__file__).resolve().parents[3]
BUILD = ROOT / "build" / "e2e"
PAGE = ROOT / "docs" / "conformance.md"


def main() -> int:
    arguments = _arguments()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    reporter = ProgressReporter(sys.stderr)
    try:
        return run(arguments, reporter)
    except ZonewiseError as error:
        reporter.close()
        sys.exit(f"e2e: {error}")
    except KeyboardInterrupt:
        reporter.close()
        sys.exit("e2e: interrupted")


def run(arguments: argparse.Namespace, reporter: ProgressReporter) -> int:
    tier = tiers.choose(arguments.tier)
    chosen = setups.choose(arguments.setup, tier.setups)
    inputs = RunInputs.ensure(reporter, tier, chosen)
    if arguments.build_only:
        return 0
    results = []
    for setup in chosen:
        lab = LabRun(f"{arguments.name}-{setup}", tier, setup, inputs, BUILD / tier.name / setup, keep=arguments.keep)
        results.append(lab.execute(reporter, arguments.focus))
        if not arguments.focus:
            publish(tier, results)
    reporter.close()
    rows = report.rows(results)
    print(report.table(rows), report.failures(rows), sep="\n\n")
    return 1 if any(result.failures for result in results) else 0


def publish(tier: Tier, results: Sequence[SetupResult]) -> None:
    """After each set-up, so that a later one can't lose it. Rows of set-ups that did not run stay, if of the same Kubernetes."""
    facts = {"kubernetes": f"Kubernetes {DEFAULT_VERSION}", "machine": f"{os.cpu_count()} cores"}
    _save(BUILD / f"{tier.name}.json", tier, results, facts)
    _show(tier, results, facts)


def _save(target: Path, tier: Tier, results: Sequence[SetupResult], facts: Mapping[str, str]) -> None:
    saved = json.loads(target.read_text()) if target.exists() else {}
    before = report.from_document(saved) if saved.get("kubernetes") == facts["kubernetes"] else []
    known = report.merged(before, results, list(Setup))
    target.write_text(json.dumps(report.document(tier, known, facts), indent=1) + "\n")


def _show(tier: Tier, results: Sequence[SetupResult], facts: Mapping[str, str]) -> None:
    """Rows stay from the page itself: a fresh clone has no other results."""
    page = PAGE.read_text()
    before = report.rows_of_page(page, tier.name, facts["kubernetes"])
    shown = report.merged(before, report.rows(results), list(Setup))
    PAGE.write_text(report.replace_section(page, tier.name, report.section(tier, shown, facts)))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m support.conformance", description=__doc__)
    parser.add_argument("tier", help=f"one of {', '.join(tiers.TIERS)}")
    parser.add_argument("--setup", default="", help=f"one of {', '.join(Setup)} (default: all, one after the other)")
    name = lab_run.default_name(ROOT)
    parser.add_argument("--name", default=name, help="how the names of its labs begin (default here: %(default)s)")
    parser.add_argument("--focus", default="", help="a regular expression: run these specs only, publish nothing")
    parser.add_argument("--build-only", action="store_true", help="build what the tier needs, and run nothing")
    parser.add_argument("--keep", action="store_true", help="leave the lab running, to look into it")
    return parser.parse_args()


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
