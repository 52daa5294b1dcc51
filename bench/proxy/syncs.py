"""How long a proxy takes from its start to all rules, and from a written change to the kernel; what both cost."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.proxy.cluster import NAMESPACE, cluster_ip, slice_body, spare_address
from bench.proxy.contestants import Running, run
from zonewise.kube.client.client import Client
from zonewise.lab.state import Lab
from zonewise.objects import ENDPOINT_SLICES

Figures = dict[str, float]


@asynccontextmanager
async def started(name: str, lab: Lab, size: int) -> AsyncIterator[tuple[Running, Figures]]:
    """The proxy with all its rules and at rest, and the figures of how it got there."""
    begin = time.monotonic()
    with run(name, lab) as running:
        await running.until_it_has(cluster_ip(size - 1))
        figures = {"start s": time.monotonic() - begin}
        await asyncio.to_thread(running.until_idle)
        figures["start CPU s"] = running.cpu_seconds()
        figures["resident memory MiB"] = running.memory_mib("VmRSS")
        figures["peak memory MiB"] = running.memory_mib("VmHWM")
        yield running, figures


async def changed(running: Running, client: Client, size: int, count: int) -> Figures:
    """One endpoint replaced, `count` times; each when the proxy has done with the one before."""
    running.listen()
    delays = []
    cpu = running.cpu_seconds()
    for number in range(count):
        target = number * size // count
        running.drain()
        begin = time.monotonic()
        await write(client, target, spare_address(target, generation=1))
        delays.append(await running.next_commit() - begin)
        await asyncio.sleep(0.05)
    await asyncio.to_thread(running.until_idle)
    spent = running.cpu_seconds() - cpu
    for number in range(count):
        await write(client, number * size // count)
    await asyncio.to_thread(running.until_idle)
    delays.sort()
    return {
        "change p50 ms": statistics.median(delays) * 1000,
        "change p99 ms": delays[min(len(delays) - 1, int(len(delays) * 0.99))] * 1000,
        "CPU per change ms": spent / count * 1000,
    }


async def write(client: Client, number: int, replaced: str = "") -> None:
    """However long the server takes: with a busy proxy beside it, it may be long."""
    await client.update(ENDPOINT_SLICES, slice_body(number, replaced), NAMESPACE, deadline_seconds=300.0)
