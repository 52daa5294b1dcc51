"""The rolling-update row of the same-zone test plan, on a real API server: aggressive, under `Prefer`."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from support.slices.cluster import OF_OURS, ZONES, ClusterNamespace, running, settled
from support.waiting import eventually
from zonewise.api.names import CONSUMER, SAME_ZONE
from zonewise.kube.client.client import EventType
from zonewise.objects import ENDPOINT_SLICES, SERVICE_NAME, SERVICES, EndpointSlice

pytestmark = pytest.mark.xdist_group("slices")

PER_ZONE = 6


async def test_rolling_update(ns: ClusterNamespace) -> None:
    """Half of the pods are replaced at once, zone after zone: clients always have an endpoint."""
    await ns.service("web", annotations={SAME_ZONE: "Prefer"})
    await ns.spread("web", dict.fromkeys(ZONES, PER_ZONE))
    async with running(ns.client), watching(ns) as watched:
        await settled(ns)
        assert await groups(ns) == dict.fromkeys(ZONES, PER_ZONE)
        watched.clear()
        for turn in range(2):
            for zone in ZONES:
                await replace_half(ns, zone, turn)
        await settled(ns)
        await eventually(lambda: not has_old_pods(watched), "the watch has delivered the last write")
    served = await groups(ns)
    assert served.keys() == set(ZONES)
    assert all(18 / 3 / count < 1.5 for count in served.values())
    assert watched.least_ready >= PER_ZONE
    assert watched.writes <= 4 * 2 * len(ZONES) * PER_ZONE  # every removed or added pod changes a slice twice at most
    state = await ns.client.get(SERVICES, "web", ns.namespace)
    assert '"code":"Preferred"' in state.metadata.annotations["zonewise.dev/routing"]


async def replace_half(ns: ClusterNamespace, zone: str, turn: int) -> None:
    half = range(turn * PER_ZONE // 2, (turn + 1) * PER_ZONE // 2)
    await asyncio.gather(*(ns.delete_pod(f"web-{zone}-{number}") for number in half))
    await asyncio.gather(*(ns.pod(f"new-{zone}-{number}", {"app": "web"}, f"{zone}-0") for number in half))


async def groups(ns: ClusterNamespace) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for endpoint_slice in await ns.slices("web"):
        sizes[endpoint_slice.metadata.labels[CONSUMER]] += len(endpoint_slice.endpoints or ())
    return dict(sizes)


class WatchedSlices:
    """The states of the slices, as watched write by write."""

    def __init__(self) -> None:
        self.slices: dict[str, EndpointSlice] = {}
        self.clear()

    def clear(self) -> None:
        self.writes = 0
        self.least_ready = 10**6

    def note(self, kind: EventType, endpoint_slice: EndpointSlice) -> None:
        self.writes += 1
        if kind is EventType.DELETED:
            self.slices.pop(endpoint_slice.metadata.name, None)
        else:
            self.slices[endpoint_slice.metadata.name] = endpoint_slice
        self.least_ready = min(self.least_ready, len(self.ready()))

    def ready(self) -> set[str]:
        return {
            endpoint.addresses[0]
            for endpoint_slice in self.slices.values()
            for endpoint in endpoint_slice.endpoints or ()
            if endpoint.conditions.ready
        }


def has_old_pods(watched: WatchedSlices) -> bool:
    names = {
        e.target_ref.name
        for endpoint_slice in watched.slices.values()
        for e in endpoint_slice.endpoints or ()
        if e.target_ref
    }
    return any(name.startswith("web-") for name in names)


@asynccontextmanager
async def watching(ns: ClusterNamespace) -> AsyncIterator[WatchedSlices]:
    watched = WatchedSlices()
    selector = f"{SERVICE_NAME}=web,{OF_OURS}"
    listed = await ns.client.list(ENDPOINT_SLICES, ns.namespace, selector=selector)

    async def watch() -> None:
        events = ns.client.watch(
            ENDPOINT_SLICES, ns.namespace, selector=selector, resource_version=listed.resource_version
        )
        async for event in events:
            if event.type in {EventType.ADDED, EventType.MODIFIED, EventType.DELETED}:
                assert isinstance(event.object, EndpointSlice)
                watched.note(event.type, event.object)

    task = asyncio.create_task(watch())
    yield watched
    task.cancel()
