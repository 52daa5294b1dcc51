"""`make bench-proxy [sizes...]`: start to all rules in the kernel, cost and delay of one change, memory, by size."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.proxy.cluster import NAMESPACE, fill, service_name, slice_body
from bench.proxy.contestants import NODES, OURS, PEER, Running, run
from bench.report import BUILD, Row, publish
from zonewise.kube import kubeconfig
from zonewise.kube.client import Client
from zonewise.lab import labs
from zonewise.lab.addresses import zone_names
from zonewise.lab.state import Lab, Options
from zonewise.objects import ENDPOINT_SLICES, SERVICES

SIZES = (1_000, 5_000, 10_000)
SYNC_GOALS = {1_000: 0.4, 10_000: 0.1}
STARTS = 3
CHANGES = {OURS: 60, PEER: 12}
LONGEST_SYNC_SECONDS = 300.0

NOTES = """\
Every Service has ten endpoints on other nodes. Both proxies serve all Services, each in a node of its own in the same lab, one after the other; each start is from an empty kernel.
Start: until the kernel knows the Service that was written last. CPU counts the tools a proxy runs. A change replaces one endpoint; its delay is from before the write until the
kernel tells of changed rules, and the next is written when that one has settled. Memory is the peak of the process alone."""

Figures = dict[str, float]


@contextmanager
def cluster() -> Iterator[Lab]:
    name = f"bench-{os.getpid()}"
    controllers = "*,-endpointslice-controller,-endpoints-controller,-endpointslice-mirroring-controller"
    options = Options(zones=zone_names(1), nodes_per_zone=len(NODES), controllers=controllers, scheduler=False)
    try:
        yield labs.up(name, options, lambda _step: None)
    finally:
        labs.down(name, lambda _step: None)


async def measure(lab: Lab, sizes: list[int]) -> dict[int, list[dict[str, Figures]]]:
    found: dict[int, list[dict[str, Figures]]] = {}
    filled = 0
    async with Client(kubeconfig.load(lab.node_kubeconfig)) as client:
        for size in sorted(sizes):
            await fill(client, range(filled, size))
            filled = size
            _say(f"{size} Services")
            found[size] = []
            for number in range(STARTS):
                figures = {}
                for name in (OURS, PEER) if number % 2 == 0 else (PEER, OURS):
                    figures[name] = await contest(name, lab, client, size, changes=number == STARTS - 1)
                    _say(f"  {name}: " + ", ".join(f"{key} {value:.4g}" for key, value in figures[name].items()))
                found[size].append(figures)
    return found


async def contest(name: str, lab: Lab, client: Client, size: int, *, changes: bool) -> Figures:
    last = (await client.get(SERVICES, service_name(size - 1), NAMESPACE)).spec.cluster_ip
    begin = time.monotonic()
    with run(name, lab, BUILD / f"proxy-{name}.log") as running:
        while not running.has(last):
            if time.monotonic() - begin > LONGEST_SYNC_SECONDS or running.process.poll() is not None:
                raise TimeoutError(f"{name} set no rules: see {BUILD / f'proxy-{name}.log'}")
            await asyncio.sleep(0.02)
        figures = {"start s": time.monotonic() - begin, "start CPU s": running.cpu_seconds()}
        await asyncio.to_thread(running.until_quiet)
        figures["peak MiB"] = running.peak_mib()
        if changes:
            figures |= await _change(running, client, size)
    return figures


async def _change(running: Running, client: Client, size: int) -> Figures:
    delays = []
    count = CHANGES[running.name]
    cpu = running.cpu_seconds()
    for number in range(count):
        target = number * (size // count)
        body = slice_body(target, f"192.168.{number}.{os.getpid() % 250 + 1}")
        current: dict[str, Any] = await client.get(ENDPOINT_SLICES.whole(), service_name(target), NAMESPACE)
        running.drain()
        begin = time.monotonic()
        await client.update(ENDPOINT_SLICES.whole(), current | {"endpoints": body["endpoints"]}, NAMESPACE)
        delays.append(await asyncio.to_thread(running.next_commit, LONGEST_SYNC_SECONDS) - begin)
        await asyncio.sleep(0.05)
    await asyncio.to_thread(running.until_quiet)
    spent = running.cpu_seconds() - cpu
    for number in range(count):  # as it was, for the next contestant
        target = number * (size // count)
        current = await client.get(ENDPOINT_SLICES.whole(), service_name(target), NAMESPACE)
        await client.update(
            ENDPOINT_SLICES.whole(), current | {"endpoints": slice_body(target)["endpoints"]}, NAMESPACE
        )
    ordered = sorted(delays)
    return {
        "change p50 ms": statistics.median(delays) * 1000,
        "change p99 ms": ordered[max(0, int(len(ordered) * 0.99) - 1)] * 1000,
        "CPU per change ms": spent / count * 1000,
    }


def rows(size: int, runs: list[dict[str, Figures]]) -> list[Row]:
    goals = {
        "start s": SYNC_GOALS.get(size),
        "start CPU s": None,
        "peak MiB": 0.6,
        "change p50 ms": 0.05,
        "change p99 ms": 0.1,
        "CPU per change ms": 0.01,
    }
    made = []
    for figure, goal in goals.items():
        having = [{name: each[figure] for name, each in run.items()} for run in runs if figure in run[OURS]]
        what, _, unit = figure.rpartition(" ")
        middle = {name: statistics.median(run[name] for run in having) for name in (OURS, PEER)}
        made.append(Row(f"{what}, {size:,} Services", unit, middle[OURS], middle[PEER], PEER, goal, having))
    return made


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: list[str]) -> None:
    sizes = [int(each) for each in arguments] or list(SIZES)
    BUILD.mkdir(parents=True, exist_ok=True)
    with cluster() as lab:
        found = asyncio.run(measure(lab, sizes))
    publish("proxy", "make bench-proxy", [row for size, runs in found.items() for row in rows(size, runs)], NOTES)


if __name__ == "__main__":
    main(sys.argv[1:])
