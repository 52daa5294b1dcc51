"""Automatic takeovers on a real API server: the takeover map proposed, written and given back."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.ceph.cluster import CONFIG, CsiCluster
from support.waiting import eventually
from zonewise.ceph.controller.auto_takeover import AutoTakeover, AutoTakeoverConfig
from zonewise.ceph.decide.outage import OutageTiming
from zonewise.ceph.decide.takeover import AUTOMATIC
from zonewise.kube.client.client import Client
from zonewise.kube.controller.recorder import Recorder
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.errors import NotFound
from zonewise.objects import CONFIG_MAPS, EVENTS, Key

pytestmark = pytest.mark.xdist_group("ceph-cluster")  # they label nodes of the shared cluster

QUICK = OutageTiming(takeover_after_seconds=0.5, giveback_after_seconds=0.5)


@pytest.fixture
async def kube(client: Client, namespace: str) -> AsyncIterator[CsiCluster]:
    created = CsiCluster(client, namespace)
    yield created
    await created.remove()


@asynccontextmanager
async def leader(kube: CsiCluster, *, writes: bool) -> AsyncIterator[None]:
    settings = AutoTakeoverConfig(
        config_map=Key(kube.namespace, CONFIG), labels=kube.labels, watched="zone", timing=QUICK, writes=writes
    )
    caches = Caches(kube.client)
    async with Recorder(kube.client, "zonewise.dev/csi", "test") as recorder:
        automatic = AutoTakeover(kube.client, caches, recorder, settings)
        async with caches:
            await caches.wait_synced()
            running = asyncio.create_task(automatic.run())
            try:
                yield
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


async def entries(kube: CsiCluster) -> dict[str, Any]:
    try:
        config_map = await kube.client.get(CONFIG_MAPS, CONFIG, kube.namespace)
    except NotFound:
        return {}
    takeovers: dict[str, Any] = json.loads(config_map.data["config.json"])["topology-takeover"]
    return takeovers


async def notes(kube: CsiCluster) -> dict[str, str]:
    """Notes of events, by reason."""
    return {event.reason: event.note for event in (await kube.client.list(EVENTS, kube.namespace)).items}


async def has_event(kube: CsiCluster, reason: str, *words: str) -> bool:
    note = (await notes(kube)).get(reason, "")
    return bool(note) and all(word in note for word in words)


async def test_failed_zone_is_taken_over_and_given_back(kube: CsiCluster) -> None:
    failing = await kube.node("zone-a")
    for zone in ("zone-b", "zone-c"):
        await kube.node(zone)
    await kube.node("zone-far", region="us")
    async with leader(kube, writes=True):
        await kube.fail(failing)
        await eventually(lambda: entries(kube))
        assert await entries(kube) == {"zone=zone-a": ["zone=zone-b", "zone=zone-c"]}, "domains of the same region"
        config_map = await kube.client.get(CONFIG_MAPS, CONFIG, kube.namespace)
        assert json.loads(config_map.metadata.annotations[AUTOMATIC]) == ["zone=zone-a"]
        await eventually(lambda: has_event(kube, "DomainTakenOver", "zone=zone-a failed", "zone=zone-b, zone=zone-c"))

        await kube.take_over({"zone=zone-a": ["zone=zone-b"], "zone=zone-c": ["all"]})  # by hand, although zone-c is up
        await eventually(
            lambda: has_event(kube, "GivebackProposed", "zone=zone-c", "zonewise csi giveback zone=zone-c")
        )
        await kube.recover(failing)
        await eventually(lambda: has_event(kube, "DomainGivenBack", "zone=zone-a is back"))
        assert await entries(kube) == {"zone=zone-c": ["all"]}, "entries written by hand stay"
        config_map = await kube.client.get(CONFIG_MAPS, CONFIG, kube.namespace)
        assert json.loads(config_map.metadata.annotations[AUTOMATIC]) == []


async def test_takeover_is_only_proposed_without_writes(kube: CsiCluster) -> None:
    failing = await kube.node("zone-a")
    await kube.node("zone-b")
    async with leader(kube, writes=False):
        await kube.take_over("{")
        await eventually(lambda: has_event(kube, "TakeoverMapInvalid", "config.json is not valid JSON"))
        await kube.take_over({"zone=zone-b": ["zone-x"]})
        await eventually(lambda: has_event(kube, "TakeoverDomainUnknown", "zone-x"))
        await kube.fail(failing)
        await eventually(lambda: has_event(kube, "TakeoverProposed", "zonewise csi takeover zone=zone-a zone=zone-b"))
        assert await entries(kube) == {"zone=zone-b": ["zone-x"]}
