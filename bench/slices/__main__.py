"""`make bench-slices`: the stock EndpointSlice controller and ours, in turn, on the same control plane and pods."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.report import Row, median, publish
from bench.slices.cluster import BenchCluster, bench_cluster
from bench.slices.controllers import OURS, SHIPPED, STOCK, run
from zonewise.lab.controlplane import controlplane
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.objects import Key

SERVICES, PODS_PER_SERVICE, NAMESPACES = 1_000, 10, 20
AT_ONCE = 40
ROUNDS = 3
PEER = "kube-controller-manager"

NOTES = """\
Each run starts a controller on a cluster that has all Services and ready pods but no slice, and then continues with it: all slices, one pod after the other becoming ready (the time from before the pod's status is written until a watcher has the slice that contains it), and the rolling replacement of a thousand pods with a surge of one, forty Services at once.
The stock controller runs alone in its process, without a lease, with --kube-api-qps=500 --kube-api-burst=1000; one row shows its default of 20 requests a second and 30 at once.
Slice writes are counted by a watcher.
Resident memory counts the pages of the program files; anonymous memory does not."""


async def measure(plane: ControlPlane, services: int, rounds: int) -> list[dict[str, dict[str, float]]]:
    async with bench_cluster(
        plane, services=services, pods_per_service=PODS_PER_SERVICE, namespaces=NAMESPACES
    ) as cluster:
        _print(f"{services} Services with {PODS_PER_SERVICE} pods each")
        runs = []
        for number in range(rounds):
            figures = {}
            for name in (OURS, STOCK) if number % 2 == 0 else (STOCK, OURS):
                figures[name] = await measure_run(name, plane, cluster, generation=f"{name}{number}")
                _print(
                    f"run {number + 1}, {name}: "
                    + ", ".join(f"{what} {value:.4g}" for what, value in figures[name].items())
                )
            figures[SHIPPED] = {"from nothing s": await from_nothing(SHIPPED, plane, cluster)}
            runs.append(figures)
        return runs


async def from_nothing(name: str, plane: ControlPlane, cluster: BenchCluster) -> float:
    await cluster.without_slices()
    await asyncio.sleep(2)
    begin = time.monotonic()
    with run(name, plane):
        await cluster.until_right((*cluster.crowd, *cluster.by_hand))
        return cluster.last_write_at - begin


async def measure_run(name: str, plane: ControlPlane, cluster: BenchCluster, generation: str) -> dict[str, float]:
    await cluster.without_slices()
    await asyncio.sleep(2)
    begin = time.monotonic()
    with run(name, plane) as running:
        await cluster.until_right((*cluster.crowd, *cluster.by_hand))
        all_right = cluster.last_write_at - begin
        first_cpu = running.cpu_seconds()
        await cluster.until_quiet()
        memory = running.memory_mib()
        delays = await readiness(cluster)
        await cluster.until_quiet()
        cpu, writes = running.cpu_seconds(), cluster.writes
        await replace(cluster, generation)
        return {
            "from nothing s": all_right,
            "from nothing CPU s": first_cpu,
            "ready p50 ms": statistics.median(delays),
            "ready p99 ms": statistics.quantiles(delays, n=100)[98],
            "replace writes": cluster.writes - writes,
            "replace CPU s": running.cpu_seconds() - cpu,
            "resident MiB": memory["resident"],
            "anonymous MiB": memory["anonymous"],
            "all CPU s": running.cpu_seconds(),
        }


async def readiness(cluster: BenchCluster) -> list[float]:
    delays = []
    for key in cluster.by_hand:
        for index in range(cluster.pods_per_service):
            address = cluster.address_of(key, str(index))
            begin = time.monotonic()
            await cluster.set_ready(key, str(index), ready=True)
            await cluster.until(lambda: address in cluster.ready_addresses(key), patience_seconds=60)  # noqa: B023 - awaited here
            delays.append((cluster.last_write_at - begin) * 1000)
            await asyncio.sleep(0.02)
    return delays


async def replace(cluster: BenchCluster, generation: str) -> None:
    """Replaces all pods of some Services, one after the other within a Service."""
    remaining = iter(cluster.replaced)

    async def work() -> None:
        for key in remaining:
            await _replace_all(cluster, key, generation)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    await cluster.until_right(cluster.replaced)
    await cluster.until_quiet()


async def _replace_all(cluster: BenchCluster, key: Key, generation: str) -> None:
    for index in range(cluster.pods_per_service):
        await cluster.replace_pod(key, cluster.suffixes[key][index], f"{generation}-{index}")
        cluster.suffixes[key][index] = f"{generation}-{index}"


def rows(runs: list[dict[str, dict[str, float]]]) -> list[Row]:
    what = {
        "from nothing s": (f"{SERVICES:,} Services x {PODS_PER_SERVICE} pods, nothing to all slices right", "s", 1.0),
        "ready p50 ms": ("pod ready to slice says so, p50 of 300", "ms", 1.0),
        "ready p99 ms": ("pod ready to slice says so, p99 of 300", "ms", 1.0),
        "replace writes": ("rolling replacement of 1,000 pods: slice writes", "writes", 0.999),
        "resident MiB": ("resident memory", "MiB", 0.999),
        "anonymous MiB": ("memory without program files", "MiB", 0.999),
        "from nothing CPU s": ("CPU from nothing to all slices right", "CPU s", 1.0),
        "replace CPU s": ("CPU of the rolling replacement", "CPU s", 1.0),
        "all CPU s": ("CPU of the whole run", "CPU s", 1.0),
    }
    compared = [_row(runs, figure, *meaning) for figure, meaning in what.items()]
    return [compared[0], _as_shipped(runs), *compared[1:]]


def _as_shipped(runs: list[dict[str, dict[str, float]]]) -> Row:
    column = [{name: figures[name]["from nothing s"] for name in (OURS, SHIPPED)} for figures in runs]
    return Row("the same, the peer as shipped", "s", median(column, OURS), median(column, SHIPPED), PEER, 1.0, column)


def _row(runs: list[dict[str, dict[str, float]]], figure: str, what: str, unit: str, goal: float) -> Row:
    column = [{name: figures[name][figure] for name in (OURS, STOCK)} for figures in runs]
    return Row(what, unit, median(column, OURS), median(column, STOCK), PEER, goal, column)


def _print(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)


def main(services: int = SERVICES, rounds: int = ROUNDS) -> None:
    directory = Path(tempfile.mkdtemp(prefix="bench-slices-"))
    flags: dict[Program, tuple[str, ...]] = {Program.APISERVER: ("--disable-admission-plugins=ServiceAccount",)}
    programs = (Program.ETCD, Program.APISERVER, Program.KWOK)
    plane = ControlPlane.start(directory, programs=programs, flags=flags)
    try:
        runs = asyncio.run(measure(plane, services, rounds))
    finally:
        controlplane.remove(directory)
    if services == SERVICES:
        publish("slices", "make bench-slices", rows(runs), NOTES)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
