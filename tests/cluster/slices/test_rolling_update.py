"""The rolling-update row of the same-zone test plan, on a real API server: aggressive, under `Prefer`."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from support.slices.cluster import OF_OURS, ZONES, World, running, settled
from support.waiting import eventually
from zonewise.api.names import CONSUMER, SAME_ZONE
from zonewise.kube.client.client import EventType
from zonewise.objects import ENDPOINT_SLICES, SERVICE_NAME, SERVICES, EndpointSlice

pytestmark = pytest.mark.xdist_group("slices")

PER_ZONE = 6


async def test_rolling_update(world: World) -> None:
    """Half of the pods go at once, zone after zone, as many new ones come: no client is ever left without an endpoint."""
    await world.service("web", annotations={SAME_ZONE: "Prefer"})
    await world.spread("web", dict.fromkeys(ZONES, PER_ZONE))
    async with running(world.client), watching(world) as seen:
        await settled(world)
        assert await groups(world) == dict.fromkeys(ZONES, PER_ZONE)
        seen.clear()
        for round_ in range(2):
            for zone in ZONES:
                await replace_half(world, zone, round_)
        await settled(world)
        await eventually(lambda: not has_old_pods(seen), "the watch has seen the last write")
    served = await groups(world)
    assert served.keys() == set(ZONES)
    assert all(18 / 3 / count < 1.5 for count in served.values())
    assert seen.least_ready >= PER_ZONE
    assert seen.writes <= 4 * 2 * len(ZONES) * PER_ZONE  # every pod that goes or comes changes a slice twice at most
    state = await world.client.get(SERVICES, "web", world.namespace)
    assert '"code":"Preferred"' in state.metadata.annotations["zonewise.dev/routing"]


async def replace_half(world: World, zone: str, round_: int) -> None:
    half = range(round_ * PER_ZONE // 2, (round_ + 1) * PER_ZONE // 2)
    await asyncio.gather(*(world.delete_pod(f"web-{zone}-{number}") for number in half))
    await asyncio.gather(*(world.pod(f"new-{zone}-{number}", {"app": "web"}, f"{zone}-0") for number in half))


async def groups(world: World) -> dict[str, int]:
    found: Counter[str] = Counter()
    for seen in await world.slices("web"):
        found[seen.metadata.labels[CONSUMER]] += len(seen.endpoints or ())
    return dict(found)


class Seen:
    """What somebody who watches the slices has seen, write by write."""

    def __init__(self) -> None:
        self.slices: dict[str, EndpointSlice] = {}
        self.clear()

    def clear(self) -> None:
        self.writes = 0
        self.least_ready = 10**6

    def note(self, kind: EventType, found: EndpointSlice) -> None:
        self.writes += 1
        if kind is EventType.DELETED:
            self.slices.pop(found.metadata.name, None)
        else:
            self.slices[found.metadata.name] = found
        self.least_ready = min(self.least_ready, len(self.ready()))

    def ready(self) -> set[str]:
        return {
            endpoint.addresses[0]
            for found in self.slices.values()
            for endpoint in found.endpoints or ()
            if endpoint.conditions.ready
        }


def has_old_pods(seen: Seen) -> bool:
    names = {e.target_ref.name for found in seen.slices.values() for e in found.endpoints or () if e.target_ref}
    return any(name.startswith("web-") for name in names)


@asynccontextmanager
async def watching(world: World) -> AsyncIterator[Seen]:
    seen = Seen()
    selector = f"{SERVICE_NAME}=web,{OF_OURS}"
    listed = await world.client.list(ENDPOINT_SLICES, world.namespace, selector=selector)

    async def watch() -> None:
        events = world.client.watch(
            ENDPOINT_SLICES, world.namespace, selector=selector, resource_version=listed.resource_version
        )
        async for event in events:
            if event.type in {EventType.ADDED, EventType.MODIFIED, EventType.DELETED}:
                assert isinstance(event.object, EndpointSlice)
                seen.note(event.type, event.object)

    task = asyncio.create_task(watch())
    yield seen
    task.cancel()
