"""`make bench-proxy`: start, changes, memory, data path, churn, own scale, bytes; about twenty minutes, ten of them churn.

`python -m bench.proxy --churn-seconds 30 --sizes 1000` is a trial, whose figures are only shown.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

from bench.proxy import churn, datapath, groups, syncs
from bench.proxy.cluster import fill
from bench.proxy.contestants import NODES, OURS, PEER
from bench.proxy.priority import fall_back, go_ahead
from bench.proxy.results import NOTES, Found, rows
from bench.report import BUILD, publish, show
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.lab import labs
from zonewise.lab.decide.addresses import zone_names
from zonewise.lab.state import Lab, LabOptions

SIZES = (1_000, 5_000, 10_000)
OWN_SIZE = 30_000
CHURN_SECONDS = 600.0
STARTS = {1_000: 4, 5_000: 3}
"""How often each is started; twice where it takes the peer long."""
CHANGES = {OURS: 100, PEER: 12}
LARGE, CHANGES_OF_LARGE = 10_000, {OURS: 100, PEER: 4}


@contextmanager
def cluster() -> Iterator[Lab]:
    name = f"bench-{os.getpid()}"
    controllers = "*,-endpointslice-controller,-endpoints-controller,-endpointslice-mirroring-controller"
    options = LabOptions(zones=zone_names(1), nodes_per_zone=len(NODES), controllers=controllers, scheduler=False)
    try:
        yield labs.up(name, options, lambda _step: None)
    finally:
        labs.down(name, lambda _step: None)


@dataclass
class Bench:
    lab: Lab
    client: Client
    arguments: argparse.Namespace
    found: Found
    filled: int = 0

    async def everything(self) -> None:
        go_ahead(self.lab)
        self.found.received = await groups.compared(self.lab, self.client)
        _say(f"slice groups, bytes: {self.found.received}")
        with datapath.ends(self.lab):
            await self.grow(1)
            await self.side_by_side(1)
            for size in sorted(self.arguments.sizes):
                await self.grow(size)
                await self.contests(size)
            if self.arguments.own:
                await self.grow(self.arguments.own)
                await self.alone(self.arguments.own)

    async def grow(self, size: int) -> None:
        await fill(self.lab, self.client, range(self.filled, size))
        self.filled = size
        _say(f"{size:,} Services")

    async def contests(self, size: int) -> None:
        """Starts in turn; then, from the last ones, changes, and with both at once whatever needs both."""
        times = STARTS.get(size, 2)
        for number in range(times - 1):
            for name in (OURS, PEER) if number % 2 == 0 else (PEER, OURS):
                async with syncs.started(name, self.lab, size) as (_, figures):
                    self.note(size, name, figures)
        await self.side_by_side(size, changes=CHANGES_OF_LARGE if size >= LARGE else CHANGES)

    async def side_by_side(self, size: int, changes: dict[str, int] | None = None) -> None:
        async with AsyncExitStack() as stack:
            proxies = []
            for name in (OURS, PEER):
                running, figures = await stack.enter_async_context(syncs.started(name, self.lab, size))
                proxies.append(running)
                if changes:
                    figures |= await syncs.changed(running, self.client, size, changes[name])
                    self.note(size, name, figures)
            await self.connect(size, [OURS, PEER])
            if size == max(self.arguments.sizes) and self.arguments.churn_seconds:
                seconds = self.arguments.churn_seconds
                for each in proxies:
                    fall_back(each.process.pid)
                self.found.churned = await churn.churned(self.client, proxies, size, seconds, _say)
                self.found.churn_seconds, self.found.churn_size = seconds, size
                _say(f"  churn: {self.found.churned}")

    async def alone(self, size: int) -> None:
        for last in (False, False, True):
            async with syncs.started(OURS, self.lab, size) as (running, figures):
                changes = await syncs.changed(running, self.client, size, CHANGES[OURS]) if last else {}
                self.note(size, OURS, figures | changes)
                if last:
                    await self.connect(size, [OURS])

    async def connect(self, size: int, names: list[str]) -> None:
        self.found.connected[size] = await datapath.connected(self.lab, names, size)
        _say(f"  data path: {self.found.connected[size]}")

    def note(self, size: int, name: str, figures: syncs.Figures) -> None:
        self.found.syncs.setdefault(size, {}).setdefault(name, []).append(figures)
        _say(f"  {name}: " + ", ".join(f"{key} {value:.4g}" for key, value in figures.items()))


async def measure(lab: Lab, arguments: argparse.Namespace, found: Found) -> None:
    async with Client(kubeconfig.load(lab.node_kubeconfig)) as client:
        await Bench(lab, client, arguments, found).everything()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _read(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.proxy", description=__doc__)
    parser.add_argument("--sizes", type=lambda text: [int(each) for each in text.split(",")], default=list(SIZES))
    parser.add_argument("--own", type=int, default=OWN_SIZE, help="the size at which only ours runs; 0 for none")
    churn_seconds = float(os.environ.get("CHURN_SECONDS", CHURN_SECONDS))
    parser.add_argument("--churn-seconds", type=float, default=churn_seconds, help="0 for none")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    read = _read(arguments)
    BUILD.mkdir(parents=True, exist_ok=True)
    before = os.getloadavg()[0]
    found = Found()
    with cluster() as lab:
        asyncio.run(measure(lab, read, found))
    if arguments:
        show(rows(found))
        return
    publish("proxy", "make bench-proxy", rows(found), f"{NOTES}\n\nLoad average before the run: {before:.1f}.")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit("interrupted; nothing of it is left")
