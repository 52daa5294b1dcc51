"""`make bench-slices`: the stock EndpointSlice controller and ours, in turn, on the same control plane and pods."""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.report import Row, median, publish
from bench.slices.contestants import OURS, SHIPPED, STOCK, run
from bench.slices.world import World, world
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
    async with world(plane, services=services, pods_per_service=PODS_PER_SERVICE, namespaces=NAMESPACES) as made:
        _say(f"{services} Services with {PODS_PER_SERVICE} pods each")
        runs = []
        for number in range(rounds):
            figures = {}
            for name in (OURS, STOCK) if number % 2 == 0 else (STOCK, OURS):
                figures[name] = await contest(name, plane, made, generation=f"{name}{number}")
                _say(
                    f"run {number + 1}, {name}: "
                    + ", ".join(f"{what} {value:.4g}" for what, value in figures[name].items())
                )
            figures[SHIPPED] = {"from nothing s": await from_nothing(SHIPPED, plane, made)}
            runs.append(figures)
        return runs


async def from_nothing(name: str, plane: ControlPlane, made: World) -> float:
    await made.without_slices()
    await asyncio.sleep(2)
    begin = time.monotonic()
    with run(name, plane):
        await made.until_right((*made.crowd, *made.by_hand))
        return made.last_write_at - begin


async def contest(name: str, plane: ControlPlane, made: World, generation: str) -> dict[str, float]:
    await made.without_slices()
    await asyncio.sleep(2)
    begin = time.monotonic()
    with run(name, plane) as running:
        await made.until_right((*made.crowd, *made.by_hand))
        all_right = made.last_write_at - begin
        first_cpu = running.cpu_seconds()
        await made.until_quiet()
        memory = running.memory_mib()
        delays = await readiness(made)
        await made.until_quiet()
        cpu, writes = running.cpu_seconds(), made.writes
        await replace(made, generation)
        return {
            "from nothing s": all_right,
            "from nothing CPU s": first_cpu,
            "ready p50 ms": statistics.median(delays),
            "ready p99 ms": statistics.quantiles(delays, n=100)[98],
            "replace writes": made.writes - writes,
            "replace CPU s": running.cpu_seconds() - cpu,
            "resident MiB": memory["resident"],
            "anonymous MiB": memory["anonymous"],
            "all CPU s": running.cpu_seconds(),
        }


async def readiness(made: World) -> list[float]:
    delays = []
    for key in made.by_hand:
        for index in range(made.pods_per_service):
            address = made.address_of(key, str(index))
            begin = time.monotonic()
            await made.set_ready(key, str(index), ready=True)
            await made.until(lambda: address in made.ready_addresses(key), patience_seconds=60)  # noqa: B023 - awaited here
            delays.append((made.last_write_at - begin) * 1000)
            await asyncio.sleep(0.02)
    return delays


async def replace(made: World, generation: str) -> None:
    """All pods of some Services, each Service's one after the other."""
    remaining = iter(made.replaced)

    async def work() -> None:
        for key in remaining:
            await _replace_all(made, key, generation)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    await made.until_right(made.replaced)
    await made.until_quiet()


async def _replace_all(made: World, key: Key, generation: str) -> None:
    for index in range(made.pods_per_service):
        await made.replace_pod(key, made.suffixes[key][index], f"{generation}-{index}")
        made.suffixes[key][index] = f"{generation}-{index}"


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
    column = [{name: each[name]["from nothing s"] for name in (OURS, SHIPPED)} for each in runs]
    return Row("the same, the peer as shipped", "s", median(column, OURS), median(column, SHIPPED), PEER, 1.0, column)


def _row(runs: list[dict[str, dict[str, float]]], figure: str, what: str, unit: str, goal: float) -> Row:
    column = [{name: each[name][figure] for name in (OURS, STOCK)} for each in runs]
    return Row(what, unit, median(column, OURS), median(column, STOCK), PEER, goal, column)


def _say(line: str) -> None:
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
