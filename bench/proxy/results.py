"""What was measured, as rows of the table."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from bench.proxy.contestants import OURS, PEER
from bench.proxy.groups import REPLACED, ZONES
from bench.proxy.syncs import Figures
from bench.report import Row

SYNC_GOALS = {1_000: 0.4, 10_000: 0.1}
OWN_GOALS = {"start s": 5.0}
GOALS = {
    "start CPU s": None,
    "change p50 ms": 0.05,
    "change p99 ms": 0.1,
    "CPU per change ms": 0.01,
    "resident memory MiB": 0.6,
    "peak memory MiB": 0.6,
}
EQUAL, FLAT, CHURN_GOAL, GROUPS_GOAL = 1.05, 1.15, 0.05, 0.1

NOTES = """\
Every Service has ten endpoints on other nodes. Both proxies serve all Services, each in a node of its own of the same lab, in equal namespaces, from the same API server; starts are in turn and from an empty kernel.
Start: until the kernel knows the Service that was written last. CPU counts the tools a proxy runs and everything until it is at rest. A change replaces one endpoint; its delay is from before the write until the
kernel tells of changed rules, and the next is written when that is done. Data path: connections one after the other, each to a Service at random, from a namespace with a pod's address through the node to a
namespace that has all endpoints' addresses, in turn; equal is taken to be within 5 %. Churn: changes at 50 a second with both proxies at once.
But for the churn, all that take part run at real-time priority, so that neighbours on the machine count less.
Slice groups: 100 Services with 20 endpoints in each of 30 zones; bytes are what the node's interface receives, TLS and all."""


@dataclass
class Found:
    """`syncs` by size and name; `connected` likewise, `churned` by name, `received` by whether there were groups."""

    syncs: dict[int, dict[str, list[Figures]]] = field(default_factory=dict)
    connected: dict[int, dict[str, Figures]] = field(default_factory=dict)
    churned: Figures = field(default_factory=dict)
    churn_seconds: float = 0.0
    churn_size: int = 0
    received: dict[str, Figures] = field(default_factory=dict)


def rows(found: Found) -> list[Row]:
    made = [row for size, by_name in found.syncs.items() for row in _sync_rows(size, by_name)]
    made += [row for size, by_name in found.connected.items() for row in _path_rows(size, by_name)]
    made += _flatness(found.connected)
    if found.churned:
        what = f"churn of 50 changes a second for {found.churn_seconds / 60:g} min, {found.churn_size:,} Services"
        ours, peer = found.churned[OURS], found.churned[PEER]
        made.append(Row(what, "CPU s", ours, peer, PEER, CHURN_GOAL))
    return made + _group_rows(found.received)


def _sync_rows(size: int, by_name: dict[str, list[Figures]]) -> list[Row]:
    made = []
    for figure, goal in {"start s": SYNC_GOALS.get(size), **GOALS}.items():
        middles = {name: _middle(runs, figure) for name, runs in by_name.items()}
        ours, peer = middles[OURS], middles.get(PEER)
        if ours is None:
            continue
        what, _, unit = figure.rpartition(" ")
        wanted = goal if peer is not None else OWN_GOALS.get(figure)
        runs = [{name: each.get(figure, 0.0)} for name, all_runs in by_name.items() for each in all_runs]
        made.append(Row(f"{what}, {size:,} Services", unit, ours, peer, PEER if peer is not None else "", wanted, runs))
    return made


def _middle(runs: list[Figures], figure: str) -> float | None:
    values = [each[figure] for each in runs if figure in each]
    return statistics.median(values) if values else None


def _path_rows(size: int, by_name: dict[str, Figures]) -> list[Row]:
    made = []
    for figure, ours in by_name[OURS].items():
        peer = by_name.get(PEER, {}).get(figure)
        goal = EQUAL if peer is not None else None
        unit = "us" if figure.endswith(" us") else "s"
        what = figure.removesuffix(" us").removeprefix("s per ")
        made.append(Row(f"{what}, {_services(size)}", unit, ours, peer, PEER if peer is not None else "", goal))
    return made


def _flatness(connected: dict[int, dict[str, Figures]]) -> list[Row]:
    """The largest against a single Service."""
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
