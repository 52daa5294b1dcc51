"""`make bench-disruption`: rolling updates, evictions and counts with budgets per zone, compared to stock Kubernetes.

`python -m bench.disruption 99 evictions` runs these parts and keeps the last results of the others.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import Final

import uvloop

from bench.disruption import evictions, rollout
from bench.disruption.cluster import Cluster, start_cluster, zonewise
from bench.disruption.recount import recount
from bench.disruption.rollout import Figures, log_progress, lower_bound
from bench.report import BUILD, Row, measured, median, publish
from zonewise.lab.controlplane.programs import Program

SIZES: Final = (99, 999)
WEBHOOKS: Final = 3
ROUNDS: Final = 3
PACES: Final = (200, 50)
SERVER: Final = "API server"
BARE: Final = "without the guard"
STOCK: Final = "PodDisruptionBudget and kubectl rollout restart"

NOTES: Final = """\
Rolling updates: pods over 60 kwok nodes in three zones, ready as soon as they are scheduled; `kubectl rollout restart`, one pod per zone at a time.
Calls are counted from the API server's audit log: all writes of our leader and webhooks in the namespace, events included, over the lower bound of one request per pod, one status write per wave, and two.
The peer is a Deployment with maxSurge 0 and maxUnavailable 3, and a PodDisruptionBudget with maxUnavailable 3: its rollout does not consult the budget and does not know zones.
Its writes are deletes of pods and updates of ReplicaSets and events by the two controllers that do the rollout.
A watcher sees, at every pod event, the fewest pods that ever served in one zone.
Evictions: for five seconds, in turn with the guard and without it, on an etcd and an API server of their own, beside which only the leader and three webhooks behind one address run: no controllers, kubelets or audit log.
The client sends prepared bytes at an even pace.
The benchmark marks the pods as ready, and they remain terminating.
With the guard each eviction is charged to its budget by a write; without it there are no budgets either, because the leader writes for every pod that leaves unannounced.
What is added at p99 is the difference of the two p99s.
A client that gets a retry answer asks again a tenth of a second later, and its time runs on: where there are many, the p99 is that of waiting, not of an answer.
Where the p99 without the guard is far above 10 ms, the machine cannot sustain that rate at all, and the difference says how much more it lacks.
The CPU cost of an eviction depends less on that, and 50 a second show what is added where there is capacity.
All programs share the cores with the server and the client.
The count is the leader's CPU time for one budget from nothing, with 30 charges."""


async def roll(cluster: Cluster, pods: int) -> dict[str, Figures]:
    by_name: dict[str, Figures] = {}
    for name, act in (
        ("StatefulSet", rollout.ours_stateful),
        ("Deployment", rollout.ours_deployment),
        ("stock", rollout.stock),
    ):
        figures = by_name[name] = await act(cluster, pods)
        log_progress(f"{pods} pods, {name}: {figures.writes} writes, {figures.seconds:.1f} s, {dict(figures.calls)}")
    return by_name


async def stream(cluster: Cluster, ours: dict[str, int], budgets: int, per_second: int) -> list[dict[str, float]]:
    """With and without the guard, in turn."""
    server = {SERVER: cluster.plane.process(Program.APISERVER).pid, "etcd": cluster.plane.process(Program.ETCD).pid}
    runs = []
    for number in range(ROUNDS):
        run_name = f"{budgets}x{per_second}x{number}"
        guarded = await evictions.stream(cluster, budgets, per_second, f"g{run_name}", server | ours, budgets=True)
        configuration = await evictions.unguarded(cluster)
        bare = await evictions.stream(cluster, budgets, per_second, f"u{run_name}", server | ours, budgets=False)
        await evictions.guarded(cluster, configuration)
        cpu, bare_cpu = ({"cpu of " + name: ms for name, ms in run.cpu.items()} for run in (guarded, bare))
        request_cpu = sum(ms for name, ms in guarded.cpu.items() if name == SERVER or name.startswith("webhook"))
        again = {"again": guarded.retries, "bare again": bare.retries}
        runs.append(
            {"ours": guarded.p99, "bare": bare.p99, "cpu": request_cpu, "bare cpu": bare.cpu[SERVER]}
            | again
            | cpu
            | {f"bare {what}": ms for what, ms in bare_cpu.items()}
        )
        summary = ", ".join(f"{what} {figure:.1f}" for what, figure in runs[-1].items())
        log_progress(f"{budgets} budgets, {per_second} a second: {summary} (ms; again: answers)")
    return runs


def _rows_of(pods: int, figures: dict[str, Figures]) -> list[Row]:
    stock, share = figures["stock"], pods // 3
    bound = lower_bound(pods)
    rows = []
    for name in ("StatefulSet", "Deployment"):
        what, ours = f"rolling update of {pods} pods of a {name}", figures[name]
        rows += [
            Row(f"{what}: writes over the lower bound {bound}", "ratio", ours.writes / bound, None, "", 1.05),
            Row(f"{what}: refusals of our own making", "429s", ours.refused, None, "", 0),
            Row(f"{what}: most away in a zone at once", "pods", share - ours.lowest_in_a_zone, None, "", 1),
            Row(f"{what}: time", "s", ours.seconds, stock.seconds, STOCK, None),
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
    """Retries: no budget denies these evictions, but another charge was in progress, or the server was overloaded."""
    return Row(what, "answers", median(runs, "again"), median(runs, "bare again"), BARE, None, runs)


def rollout_rows(pods: int) -> list[Row]:
    async def measure() -> dict[str, Figures]:
        async with start_cluster() as cluster:
            with zonewise(cluster, WEBHOOKS):
                return await roll(cluster, pods)

    return _rows_of(pods, asyncio.run(measure()))


def eviction_rows() -> list[Row]:
    async def measure() -> dict[tuple[int, int], list[dict[str, float]]]:
        async with start_cluster(evictions.PROGRAMS) as cluster:
            with zonewise(cluster, WEBHOOKS) as ours:
                await evictions.prepare(cluster)
                return {
                    (budgets, pace): await stream(cluster, ours, budgets, pace) for pace in PACES for budgets in (20, 1)
                }

    runs = uvloop.run(measure())
    rows = []
    for pace in PACES:
        many, one = runs[20, pace], runs[1, pace]
        goal = 10 if pace == PACES[0] else None
        rows += [
            eviction_row(f"added to an eviction at p99, {pace} a second, 20 budgets, 3 webhooks", many, goal),
            eviction_row("the same, all of one budget", one, goal),
            p99_row(f"an eviction at p99, {pace} a second, 20 budgets", many),
            p99_row("the same, all of one budget", one),
            cpu_row(f"an eviction, {pace} a second: API server and webhooks, 20 budgets", many),
            cpu_row("the same, all of one budget", one),
            again_row(f"answered with 429, {pace * evictions.SECONDS} evictions, {pace} a second, 20 budgets", many),
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


def main(*parts: str) -> None:
    """Run all parts, or those given, with the last results of the others, if there are any."""
    chosen = parts or tuple(PARTS)
    rows = [
        row
        for part, measure in PARTS.items()
        if part in chosen or is_saved(f"disruption-{part}")
        for row in measured(f"disruption-{part}", measure, rerun=part in chosen)
    ]
    publish("disruption", "make bench-disruption", rows, NOTES)


def is_saved(part: str) -> bool:
    return (BUILD / "parts" / f"{part}.json").exists()


if __name__ == "__main__":
    main(*sys.argv[1:])
