"""Rows of the proxy benchmark's table."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Final

from bench.proxy.contestants import OURS, PEER
from bench.proxy.groups import REPLACED, ZONES
from bench.proxy.syncs import Figures
from bench.report import Row

SYNC_GOALS: Final = {1_000: 0.4, 10_000: 0.1}
OWN_GOALS: Final = {"start s": 5.0}
GOALS: Final = {
    "start CPU s": None,
    "change p50 ms": 0.05,
    "change p99 ms": 0.1,
    "CPU per change ms": 0.01,
    "resident memory MiB": 0.6,
    "peak memory MiB": 0.6,
}
EQUAL, FLAT, CHURN_GOAL, GROUPS_GOAL = 1.05, 1.15, 0.05, 0.1

NOTES: Final = """\
Every Service has ten endpoints on other nodes.
Both proxies serve all Services, each in its own node of the same lab, in equal namespaces, from the same API server; starts are in turn and from an empty kernel.
Start: until the kernel has the Service that was written last.
CPU counts the tools that a proxy runs, and everything until it is idle.
A change replaces one endpoint; its delay is from before the write until the kernel reports changed rules, and the next is written after that.
Data path: connections one after the other, each to a random Service, from a namespace with a pod's address through the node to a namespace that has all endpoints' addresses, in turn; equal means within 5 %.
Churn: changes at 50 a second with both proxies at once.
Except for the churn, all participants run at real-time priority, so that other work on the machine counts less.
Slice groups: 100 Services with 20 endpoints in each of 30 zones; bytes are what the node's interface receives, TLS included."""


@dataclass
class BenchResults:
    """`syncs` and `connected` by size and proxy, `churned` by proxy, `received` with and without groups."""

    syncs: dict[int, dict[str, list[Figures]]] = field(default_factory=dict)
    connected: dict[int, dict[str, Figures]] = field(default_factory=dict)
    churned: Figures = field(default_factory=dict)
    churn_seconds: float = 0.0
    churn_size: int = 0
    received: dict[str, Figures] = field(default_factory=dict)


def rows(results: BenchResults) -> list[Row]:
    table_rows = [row for size, by_name in results.syncs.items() for row in _sync_rows(size, by_name)]
    table_rows += [row for size, by_name in results.connected.items() for row in _path_rows(size, by_name)]
    table_rows += _flatness(results.connected)
    if results.churned:
        what = f"churn of 50 changes a second for {results.churn_seconds / 60:g} min, {results.churn_size:,} Services"
        ours, peer = results.churned[OURS], results.churned[PEER]
        table_rows.append(Row(what, "CPU s", ours, peer, PEER, CHURN_GOAL))
    return table_rows + _group_rows(results.received)


def _sync_rows(size: int, by_name: dict[str, list[Figures]]) -> list[Row]:
    table_rows = []
    for figure, goal in {"start s": SYNC_GOALS.get(size), **GOALS}.items():
        medians = {name: _median(runs, figure) for name, runs in by_name.items()}
        ours, peer = medians[OURS], medians.get(PEER)
        if ours is None:
            continue
        what, _, unit = figure.rpartition(" ")
        row_goal = goal if peer is not None else OWN_GOALS.get(figure)
        runs = [{name: run.get(figure, 0.0)} for name, proxy_runs in by_name.items() for run in proxy_runs]
        table_rows.append(
            Row(f"{what}, {size:,} Services", unit, ours, peer, PEER if peer is not None else "", row_goal, runs)
        )
    return table_rows


def _median(runs: list[Figures], figure: str) -> float | None:
    values = [run[figure] for run in runs if figure in run]
    return statistics.median(values) if values else None


def _path_rows(size: int, by_name: dict[str, Figures]) -> list[Row]:
    table_rows = []
    for figure, ours in by_name[OURS].items():
        peer = by_name.get(PEER, {}).get(figure)
        goal = EQUAL if peer is not None else None
        unit = "us" if figure.endswith(" us") else "s"
        what = figure.removesuffix(" us").removeprefix("s per ")
        table_rows.append(Row(f"{what}, {_services(size)}", unit, ours, peer, PEER if peer is not None else "", goal))
    return table_rows


def _flatness(connected: dict[int, dict[str, Figures]]) -> list[Row]:
    """The largest size compared to a single Service."""
    if len(connected) < 2:
        return []
    least, most = min(connected), max(connected)
    figure = "connect p50 us"
    what = f"connect p50, {_services(most)} against {_services(least)}"
    return [Row(what, "us", connected[most][OURS][figure], connected[least][OURS][figure], _services(least), FLAT)]


def _services(size: int) -> str:
    return f"{size:,} Service{'s' * (size != 1)}"


def _group_rows(received: dict[str, Figures]) -> list[Row]:
    what = {
        "start": f"received at the start, slice groups of {ZONES} zones",
        "replaced": f"received while {REPLACED} endpoints of each zone and Service are replaced",
    }
    if not received:
        return []
    grouped, plain = received["groups"], received["no groups"]
    return [
        Row(text, "KiB", grouped[key] / 1024, plain[key] / 1024, "without groups", GROUPS_GOAL)
        for key, text in what.items()
    ]
