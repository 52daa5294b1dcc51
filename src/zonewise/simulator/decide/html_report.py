"""HTML report of a comparison: one file without scripts or external resources. Pure: results in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from zonewise.simulator.decide import plots
from zonewise.simulator.decide.churn import Churn
from zonewise.simulator.decide.published import COLUMNS, agrees
from zonewise.simulator.decide.results import AlgorithmResult, Loss, Results, ResultTable


def html(results: Results, churn: Sequence[Churn] = ()) -> str:
    sections = "".join(_section(table) for table in results.tables) + _churn(churn)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Zonewise: algorithms compared</title><style>{STYLE}</style></head><body><main>"
        f"<h1>Algorithms compared</h1><p>{ABOUT}</p>{sections}</main></body></html>\n"
    )


ABOUT: Final = (
    "Scores are from 0 to 100, higher is better: in-zone is the share of traffic that stays in its zone, overload "
    "falls with the worst and the mean deviation from an even load, slices with the EndpointSlices needed."
)


def _section(table: ResultTable) -> str:
    return (
        f"<section><h2>{escape(table.dataset)} <small>{table.inputs:,} inputs</small></h2><p>{escape(table.about)}</p>"
        f"{_scores(table.rows)}<div class=plots>"
        f"<figure>{plots.totals(table.rows)}<figcaption>Mean total scores</figcaption></figure>"
        f"<figure>{plots.in_zone_against_overload(table.rows)}<figcaption>More local is up, more even is right</figcaption></figure>"
        f"<figure>{plots.score_distribution(table.rows)}<figcaption>How scores are distributed over the inputs</figcaption></figure>"
        f"{_worst(table.rows)}"
        f"</div>{_losses(table.rows)}</section>"
    )


def _worst(rows: Sequence[AlgorithmResult]) -> str:
    if not any(row.losses for row in rows):
        return ""
    return f"<figure>{plots.worst_losses(rows)}<figcaption>Where each algorithm loses most</figcaption></figure>"


def _scores(rows: Sequence[AlgorithmResult]) -> str:
    body = "".join(
        f"<tr><th scope=row>{escape(row.algorithm)}</th>{''.join(_cell(row, column) for column in COLUMNS)}"
        f"<td>{row.invalid or ''}</td><td>{row.cpu_seconds:.1f}</td></tr>"
        for row in rows
    )
    head = "".join(
        f"<th scope=col>{name}</th>"
        for name in ("algorithm", "total", "in-zone", "overload", "slices", "invalid", "CPU s")
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(row: AlgorithmResult, column: str) -> str:
    value: float = getattr(row, column)
    if agrees(row, column) is not False:
        return f"<td>{value:.2f}</td>"
    published: float = getattr(row.published, column)
    return f'<td>{value:.2f} <span class=differs title="published: {published:.2f}">({published:.2f})</span></td>'


def _losses(rows: Sequence[AlgorithmResult]) -> str:
    lines = [
        f"<tr><th scope=row>{escape(row.algorithm)}</th><td>{_counts(loss)}</td><td>{loss.total:.1f}</td>"
        f"<td>{loss.best:.1f} <small>{escape(loss.best_algorithm)}</small></td></tr>"
        for row in rows
        for loss in row.losses
    ]
    if not lines:
        return ""
    head = "<th scope=col>algorithm</th><th scope=col>nodes / endpoints</th><th scope=col>total</th><th scope=col>best</th>"
    return f"<details><summary>Where each algorithm loses most</summary><table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></details>"


def _counts(loss: Loss) -> str:
    return f"{' '.join(map(str, loss.nodes))} / {' '.join(map(str, loss.endpoints))}"


def _churn(churns: Sequence[Churn]) -> str:
    if not churns:
        return ""
    lines = "".join(
        f"<tr><th scope=row>{escape(churn.trace)}</th><td>{churn.algorithm}</td><td>{churn.way}</td><td>{churn.slices_written}</td>"
        f"<td>{churn.endpoints_moved}</td><td>{churn.flips}</td><td>{churn.in_zone:.0%}</td><td>{churn.worst_overload:.0%}</td></tr>"
        for churn in churns
    )
    names = (
        "trace",
        "algorithm",
        "rebalance",
        "slices written",
        "endpoints moved",
        "flips",
        "in zone",
        "worst overload",
    )
    head = "".join(f"<th scope=col>{name}</th>" for name in names)
    return f"<section><h2>Churn</h2><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></section>"


STYLE: Final = (
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:0}main{max-width:72rem;margin:auto;padding:1.5rem}"
    "table{border-collapse:collapse;font-variant-numeric:tabular-nums}th,td{padding:.25rem .75rem;text-align:right;border-bottom:1px solid #8884}"
    "th[scope=row]{text-align:left}.plots{display:grid;grid-template-columns:repeat(auto-fit,minmax(20rem,1fr));gap:1rem}"
    "figure{margin:1rem 0}figcaption,small,.differs{opacity:.7}svg{width:100%;height:auto}section{margin:2rem 0}summary{cursor:pointer}"
)
