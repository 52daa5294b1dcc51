"""Changes at a steady rate, for long, with both proxies on the same API server: what keeping up costs each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bench.proxy.cluster import spare_address
from bench.proxy.contestants import Running
from bench.proxy.syncs import write
from zonewise.kube.client.client import Client

PER_SECOND = 50
_SAY_EVERY_SECONDS = 60.0


async def churned(
    client: Client, proxies: list[Running], size: int, seconds: float, say: Callable[[str], None]
) -> dict[str, float]:
    """CPU seconds of each by name. What is replaced in one pass over the Services comes back in the next."""
    before = {each.name: each.cpu_seconds() for each in proxies}
    begin = said = time.monotonic()
    async with asyncio.TaskGroup() as writes:
        for number in range(int(seconds * PER_SECOND)):
            due = begin + number / PER_SECOND
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            turn, target = divmod(number, size)
            writes.create_task(write(client, target, "" if turn % 2 else spare_address(target)))
            if time.monotonic() - said > _SAY_EVERY_SECONDS:
                said = time.monotonic()
                say(f"  churn: {said - begin:.0f} of {seconds:.0f} s, {_spent(proxies, before)}")
    return {each.name: each.cpu_seconds() - before[each.name] for each in proxies}


def _spent(proxies: list[Running], before: dict[str, float]) -> str:
    return ", ".join(f"{each.name} {each.cpu_seconds() - before[each.name]:.2f} CPU s" for each in proxies)
