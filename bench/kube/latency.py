"""One contestant in a process of its own, on one core: follow the replayed watch, note how late each handler runs.

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

from bench.kube.replay import OBJECTS, SENT


class Lateness:
    """Milliseconds from the server's socket to our handler; the first round of objects only fills the cache."""

    def __init__(self) -> None:
        self.seen = 0
        self.milliseconds: list[float] = []
        self.began_cpu_seconds = 0.0

    def note(self, annotations: Mapping[str, str]) -> None:
        if not self.seen:
            self.began_cpu_seconds = time.process_time()  # imports and connecting are not the events' cost
        self.seen += 1
        if self.seen > OBJECTS:
            self.milliseconds.append((time.monotonic_ns() - int(annotations[SENT])) / 1e6)

    def percentile(self, percent: float) -> float:
        ordered = sorted(self.milliseconds)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def zonewise(kubeconfig: Path, events: int, lateness: Lateness) -> None:
    asyncio.run(_zonewise(kubeconfig, events, lateness))


async def _zonewise(kubeconfig: Path, events: int, lateness: Lateness) -> None:
    from zonewise.kube.client.client import Client
    from zonewise.kube.watch.informers import Caches
    from zonewise.objects import PODS

    async with await Client.connect(kubeconfig) as client:
        caches, done = Caches(client), asyncio.Event()
        pods = caches.of(PODS)
        pods.add_index("node", lambda pod: [pod.spec.node_name])

        def note(change: object) -> None:
            lateness.note(change.new.metadata.annotations)
            if lateness.seen == events:
                done.set()

        pods.on_change(note)
        running = asyncio.create_task(caches.run())
        await done.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def official(kubeconfig: Path, events: int, lateness: Lateness) -> None:
    from kubernetes import client, config, watch

    config.load_kube_config(str(kubeconfig))
    for event in watch.Watch().stream(client.CoreV1Api().list_pod_for_all_namespaces, resource_version="1"):
        lateness.note(event["object"].metadata.annotations)
        if lateness.seen == events:
            return


CONTESTANTS: dict[str, Callable[[Path, int, Lateness], None]] = {"zonewise": zonewise, "official": official}


def main(name: str, kubeconfig: Path, events: int) -> None:
    os.sched_setaffinity(0, {0})
    lateness = Lateness()
    CONTESTANTS[name](kubeconfig, events, lateness)
    seconds = time.process_time() - lateness.began_cpu_seconds
    figures = {"p50_ms": lateness.percentile(50), "p99_ms": lateness.percentile(99)}
    print(json.dumps(figures | {"cpu_us_per_event": seconds / events * 1e6}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
