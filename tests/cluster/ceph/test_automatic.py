"""Domains that fail without anybody at hand: the takeover map proposed, written and undone, on a real API server."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.ceph.cluster import CONFIG, Bed
from support.waiting import eventually
from zonewise.ceph.controller.auto_takeover import AutoTakeover, AutoTakeoverConfig
from zonewise.ceph.decide.outage import OutageTiming
from zonewise.ceph.decide.takeover import AUTOMATIC
from zonewise.kube.client.client import Client
from zonewise.kube.controller.recorder import Recorder
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.errors import NotFound
from zonewise.objects import CONFIG_MAPS, EVENTS, Key

QUICK = OutageTiming(takeover_after_seconds=0.5, giveback_after_seconds=0.5)


@pytest.fixture
async def bed(client: Client, namespace: str) -> AsyncIterator[Bed]:
    made = Bed(client, namespace)
    yield made
    await made.remove()


@asynccontextmanager
async def leader(bed: Bed, *, writes: bool) -> AsyncIterator[None]:
    settings = AutoTakeoverConfig(
        config_map=Key(bed.namespace, CONFIG), labels=bed.labels, watched="zone", patience=QUICK, writes=writes
    )
    caches = Caches(bed.client)
    async with Recorder(bed.client, "zonewise.dev/csi", "test") as recorder:
        automatic = AutoTakeover(bed.client, caches, recorder, settings)
        async with caches:
            await caches.wait_synced()
            running = asyncio.create_task(automatic.run())
            try:
                yield
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


async def entries(bed: Bed) -> dict[str, Any]:
    try:
        found = await bed.client.get(CONFIG_MAPS, CONFIG, bed.namespace)
    except NotFound:
        return {}
    said: dict[str, Any] = json.loads(found.data["config.json"])["topology-takeover"]
    return said


async def notes(bed: Bed) -> dict[str, str]:
    """By reason, of the config map."""
    return {event.reason: event.note for event in (await bed.client.list(EVENTS, bed.namespace)).items}


async def told(bed: Bed, reason: str, *words: str) -> bool:
    note = (await notes(bed)).get(reason, "")
    return bool(note) and all(word in note for word in words)


async def test_a_failed_zone_is_taken_over_and_given_back_without_a_person(bed: Bed) -> None:
    failing = await bed.node("zone-a")
    for zone in ("zone-b", "zone-c"):
        await bed.node(zone)
    await bed.node("zone-far", region="us")
    async with leader(bed, writes=True):
        await bed.fail(failing)
        await eventually(lambda: entries(bed))
        assert await entries(bed) == {"zone=zone-a": ["zone=zone-b", "zone=zone-c"]}, "those of its region"
        found = await bed.client.get(CONFIG_MAPS, CONFIG, bed.namespace)
        assert json.loads(found.metadata.annotations[AUTOMATIC]) == ["zone=zone-a"]
        await eventually(lambda: told(bed, "DomainTakenOver", "zone=zone-a failed", "zone=zone-b, zone=zone-c"))

        await bed.take_over({"zone=zone-a": ["zone=zone-b"], "zone=zone-c": ["all"]})  # by a person, zone-c works
        await eventually(lambda: told(bed, "GivebackProposed", "zone=zone-c", "zonewise csi giveback zone=zone-c"))
        await bed.recover(failing)
        await eventually(lambda: told(bed, "DomainGivenBack", "zone=zone-a is back"))
        assert await entries(bed) == {"zone=zone-c": ["all"]}, "what a person wrote stays"
        found = await bed.client.get(CONFIG_MAPS, CONFIG, bed.namespace)
        assert json.loads(found.metadata.annotations[AUTOMATIC]) == []


async def test_by_default_a_takeover_is_only_proposed(bed: Bed) -> None:
    failing = await bed.node("zone-a")
    await bed.node("zone-b")
    async with leader(bed, writes=False):
        await bed.take_over("{")
        await eventually(lambda: told(bed, "TakeoverMapInvalid", "config.json is no JSON"))
        await bed.take_over({"zone=zone-b": ["zone-x"]})
        await eventually(lambda: told(bed, "TakeoverDomainUnknown", "zone-x"))
        await bed.fail(failing)
        await eventually(lambda: told(bed, "TakeoverProposed", "zonewise csi takeover zone=zone-a zone=zone-b"))
        assert await entries(bed) == {"zone=zone-b": ["zone-x"]}
