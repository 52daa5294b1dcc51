"""Results as text tables, CSV and JSON. Pure: results in, text out."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Final

import msgspec

from zonewise.simulator.decide.churn import Churn
from zonewise.simulator.decide.published import COLUMNS, agrees, verdict
from zonewise.simulator.decide.results import AlgorithmResult, JudgedInput, Results, ResultTable

MAX_JUDGED_ROWS: Final = 40
TITLES: Final = {"total": "total", "in_zone": "in-zone", "overload": "overload", "slices": "slices"}


def text(results: Results) -> str:
    return "\n\n".join(_section(table) for table in results.tables) + "\n"


def _section(table: ResultTable) -> str:
    lines = [f"{table.dataset}: {table.inputs:,} inputs. {table.about}".rstrip(" .") + ".", "", *_scores(table)]
    if table.upper_bound is not None:
        lines.append(f"{'upper bound':<16}{table.upper_bound:8.2f}   no assignment of any kind exceeds it")
    if sentence := verdict(table):
        lines += ["", sentence]
    if table.judged:
        lines += ["", *_judged(table.judged)]
    return "\n".join(lines)


def _scores(table: ResultTable) -> list[str]:
    published = [column for column in COLUMNS if any(agrees(row, column) is not None for row in table.rows)]
    invalid = any(row.invalid for row in table.rows)
    head = ["algorithm"]
    for column in COLUMNS:
        head += [TITLES[column], "publ."] if column in published else [TITLES[column]]
    head += ["invalid", "CPU s"] if invalid else ["CPU s"]
    return aligned([head, *(_line(row, published, invalid=invalid) for row in table.rows)])


def _line(row: AlgorithmResult, published: Sequence[str], *, invalid: bool) -> list[str]:
    cells = [row.algorithm]
    for column in COLUMNS:
        cells.append(f"{getattr(row, column):.2f}")
        if column in published:
            printed: float | None = getattr(row.published, column, None)
            mark = "*" if agrees(row, column) is False else " "
            cells.append("" if printed is None else f"{printed:.2f}{mark}")
    return [*cells, *([f"{row.invalid:,}"] if invalid else []), f"{row.cpu_seconds:.1f}"]


def _judged(judged: Sequence[JudgedInput]) -> list[str]:
    names = list(judged[0].totals)
    rows = [["input", "nodes", "endpoints", *names, "best"]]
    for item in judged[:MAX_JUDGED_ROWS]:
        valid = {name: total for name, total in item.totals.items() if total is not None}
        totals = [f"{valid[name]:.2f}" if name in valid else "-" for name in names]
        best = max(valid, key=valid.__getitem__, default="-")
        rows.append([item.name, _counts(item.nodes), _counts(item.endpoints), *totals, best])
    more = len(judged) - MAX_JUDGED_ROWS
    return aligned(rows) + ([f"and {more:,} more; -o json and -o csv have them all"] if more > 0 else [])


def _counts(counts: Sequence[int]) -> str:
    return " ".join(map(str, counts))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align the first column left, the others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]


def churn_text(churns: Sequence[Churn]) -> str:
    head = ["trace", "algorithm", "rebalance", "slices written", "moved", "flips", "in zone", "worst overload"]
    rows = [
        [
            churn.trace,
            churn.algorithm.value,
            churn.way.value,
            str(churn.slices_written),
            str(churn.endpoints_moved),
            str(churn.flips),
            f"{churn.in_zone:.1%}",
            f"{churn.worst_overload:.1%}",
        ]
        for churn in churns
    ]
    return "\n".join(aligned([head, *rows])) + "\n"


def as_json(results: Results) -> str:
    return msgspec.json.format(msgspec.json.encode(results), indent=2).decode() + "\n"


def as_csv(results: Results) -> str:
    """One line per algorithm and data set; one per input and algorithm for a user's own inputs."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n").writerow
    if any(table.judged for table in results.tables):
        write(["input", "nodes", "endpoints", "algorithm", "total"])
        for item in (judged for table in results.tables for judged in table.judged):
            for name, total in item.totals.items():
                write([item.name, _counts(item.nodes), _counts(item.endpoints), name, "" if total is None else total])
        return out.getvalue()
    write(
        [
            "dataset",
            "inputs",
            "algorithm",
            *COLUMNS,
            *(f"published_{name}" for name in COLUMNS),
            "invalid",
            "cpu_seconds",
        ]
    )
    for table in results.tables:
        for row in table.rows:
            obtained = [getattr(row, column) for column in COLUMNS]
            printed = [getattr(row.published, column, None) for column in COLUMNS]
            write([table.dataset, table.inputs, row.algorithm, *obtained, *printed, row.invalid, row.cpu_seconds])
    return out.getvalue()


def churn_csv(churns: Sequence[Churn]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(Churn.__struct_fields__)
    writer.writerows(map(msgspec.structs.astuple, churns))
    return out.getvalue()
