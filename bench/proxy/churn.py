"""CPU cost of changes at a steady rate for a long time, with both proxies on the same API server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from bench.proxy.cluster import spare_address
from bench.proxy.contestants import RunningProxy
from bench.proxy.syncs import write
from zonewise.kube.client.client import Client

PER_SECOND: Final = 50
_LOG_EVERY_SECONDS: Final = 60.0


async def measure_churn(
    client: Client, proxies: list[RunningProxy], size: int, seconds: float, log_progress: Callable[[str], None]
) -> dict[str, float]:
    """CPU seconds by proxy. Endpoints replaced in one pass over the Services are restored in the next."""
    before = {proxy.name: proxy.cpu_seconds() for proxy in proxies}
    started = logged = time.monotonic()
    async with asyncio.TaskGroup() as writes:
        for number in range(int(seconds * PER_SECOND)):
            due = started + number / PER_SECOND
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            round_number, target = divmod(number, size)
            writes.create_task(write(client, target, "" if round_number % 2 else spare_address(target)))
            if time.monotonic() - logged > _LOG_EVERY_SECONDS:
                logged = time.monotonic()
                log_progress(f"  churn: {logged - started:.0f} of {seconds:.0f} s, {_spent(proxies, before)}")
    return {proxy.name: proxy.cpu_seconds() - before[proxy.name] for proxy in proxies}


def _spent(proxies: list[RunningProxy], before: dict[str, float]) -> str:
    return ", ".join(f"{proxy.name} {proxy.cpu_seconds() - before[proxy.name]:.2f} CPU s" for proxy in proxies)
