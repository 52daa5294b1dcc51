"""`make bench-disruption`: rolling updates, evictions and counts under budgets per zone, beside stock.

python -m bench.disruption 99 evictions measures these parts anew and keeps what the others were.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial

import uvloop

from bench.disruption import evictions, rollouts
from bench.disruption.cluster import Cluster, cluster, zonewise
from bench.disruption.recount import recount
from bench.disruption.rollouts import Figures, lower_bound, say
from bench.report import BUILD, Row, measured, median, publish
from zonewise.lab.controlplane.programs import Program

SIZES = (99, 999)
WEBHOOKS = 3
ROUNDS = 3
PACES = (200, 50)
SERVER = "API server"
BARE = "without the guard"
STOCK = "PodDisruptionBudget and kubectl rollout restart"

NOTES = """\
Rolling updates: pods over 60 kwok nodes in three zones, ready as soon as they are scheduled; `kubectl rollout restart`, one pod per zone at a time. Calls are counted from the API server's audit log: all writes of our
leader and webhooks in the namespace, events included, over the lower bound of one request per pod, one status write per wave, and two. The peer is a Deployment with maxSurge 0 and maxUnavailable 3, and a
PodDisruptionBudget with maxUnavailable 3: its rollout does not ask the budget and does not know of zones. Its writes are deletes of pods and updates of ReplicaSets and events by the two controllers that do the rollout.
The fewest pods that ever served in one zone are seen by a watcher at every pod event.
Evictions: for five seconds, in turn with the guard and without it, on an etcd and an API server of their own, beside which only the leader and three webhooks behind one address run: no controllers, kubelets or audit log. The
client sends bytes made beforehand at an even pace. The pods are ready because the bench says so, and stay behind terminating. With the guard each eviction is charged to its budget by a write; without it there are no budgets
either, since the leader writes of every pod that leaves unannounced. What is added at p99 is the difference of the two p99s. Who is told to come again asks a tenth
of a second later, and its time runs on: where many are, the p99 is that of waiting, not of an answer. Where the p99 without the guard is far above 10 ms, the machine does not bear that rate at all, and
the difference says how much more it lacks; the CPU an eviction costs hangs less on that, and 50 a second show what is added where there is room. All programs share the cores with the server and the client.
The count is the leader's CPU time for one budget from nothing, with 30 charges."""


async def roll(made: Cluster, pods: int) -> dict[str, Figures]:
    found: dict[str, Figures] = {}
    for name, act in (
        ("StatefulSet", rollouts.ours_stateful),
        ("Deployment", rollouts.ours_deployment),
        ("stock", rollouts.stock),
    ):
        figures = found[name] = await act(made, pods)
        say(f"{pods} pods, {name}: {figures.writes} writes, {figures.seconds:.1f} s, {dict(figures.calls)}")
    return found


async def stream(made: Cluster, ours: dict[str, int], budgets: int, per_second: int) -> list[dict[str, float]]:
    """With and without the guard, in turn."""
    server = {SERVER: made.plane.process(Program.APISERVER).pid, "etcd": made.plane.process(Program.ETCD).pid}
    runs = []
    for number in range(ROUNDS):
        name = f"{budgets}x{per_second}x{number}"
        guarded = await evictions.stream(made, budgets, per_second, f"g{name}", server | ours, budgets=True)
        configuration = await evictions.unguarded(made)
        bare = await evictions.stream(made, budgets, per_second, f"u{name}", server | ours, budgets=False)
        await evictions.guarded(made, configuration)
        cpu, bare_cpu = ({"cpu of " + who: ms for who, ms in taken.cpu.items()} for taken in (guarded, bare))
        asked = sum(ms for who, ms in guarded.cpu.items() if who == SERVER or who.startswith("webhook"))
        again = {"again": guarded.again, "bare again": bare.again}
        runs.append(
            {"ours": guarded.p99, "bare": bare.p99, "cpu": asked, "bare cpu": bare.cpu[SERVER]}
            | again
            | cpu
            | {f"bare {what}": ms for what, ms in bare_cpu.items()}
        )
        told = ", ".join(f"{what} {figure:.1f}" for what, figure in runs[-1].items())
        say(f"{budgets} budgets, {per_second} a second: {told} (ms; again: answers)")
    return runs


def _rows_of(pods: int, figures: dict[str, Figures]) -> list[Row]:
    stock, share = figures["stock"], pods // 3
    bound = lower_bound(pods)
    rows = []
    for name in ("StatefulSet", "Deployment"):
        what, mine = f"rolling update of {pods} pods of a {name}", figures[name]
        rows += [
            Row(f"{what}: writes over the lower bound {bound}", "ratio", mine.writes / bound, None, "", 1.05),
            Row(f"{what}: refusals of our own making", "429s", mine.refused, None, "", 0),
            Row(f"{what}: most away in a zone at once", "pods", share - mine.lowest_in_a_zone, None, "", 1),
            Row(f"{what}: time", "s", mine.seconds, stock.seconds, STOCK, None),
        ]
    return [
        *rows,
        Row(
            f"rolling update of {pods} pods: writes", "writes", figures["StatefulSet"].writes, stock.writes, STOCK, None
        ),
        Row(
            f"rolling update of {pods} pods: most away in a zone at once",
            "pods",
            share - figures["StatefulSet"].lowest_in_a_zone,
            share - stock.lowest_in_a_zone,
            STOCK,
            None,
        ),
    ]


def eviction_row(what: str, runs: list[dict[str, float]], goal: float | None) -> Row:
    added = [run | {"added": run["ours"] - run["bare"]} for run in runs]
    return Row(what, "ms", median(added, "added"), None, "", goal, added)


def p99_row(what: str, runs: list[dict[str, float]]) -> Row:
    return Row(what, "ms", median(runs, "ours"), median(runs, "bare"), BARE, None, runs)


def cpu_row(what: str, runs: list[dict[str, float]]) -> Row:
    return Row(what, "ms CPU", median(runs, "cpu"), median(runs, "bare cpu"), BARE, None, runs)


def again_row(what: str, runs: list[dict[str, float]]) -> Row:
    """None of them is refused by its budget: who is told so came while others charged it, or to an overloaded server."""
    return Row(what, "answers", median(runs, "again"), median(runs, "bare again"), BARE, None, runs)


def rollout_rows(pods: int) -> list[Row]:
    async def measure() -> dict[str, Figures]:
        async with cluster() as made:
            with zonewise(made, WEBHOOKS):
                return await roll(made, pods)

    return _rows_of(pods, asyncio.run(measure()))


def eviction_rows() -> list[Row]:
    async def measure() -> dict[tuple[int, int], list[dict[str, float]]]:
        async with cluster(evictions.PROGRAMS) as made:
            with zonewise(made, WEBHOOKS) as ours:
                await evictions.prepare(made)
                return {(each, pace): await stream(made, ours, each, pace) for pace in PACES for each in (20, 1)}

    found = uvloop.run(measure())
    rows = []
    for pace in PACES:
        many, one = found[20, pace], found[1, pace]
        goal = 10 if pace == PACES[0] else None
        rows += [
            eviction_row(f"added to an eviction at p99, {pace} a second, 20 budgets, 3 webhooks", many, goal),
            eviction_row("the same, all of one budget", one, goal),
            p99_row(f"an eviction at p99, {pace} a second, 20 budgets", many),
            p99_row("the same, all of one budget", one),
            cpu_row(f"an eviction, {pace} a second: API server and webhooks, 20 budgets", many),
            cpu_row("the same, all of one budget", one),
            again_row(f"told to come again, {pace * evictions.SECONDS} evictions, {pace} a second, 20 budgets", many),
            again_row("the same, all of one budget", one),
        ]
    return rows


def count_rows() -> list[Row]:
    return [Row("count of 10,000 pods", "ms CPU", recount(10_000), None, "", 100)]


PARTS: dict[str, Callable[[], list[Row]]] = {
    **{str(pods): partial(rollout_rows, pods) for pods in SIZES},
    "evictions": eviction_rows,
    "count": count_rows,
}


def main(*wanted: str) -> None:
    """Rows of parts that were never measured are left out where only some are wanted."""
    chosen = wanted or tuple(PARTS)
    rows = [
        row
        for part, measure in PARTS.items()
        if part in chosen or is_kept(f"disruption-{part}")
        for row in measured(f"disruption-{part}", measure, anew=part in chosen)
    ]
    publish("disruption", "make bench-disruption", rows, NOTES)


def is_kept(part: str) -> bool:
    return (BUILD / "parts" / f"{part}.json").exists()


if __name__ == "__main__":
    main(*sys.argv[1:])
