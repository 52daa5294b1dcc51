"""The slice controller under faults: slices end as decided, none orphaned, none lost, no Service ever left bare."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from random import Random

import pytest

from support.slices.churn import Churn, Observer
from support.slices.cluster import ControllerProcess, World, running, settled
from support.waiting import eventually
from zonewise.api.names import SAME_ZONE, TOPOLOGY_KEYS, TOPOLOGY_MODE
from zonewise.kube.wire.errors import Conflict, NotFound
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.objects import ENDPOINT_SLICES, SERVICES
from zonewise.routing.tuning import TUNING_ANNOTATIONS

pytestmark = [pytest.mark.xdist_group("slice-faults"), pytest.mark.timeout(1800)]

LONG = os.environ.get("ZONEWISE_FAULTS") == "long"
KILLS = 100 if LONG else 2
STALL_SECONDS = 30.0 if LONG else 3.0
RESTARTS = 5 if LONG else 0
RECREATIONS = 50 if LONG else 8
FOREIGN_EDITS = 500 if LONG else 60


@asynccontextmanager
async def process(plane: ControlPlane, *arguments: str) -> AsyncIterator[ControllerProcess]:
    running = ControllerProcess(plane, *arguments)
    try:
        yield running
    finally:
        await asyncio.to_thread(running.remove)


async def test_killed_at_any_moment(breakable: ControlPlane, world: World, churn: Churn, observer: Observer) -> None:
    random = Random(7)
    async with churn.going_on():
        for _ in range(KILLS):
            async with process(breakable, "--no-leader-elect") as victim:
                await asyncio.to_thread(victim.line, "controller started")
                await asyncio.sleep(random.random())
                victim.signal(signal.SIGKILL)
    async with process(breakable, "--no-leader-elect"):
        await settled(world)


async def test_the_api_server_restarts(breakable: ControlPlane, world: World, churn: Churn, observer: Observer) -> None:
    """Also without its history: then every watch ends with a 410, and what happened is only in the next list."""
    async with process(breakable, "--lease-namespace", world.namespace) as controller:
        await settled(world)
        for restart in (breakable.forget_history, *(breakable.restart_apiserver, breakable.forget_history) * RESTARTS):
            async with churn.going_on():
                await asyncio.to_thread(restart)
            await settled(world)
        assert controller.process.poll() is None


async def test_etcd_stalls(breakable: ControlPlane, world: World, churn: Churn, observer: Observer) -> None:
    """For longer than the lease lasts, in the long form: then the lease is lost, and taken again."""
    async with process(breakable, "--lease-namespace", world.namespace, "--lease-seconds", "6") as controller:
        await settled(world)
        async with churn.going_on():
            breakable.pause(Program.ETCD)
            try:
                await asyncio.sleep(STALL_SECONDS)
            finally:
                breakable.resume(Program.ETCD)
            await asyncio.sleep(1)
        await settled(world)
        assert controller.process.poll() is None


async def test_others_edit_the_same_slices(world: World, churn: Churn, observer: Observer) -> None:
    """Slices without an anchor's endpoint are deleted, too; the others only get what does not belong there."""
    async with running(world.client):
        await settled(world)
        async with churn.going_on():
            for number in range(FOREIGN_EDITS):
                await _edit(world, churn, number)
        await settled(world)


async def _edit(world: World, churn: Churn, number: int) -> None:
    for found in await world.slices(churn.services[number % len(churn.services)]):
        endpoints = found.endpoints or ()
        anchored = any("anchor" in endpoint.target_ref.name for endpoint in endpoints if endpoint.target_ref)
        with suppress(NotFound, Conflict):
            if anchored or number % 3:
                patch = {"metadata": {"labels": {"foreign": str(number)}, "annotations": {"foreign": "yes"}}}
                await world.client.patch(ENDPOINT_SLICES, found.metadata.name, MergePatch(patch), world.namespace)
            else:
                await world.client.delete(ENDPOINT_SLICES, found.metadata.name, world.namespace)


async def test_a_service_is_recreated_under_its_name(world: World, churn: Churn, observer: Observer) -> None:
    """The slices of the one that went are collected as garbage or removed by us; those of the new one stay."""
    recreated = churn.services.pop()
    observer.exempt.add(recreated)
    async with running(world.client), churn.going_on():
        for number in range(RECREATIONS):
            await world.client.delete(SERVICES, recreated, world.namespace)
            await world.service(recreated, selector={"app": recreated}, labels={"life": str(number)})
            await asyncio.sleep(0.1 * (number % 3))
        churn.services.append(recreated)
    async with running(world.client):
        truth = await settled(world)
    (service,) = [each for each in truth.services if each.metadata.name == recreated]
    assert all(seen.metadata.owner_references[0].uid == service.metadata.uid for seen in truth.slices_of(service))


async def test_two_controllers_share_one_lease(
    breakable: ControlPlane, world: World, churn: Churn, observer: Observer
) -> None:
    """The second takes over from one that is killed, and from one that was stopped and wakes up again."""
    lease = ("--lease-namespace", world.namespace, "--lease-seconds", "3")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(process(breakable, *lease))
        await asyncio.to_thread(first.line, "leadership gained")
        second = await stack.enter_async_context(process(breakable, *lease))
        async with churn.going_on():
            await asyncio.to_thread(second.line, "another process leads")
            first.signal(signal.SIGSTOP)
            await asyncio.to_thread(second.line, "leadership gained")
            first.signal(signal.SIGCONT)
            await asyncio.to_thread(first.line, "leadership lost")
            second.signal(signal.SIGKILL)
            await eventually(lambda: first.events.count("leadership gained") == 2, "the first leads again")
        await settled(world)


BAD_VALUES = {
    "wrong-case": {SAME_ZONE: "require"},
    "broken-json": {TOPOLOGY_KEYS: '["topology.kubernetes.io/zone", "*"'},
    "seventeen": {TOPOLOGY_KEYS: str([f"example.com/k{number}" for number in range(17)]).replace("'", '"')},
    "twice": {TOPOLOGY_KEYS: '["a", "a"]'},
    "star-first": {TOPOLOGY_KEYS: '["*", "kubernetes.io/hostname"]'},
    "negative": {SAME_ZONE: "Prefer", "zonewise.dev/starting-threshold": "-3"},
    "padding": {SAME_ZONE: "Prefer", "zonewise.dev/starting-threshold": "3", "zonewise.dev/padding": "9"},
    "mode": {TOPOLOGY_MODE: "aUto"},
    "huge": {TOPOLOGY_KEYS: "x" * (255 * 1024)},
}


async def test_bad_values_are_told_and_change_nothing(breakable: ControlPlane, world: World) -> None:
    """The API takes 256 KiB of annotations. Each gets an event, the default, and no write once that is done."""
    assert "zonewise.dev/padding" in TUNING_ANNOTATIONS
    await world.spread("web", {"zone-a": 2, "zone-b": 1})
    for name, annotations in BAD_VALUES.items():
        await world.service(name, selector={"app": "web"}, annotations=annotations)
    async with process(breakable, "--no-leader-elect") as controller:
        await settled(world)
        for name in BAD_VALUES:
            await eventually(lambda name=name: world.events(name), f"an event for {name}")  # type: ignore[misc]
        before = await _versions(world)
        await asyncio.sleep(2)
        assert await _versions(world) == before
        assert not [line for line in controller.lines if line.get("level") == "error"]
    for name in BAD_VALUES.keys() - {"negative", "padding"}:
        assert set((await world.hints(name)).values()) == {()}, name


async def _versions(world: World) -> dict[str, str]:
    slices = await world.client.list(ENDPOINT_SLICES, world.namespace)
    services = await world.client.list(SERVICES, world.namespace)
    return {seen.metadata.name: seen.metadata.resource_version for seen in (*slices.items, *services.items)}
