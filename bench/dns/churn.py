"""Endpoint churn: a separate process that replaces endpoints through the API server at a steady rate.

`python -m bench.dns.churn KUBECONFIG RATE` runs until its input ends, and prints how many it replaced per second.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import time
from pathlib import Path

from bench.dns import load
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.objects import ENDPOINT_SLICES

ENDPOINTS_PER_WRITE = load.ENDPOINTS_EACH // 2
CONCURRENT_WRITES = 16
PATIENCE_SECONDS = 60.0


class Churn:
    """Runs until `stop`, which returns the rate reached."""

    def __init__(self, config: Path, endpoints_per_second: int) -> None:
        command = [sys.executable, "-m", "bench.dns.churn", str(config), str(endpoints_per_second)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def stop(self) -> float:
        try:
            output, _ = self._process.communicate(timeout=PATIENCE_SECONDS)
        finally:
            self._process.kill()
        return float(output or 0)


async def _run(config: Path, endpoints_per_second: int, ended: asyncio.Event) -> float:
    interval = ENDPOINTS_PER_WRITE / endpoints_per_second
    begin, replaced = time.monotonic(), 0
    async with Client(kubeconfig.load(config)) as client, asyncio.TaskGroup() as group:
        free = asyncio.Semaphore(CONCURRENT_WRITES)

        async def write(number: int, change: int) -> None:
            nonlocal replaced
            try:
                await client.update(ENDPOINT_SLICES, load.slice_of(number, change, ENDPOINTS_PER_WRITE), "default")
            finally:
                free.release()
            replaced += ENDPOINTS_PER_WRITE

        for count in itertools.count():
            await free.acquire()
            if ended.is_set():
                break
            change, number = divmod(count, load.SERVICES_COUNT - 1)
            group.create_task(write(number + 1, change % 200 + 2))
            await asyncio.sleep(max(0.0, begin + (count + 1) * interval - time.monotonic()))
    return replaced / (time.monotonic() - begin)


async def main() -> None:
    """Ends when its input is closed."""
    config, rate = sys.argv[1:]
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
    print(await _run(Path(config), int(rate), ended))


if __name__ == "__main__":
    asyncio.run(main())
