"""`make bench-proxy`: start, changes, memory, data path, churn, scale, bytes; about twenty minutes, ten of them churn.

`python -m bench.proxy --churn-seconds 30 --sizes 1000` is a trial run, whose figures are only printed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from bench.proxy import churn, datapath, groups, syncs
from bench.proxy.cluster import fill
from bench.proxy.contestants import OURS, PEER
from bench.proxy.lab import cluster
from bench.proxy.priority import raise_priority, reset_priority
from bench.proxy.results import NOTES, BenchResults, rows
from bench.report import BUILD, publish, show
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.lab.state import Lab

SIZES: Final = (1_000, 5_000, 10_000)
OWN_SIZE: Final = 30_000
CHURN_SECONDS: Final = 600.0
STARTS: Final = {1_000: 4, 5_000: 3}
"""Starts per proxy; two for other sizes, where the peer takes long."""
CHANGES: Final = {OURS: 100, PEER: 12}
LARGE, CHANGES_WHEN_LARGE = 10_000, {OURS: 100, PEER: 4}


@dataclass
class Bench:
    lab: Lab
    client: Client
    arguments: argparse.Namespace
    results: BenchResults
    filled: int = 0

    async def run(self) -> None:
        raise_priority(self.lab)
        self.results.received = await groups.compare_groups(self.lab, self.client)
        _log_progress(f"slice groups, bytes: {self.results.received}")
        with datapath.client_and_server(self.lab):
            await self.grow(1)
            await self.run_both(1)
            for size in sorted(self.arguments.sizes):
                await self.grow(size)
                await self.compare(size)
            if self.arguments.own:
                await self.grow(self.arguments.own)
                await self.run_ours(self.arguments.own)

    async def grow(self, size: int) -> None:
        await fill(self.lab, self.client, range(self.filled, size))
        self.filled = size
        _log_progress(f"{size:,} Services")

    async def compare(self, size: int) -> None:
        """Starts in turn; then changes, and with both running the data path and churn."""
        times = STARTS.get(size, 2)
        for number in range(times - 1):
            for name in (OURS, PEER) if number % 2 == 0 else (PEER, OURS):
                async with syncs.started(name, self.lab, size) as (_, figures):
                    self.record(size, name, figures)
        await self.run_both(size, changes=CHANGES_WHEN_LARGE if size >= LARGE else CHANGES)

    async def run_both(self, size: int, changes: dict[str, int] | None = None) -> None:
        async with AsyncExitStack() as stack:
            proxies = []
            for name in (OURS, PEER):
                running, figures = await stack.enter_async_context(syncs.started(name, self.lab, size))
                proxies.append(running)
                if changes:
                    figures |= await syncs.measure_changes(running, self.client, size, changes[name])
                    self.record(size, name, figures)
            await self.connect(size, [OURS, PEER])
            if size == max(self.arguments.sizes) and self.arguments.churn_seconds:
                seconds = self.arguments.churn_seconds
                for proxy in proxies:
                    reset_priority(proxy.process.pid)
                self.results.churned = await churn.measure_churn(self.client, proxies, size, seconds, _log_progress)
                self.results.churn_seconds, self.results.churn_size = seconds, size
                _log_progress(f"  churn: {self.results.churned}")

    async def run_ours(self, size: int) -> None:
        for last in (False, False, True):
            async with syncs.started(OURS, self.lab, size) as (running, figures):
                changes = await syncs.measure_changes(running, self.client, size, CHANGES[OURS]) if last else {}
                self.record(size, OURS, figures | changes)
                if last:
                    await self.connect(size, [OURS])

    async def connect(self, size: int, names: list[str]) -> None:
        self.results.connected[size] = await datapath.measure_connections(self.lab, names, size)
        _log_progress(f"  data path: {self.results.connected[size]}")

    def record(self, size: int, name: str, figures: syncs.Figures) -> None:
        self.results.syncs.setdefault(size, {}).setdefault(name, []).append(figures)
        _log_progress(f"  {name}: " + ", ".join(f"{key} {value:.4g}" for key, value in figures.items()))


async def measure(lab: Lab, arguments: argparse.Namespace, results: BenchResults) -> None:
    async with Client(kubeconfig.load(lab.node_kubeconfig)) as client:
        await Bench(lab, client, arguments, results).run()


def _log_progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.proxy", description=__doc__)
    parser.add_argument("--sizes", type=lambda text: [int(size) for size in text.split(",")], default=list(SIZES))
    parser.add_argument(
        "--own", type=int, default=OWN_SIZE, help="Number of Services with which only our proxy runs; 0 to skip."
    )
    churn_seconds = float(os.environ.get("CHURN_SECONDS", CHURN_SECONDS))
    parser.add_argument("--churn-seconds", type=float, default=churn_seconds, help="Duration of the churn; 0 to skip.")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    BUILD.mkdir(parents=True, exist_ok=True)
    before = os.getloadavg()[0]
    results = BenchResults()
    with cluster() as lab:
        asyncio.run(measure(lab, options, results))
    if arguments:
        show(rows(results))
        return
    publish("proxy", "make bench-proxy", rows(results), f"{NOTES}\n\nLoad average before the run: {before:.1f}.")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit("interrupted; the lab is removed")
