"""`make bench-programming_latency`: from a change of a slice to the rules of each proxy, by its own histogram.

In the manner of clusterloader2's NetworkProgrammingLatency: endpoints of 100 Services with ten each are replaced at a
steady rate, and p50 and p99 are read from `kubeproxy_network_programming_duration_seconds`. Both proxies run at once, on
a node each, and follow the same slices. `python -m bench.programming_latency --seconds 20` is a trial run, whose figures
are only printed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
import urllib.request
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Final

from bench.programming_latency.histogram import Histogram, read
from bench.proxy.cluster import ENDPOINTS, NAMESPACE, cluster_ip, fill, slice_body, spare_address
from bench.proxy.contestants import OURS, PEER, RunningProxy, run
from bench.proxy.lab import cluster
from bench.proxy.priority import reset_priority
from bench.report import BUILD, Row, publish, show
from zonewise.api.names import TRIGGER_TIME
from zonewise.errors import ZonewiseError
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.lab.network import namespaces
from zonewise.lab.state import Lab
from zonewise.objects import ENDPOINT_SLICES
from zonewise.objects.meta import micro_time

SERVICES: Final = 100
PER_SECOND: Final = 20.0
SECONDS: Final = 120.0
METRIC: Final = "kubeproxy_network_programming_duration_seconds"
PAGE: Final = "http://127.0.0.1:10249/metrics"
"""Of either proxy, in its node's network."""
GOALS: Final = {"mean": 0.1, "p50": 0.5, "p99": 0.5}
_IN_KERNEL_SECONDS: Final = 60.0

NOTES: Final = """\
Both proxies run at once, each in its own node of the same lab, serve all Services and read the same slices from the same API server, at normal priority.
The trigger time of a change is the moment before its slice is written, with microseconds, so kubelets and controllers are not part of the figures.
p50 and p99 are computed as Prometheus does it, linear within a bucket; the lowest buckets end at 0.25, 0.5 and 1 s.
So p50 below 0.25 s says little more than that; the mean is exact.
kube-proxy collects changes for a second (`nftables.minSyncPeriod`, its default)."""


async def measure(lab: Lab, arguments: argparse.Namespace) -> dict[str, Histogram]:
    async with Client(kubeconfig.load(lab.node_kubeconfig)) as client:
        await fill(lab, client, range(SERVICES))
        with ExitStack() as stack:
            proxies = [stack.enter_context(run(name, lab)) for name in (OURS, PEER)]
            for proxy in proxies:
                await proxy.wait_for_rules(cluster_ip(SERVICES - 1))
                reset_priority(proxy.process.pid)
                await asyncio.to_thread(proxy.wait_idle)
            before = {proxy.name: histogram(proxy) for proxy in proxies}
            changes = await churn(client, arguments.seconds, arguments.per_second)
            return {proxy.name: await settled(proxy, before[proxy.name], changes) for proxy in proxies}


async def churn(client: Client, seconds: float, per_second: float) -> int:
    """Returns the number of changes. Endpoints replaced in one pass over the Services are restored in the next."""
    changes = int(seconds * per_second)
    started = time.monotonic()
    async with asyncio.TaskGroup() as writes:
        for number in range(changes):
            await asyncio.sleep(max(0.0, started + number / per_second - time.monotonic()))
            round_number, target = divmod(number, SERVICES)
            writes.create_task(_replace_endpoint(client, target, "" if round_number % 2 else spare_address(target)))
    return changes


async def _replace_endpoint(client: Client, number: int, replaced: str) -> None:
    body = slice_body(number, replaced)
    body["metadata"]["annotations"] = {TRIGGER_TIME: micro_time(datetime.now(UTC))}
    await client.update(ENDPOINT_SLICES, body, NAMESPACE)


def histogram(proxy: RunningProxy) -> Histogram:
    def page() -> str:
        with urllib.request.urlopen(PAGE, timeout=30) as answer:
            text: str = answer.read().decode()
        return text

    return read(namespaces.inside(proxy.namespace, page), METRIC)


async def settled(proxy: RunningProxy, before: Histogram, changes: int) -> Histogram:
    """Since `before`, with every change counted."""
    deadline = time.monotonic() + _IN_KERNEL_SECONDS
    while (since := histogram(proxy).since(before)).count < changes:
        if time.monotonic() > deadline:
            raise ZonewiseError(f"{proxy.name} counted {since.count:.0f} of {changes} changes: see its log in {BUILD}")
        await asyncio.sleep(0.5)
    return since


def rows(histograms: dict[str, Histogram], per_second: float) -> list[Row]:
    ours, peer = ({"mean": of.mean, "p50": of.quantile(0.5), "p99": of.quantile(0.99)} for of in histograms.values())
    what = f"network programming latency, {SERVICES} Services x {ENDPOINTS}, {per_second:g} changes a second"
    return [Row(f"{what}, {name}", "s", ours[name], peer[name], PEER, goal) for name, goal in GOALS.items()]


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.programming_latency", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="Duration of the changes.")
    parser.add_argument("--per-second", type=float, default=PER_SECOND, help="Changes a second.")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> None:
    options = _parse(arguments)
    BUILD.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    with cluster() as lab:
        histograms = asyncio.run(measure(lab, options))
    notes = f"{histograms[OURS].count:,.0f} changes, which both counted.\n{NOTES}\n\nLoad average before the run: {load:.1f}."
    if arguments:
        show(rows(histograms, options.per_second))
        print(f"\n{notes}")
        return
    publish("programming_latency", "make bench-programming_latency", rows(histograms, options.per_second), notes)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except KeyboardInterrupt:
        sys.exit("interrupted; the lab is removed")
