"""Time and CPU from a proxy's start to complete rules, and from a written change to the kernel."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.proxy.cluster import NAMESPACE, cluster_ip, slice_body, spare_address
from bench.proxy.contestants import RunningProxy, run
from zonewise.kube.client.client import Client
from zonewise.lab.state import Lab
from zonewise.objects import ENDPOINT_SLICES

Figures = dict[str, float]


@asynccontextmanager
async def started(name: str, lab: Lab, size: int) -> AsyncIterator[tuple[RunningProxy, Figures]]:
    """The idle proxy with all rules, and the figures of its start."""
    started_at = time.monotonic()
    with run(name, lab) as running:
        await running.wait_for_rules(cluster_ip(size - 1))
        figures = {"start s": time.monotonic() - started_at}
        await asyncio.to_thread(running.wait_idle)
        figures["start CPU s"] = running.cpu_seconds()
        figures["resident memory MiB"] = running.memory_mib("VmRSS")
        figures["peak memory MiB"] = running.memory_mib("VmHWM")
        yield running, figures


async def measure_changes(running: RunningProxy, client: Client, size: int, count: int) -> Figures:
    """Replace one endpoint `count` times, each after the previous change is applied."""
    running.listen()
    delays = []
    cpu = running.cpu_seconds()
    for number in range(count):
        target = number * size // count
        running.drain()
        started_at = time.monotonic()
        await write(client, target, spare_address(target, generation=1))
        delays.append(await running.next_commit() - started_at)
        await asyncio.sleep(0.05)
    await asyncio.to_thread(running.wait_idle)
    cpu_spent = running.cpu_seconds() - cpu
    for number in range(count):
        await write(client, number * size // count)
    await asyncio.to_thread(running.wait_idle)
    delays.sort()
    return {
        "change p50 ms": statistics.median(delays) * 1000,
        "change p99 ms": delays[min(len(delays) - 1, int(len(delays) * 0.99))] * 1000,
        "CPU per change ms": cpu_spent / count * 1000,
    }


async def write(client: Client, number: int, replaced: str = "") -> None:
    """With a long deadline: the server may be slow beside a busy proxy."""
    await client.update(ENDPOINT_SLICES, slice_body(number, replaced), NAMESPACE, deadline_seconds=300.0)
