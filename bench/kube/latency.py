"""One contestant in its own process on one core: watch the replayed events and record the delay of each handler.

python -m bench.kube.latency zonewise|official KUBECONFIG EVENTS
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench.kube.replay import OBJECTS, SENT


class HandlerDelays:
    """Milliseconds from the server's socket to the handler; the first round of objects only fills the cache."""

    def __init__(self) -> None:
        self.events = 0
        self.milliseconds: list[float] = []
        self.started_cpu_seconds = 0.0

    def record(self, annotations: Mapping[str, str]) -> None:
        if not self.events:
            self.started_cpu_seconds = time.process_time()  # without imports and connecting
        self.events += 1
        if self.events > OBJECTS:
            self.milliseconds.append((time.monotonic_ns() - int(annotations[SENT])) / 1e6)

    def percentile(self, percent: float) -> float:
        ordered = sorted(self.milliseconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def zonewise(kubeconfig: Path, events: int, delays: HandlerDelays) -> None:
    asyncio.run(_zonewise(kubeconfig, events, delays))


async def _zonewise(kubeconfig: Path, events: int, delays: HandlerDelays) -> None:
    from zonewise.kube.client.client import Client
    from zonewise.kube.watch.informers import Caches
    from zonewise.objects import PODS

    async with await Client.connect(kubeconfig) as client:
        caches, done = Caches(client), asyncio.Event()
        pods = caches.of(PODS)
        pods.add_index("node", lambda pod: [pod.spec.node_name])

        def on_change(change: Any) -> None:
            delays.record(change.new.metadata.annotations)
            if delays.events == events:
                done.set()

        pods.on_change(on_change)
        running = asyncio.create_task(caches.run())
        await done.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def official(kubeconfig: Path, events: int, delays: HandlerDelays) -> None:
    from kubernetes import client, config, watch

    config.load_kube_config(str(kubeconfig))
    for event in watch.Watch().stream(client.CoreV1Api().list_pod_for_all_namespaces, resource_version="1"):
        delays.record(event["object"].metadata.annotations)
        if delays.events == events:
            return


CONTESTANTS: dict[str, Callable[[Path, int, HandlerDelays], None]] = {"zonewise": zonewise, "official": official}


def main(name: str, kubeconfig: Path, events: int) -> None:
    os.sched_setaffinity(0, {0})
    delays = HandlerDelays()
    CONTESTANTS[name](kubeconfig, events, delays)
    seconds = time.process_time() - delays.started_cpu_seconds
    figures = {"p50_ms": delays.percentile(50), "p99_ms": delays.percentile(99)}
    print(json.dumps(figures | {"cpu_us_per_event": seconds / events * 1e6}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
