"""Benchmark results: a text table, JSON under build/bench, and a section of docs/benchmarks.md."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
BUILD: Final = ROOT / "build" / "bench"
DOCUMENT: Final = ROOT / "docs" / "benchmarks.md"


@dataclass(frozen=True)
class Row:
    """One comparison. `goal` is the maximum of the ratio ours/peer, or of our own figure without a peer."""

    what: str
    unit: str
    ours: float
    peer: float | None
    peer_name: str
    goal: float | None
    runs: list[dict[str, float]] = field(default_factory=list)

    @property
    def ratio(self) -> float | None:
        return self.ours / self.peer if self.peer else None

    @property
    def reached(self) -> bool | None:
        figure = self.ratio if self.ratio is not None else self.ours
        return None if self.goal is None else figure <= self.goal


def interleave(contestants: dict[str, Callable[[], float]], rounds: int) -> list[dict[str, float]]:
    """Run all of them once per round, in turn, so that noise affects all alike."""
    return [{name: measure() for name, measure in contestants.items()} for _ in range(rounds)]


def median(runs: Iterable[dict[str, float]], name: str) -> float:
    return statistics.median(run[name] for run in runs)


def measured(part: str, measure: Callable[[], list[Row]], *, rerun: bool) -> list[Row]:
    """A part's rows, measured and saved with `rerun`; otherwise those of the last run, if there are any."""
    saved = BUILD / "parts" / f"{part}.json"
    if rerun or not saved.exists():
        saved.parent.mkdir(parents=True, exist_ok=True)
        saved.write_text(json.dumps([asdict(row) for row in measure()]))
    return [Row(**row) for row in json.loads(saved.read_text())]


def show(rows: Sequence[Row]) -> None:
    """Print the rows of a trial run without saving them."""
    print(_table(rows))


def publish(name: str, command: str, rows: Sequence[Row], notes: str = "") -> None:
    table = _table(rows)
    print(table)
    target = BUILD / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "name": name,
        "machine": _machine(),
        "rows": [asdict(row) | {"ratio": row.ratio} for row in rows],
    }
    target.write_text(json.dumps(document, indent=2) + "\n")
    _write_section(name, f"`{command}` on {_machine()}.\n\n{table}\n\n{notes}".rstrip())


def _machine() -> str:
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, Linux {platform.release().split('-')[0]}, Python {platform.python_version()}"


def _table(rows: Sequence[Row]) -> str:
    head = "| what | unit | ours | peer | | ratio | goal | |\n|---|---|---:|---:|---|---:|---:|---|"
    return "\n".join([head, *(_line(row) for row in rows)])


def _line(row: Row) -> str:
    peer = _figure(row.peer)
    ratio = "" if row.ratio is None else _figure(row.ratio)
    goal = "" if row.goal is None else f"<= {row.goal:g}"
    mark = {True: "reached", False: "**missed**", None: ""}[row.reached]
    return f"| {row.what} | {row.unit} | {_figure(row.ours)} | {peer} | {row.peer_name} | {ratio} | {goal} | {mark} |"


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _write_section(name: str, text: str) -> None:
    """Replace this comparison's section of the page."""
    begin, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    page = DOCUMENT.read_text() if DOCUMENT.exists() else "# Benchmarks\n"
    section = f"{begin}\n{text}\n{end}"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    page = (
        pattern.sub(lambda _: section, page) if pattern.search(page) else f"{page.rstrip()}\n\n## {name}\n\n{section}\n"
    )
    DOCUMENT.write_text(page)
