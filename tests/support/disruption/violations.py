"""Checks after every watch event that each zone has its minimum of available pods.

Independent of the budget code: the input is a floor per zone and the API server's own order of events.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field

from support.disruption.cluster import DisruptionNamespace, is_available
from support.waiting import eventually
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import ApiError, Gone
from zonewise.objects import PODS, Pod

_RETRY_SECONDS = 0.05


@dataclass
class Watcher:
    """`initial`: available pods per zone at the start; `most_unavailable_zones`: most zones below that at one time.

    `version` is the newest resourceVersion received: versions of one kind grow in the order of its changes.
    """

    floors: Mapping[str, int]
    zones: Mapping[str, str]
    pods: dict[str, Pod] = field(default_factory=dict)
    version: int = 0
    events: int = 0
    violations: list[str] = field(default_factory=list)
    lowest: dict[str, int] = field(default_factory=dict)
    initial: Counter[str] = field(default_factory=Counter)
    most_unavailable_zones: int = 0

    def record(self, kind: str, pod: Pod) -> None:
        self.events += 1
        self.version = max(self.version, _version(pod))
        if kind == "DELETED":
            self.pods.pop(pod.metadata.uid, None)
        else:
            self.pods[pod.metadata.uid] = pod
        self._check(f"{kind} {pod.metadata.name} at version {pod.metadata.resource_version}")

    def restart(self, pods: Sequence[Pod], version: int) -> None:
        """Continue from a listing: the watch was lost."""
        self.pods = {pod.metadata.uid: pod for pod in pods}
        self.version = version
        self._check(f"listing at version {version}")

    def has_seen(self, pods: Sequence[Pod], version: int) -> bool:
        """Whether all events up to the listing of `pods` at `version` were received, deletions included."""
        listed = {pod.metadata.uid for pod in pods}
        missing_delete = any(uid not in listed and _version(pod) <= version for uid, pod in self.pods.items())
        return not missing_delete and self.version >= max(map(_version, pods), default=0)

    @property
    def available(self) -> Counter[str]:
        return Counter(self.zones.get(pod.spec.node_name, "") for pod in self.pods.values() if is_available(pod))

    def _check(self, event: str) -> None:
        available = self.available
        unavailable = sum(available[zone] < pods for zone, pods in self.initial.items())
        self.most_unavailable_zones = max(self.most_unavailable_zones, unavailable)
        for zone, floor in self.floors.items():
            self.lowest[zone] = min(self.lowest.get(zone, available[zone]), available[zone])
            if available[zone] < floor:
                self.violations.append(f"{event}: {available[zone]} available in {zone}, floor {floor}")


@asynccontextmanager
async def watching(
    ns: DisruptionNamespace, app: str, floors: Mapping[str, int], *, through_outages: bool = False
) -> AsyncIterator[Watcher]:
    """Watch until exit; on exit all events so far have been checked, or the watch's error is raised.

    `through_outages`: a watch that is lost continues with a listing, as soon as the API server gives one.
    """
    watcher = Watcher(floors, await ns.zone_of_nodes())
    listing = await ns.client.list(PODS, ns.namespace, selector=f"app={app}")
    watcher.pods = {pod.metadata.uid: pod for pod in listing.items}
    watcher.version = int(listing.resource_version)
    watcher.initial = watcher.available
    watch = _watch_through_outages if through_outages else _watch
    watch_task = asyncio.create_task(watch(ns.client, ns.namespace, app, listing.resource_version, watcher))
    try:
        yield watcher
        await _catch_up(ns, app, watcher, watch_task)
    finally:
        watch_task.cancel()
        await asyncio.wait([watch_task])


async def _catch_up(ns: DisruptionNamespace, app: str, watcher: Watcher, watch_task: asyncio.Task[None]) -> None:
    listing = await ns.client.list(PODS, ns.namespace, selector=f"app={app}")
    version = int(listing.resource_version)
    await eventually(
        lambda: watch_task.done() or watcher.has_seen(listing.items, version), f"version {version} received"
    )
    if watch_task.done():
        watch_task.result()  # ends only with an error


async def _watch_through_outages(client: Client, namespace: str, app: str, version: str, watcher: Watcher) -> None:
    while True:
        try:
            await _watch(client, namespace, app, version, watcher)
        except ApiError:
            await asyncio.sleep(_RETRY_SECONDS)
        with suppress(ApiError):
            listing = await client.list(PODS, namespace, selector=f"app={app}")
            version = listing.resource_version
            watcher.restart(listing.items, int(version))


async def _watch(client: Client, namespace: str, app: str, version: str, watcher: Watcher) -> None:
    """Watches end regularly; each continues at the version of the previous one."""
    while True:
        events = client.watch(PODS, namespace, selector=f"app={app}", resource_version=version)
        async with aclosing(events):
            async for event in events:
                if event.type == "ERROR":
                    raise Gone("the watch expired")
                version = event.object.metadata.resource_version or version
                if event.type != "BOOKMARK":
                    watcher.record(event.type, event.object)


def _version(pod: Pod) -> int:
    return int(pod.metadata.resource_version)
