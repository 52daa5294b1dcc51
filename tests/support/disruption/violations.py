"""Looks at every single change of a workload's pods: was there ever less available in a zone than promised?

It knows nothing of budgets: a floor per zone is all it is told, and the order of the server's own events is its clock.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from support.disruption.cluster import Bed, is_available
from support.waiting import eventually
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import Gone
from zonewise.objects import PODS, Pod


@dataclass
class Watcher:
    """`whole`: what each zone had when it began; `most_unavailable_zones` had less at the same time.

    `version` is that of the newest change it has seen: versions of one kind grow in the order of its changes.
    """

    floors: Mapping[str, int]
    zones: Mapping[str, str]
    pods: dict[str, Pod] = field(default_factory=dict)
    version: int = 0
    events: int = 0
    violations: list[str] = field(default_factory=list)
    lowest: dict[str, int] = field(default_factory=dict)
    whole: Counter[str] = field(default_factory=Counter)
    most_unavailable_zones: int = 0

    def note(self, kind: str, pod: Pod) -> None:
        self.events += 1
        self.version = max(self.version, _version(pod))
        if kind == "DELETED":
            self.pods.pop(pod.metadata.uid, None)
        else:
            self.pods[pod.metadata.uid] = pod
        self._judge(f"{kind} {pod.metadata.name} at version {pod.metadata.resource_version}")

    def has_seen(self, pods: Sequence[Pod], version: int) -> bool:
        """All that happened until the API server had these `pods` at `version`: their last changes, and who had left."""
        listed = {pod.metadata.uid for pod in pods}
        left = any(uid not in listed and _version(pod) <= version for uid, pod in self.pods.items())
        return not left and self.version >= max(map(_version, pods), default=0)

    @property
    def available(self) -> Counter[str]:
        return Counter(self.zones.get(pod.spec.node_name, "") for pod in self.pods.values() if is_available(pod))

    def _judge(self, what: str) -> None:
        available = self.available
        unavailable = sum(available[zone] < pods for zone, pods in self.whole.items())
        self.most_unavailable_zones = max(self.most_unavailable_zones, unavailable)
        for zone, floor in self.floors.items():
            self.lowest[zone] = min(self.lowest.get(zone, available[zone]), available[zone])
            if available[zone] < floor:
                self.violations.append(f"{what}: {available[zone]} available in {zone}, promised {floor}")


@asynccontextmanager
async def watching(bed: Bed, app: str, floors: Mapping[str, int]) -> AsyncIterator[Watcher]:
    """From now on; at the end all that happened until then has been looked at, or it raises why not."""
    watcher = Watcher(floors, await bed.zone_of_nodes())
    listing = await bed.client.list(PODS, bed.namespace, selector=f"app={app}")
    watcher.pods = {pod.metadata.uid: pod for pod in listing.items}
    watcher.version = int(listing.resource_version)
    watcher.whole = watcher.available
    following = asyncio.create_task(_follow(bed.client, bed.namespace, app, listing.resource_version, watcher))
    try:
        yield watcher
        await _catch_up(bed, app, watcher, following)
    finally:
        following.cancel()
        await asyncio.wait([following])


async def _catch_up(bed: Bed, app: str, watcher: Watcher, following: asyncio.Task[None]) -> None:
    last = await bed.client.list(PODS, bed.namespace, selector=f"app={app}")
    version = int(last.resource_version)
    await eventually(lambda: following.done() or watcher.has_seen(last.items, version), f"version {version} is seen")
    if following.done():
        following.result()  # it only ends with an error


async def _follow(client: Client, namespace: str, app: str, version: str, watcher: Watcher) -> None:
    """Watches end now and then; the next one goes on where the last one was."""
    while True:
        events = client.watch(PODS, namespace, selector=f"app={app}", resource_version=version)
        async with aclosing(events):
            async for event in events:
                if event.type == "ERROR":
                    raise Gone("the watcher missed something")
                version = event.object.metadata.resource_version or version
                if event.type != "BOOKMARK":
                    watcher.note(event.type, event.object)


def _version(pod: Pod) -> int:
    return int(pod.metadata.resource_version)
