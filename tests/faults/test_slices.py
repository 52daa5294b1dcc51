"""The slice controller under faults: slices end as decided, none orphaned or lost, no Service ever without endpoints."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from random import Random

import msgspec
import pytest

from support.clock import SHIFTS, WallClock
from support.disruption.processes import Balancer, uninstall
from support.fault_report import Report
from support.slices.churn import Churn, Observer
from support.slices.cluster import ClusterNamespace, ControllerProcess, Truth, running, settled
from support.slices.overlay import OverlayNamespace, WebhookProcess
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
SHIFTED_CHANGES = 200 if LONG else 20
HOLES, HOLE_CHANGES = (5, 100) if LONG else (1, 15)


@asynccontextmanager
async def process(
    plane: ControlPlane, *arguments: str, environ: Mapping[str, str] = {}
) -> AsyncIterator[ControllerProcess]:
    running = ControllerProcess(plane, *arguments, environ=environ)
    try:
        yield running
    finally:
        await asyncio.to_thread(running.remove)


async def test_killed_at_any_moment(
    breakable: ControlPlane, ns: ClusterNamespace, churn: Churn, observer: Observer, report: Report
) -> None:
    random = Random(7)
    async with churn.going_on():
        for _ in range(KILLS):
            async with process(breakable, "--no-leader-elect") as victim:
                await asyncio.to_thread(victim.line, "controller started")
                await asyncio.sleep(random.random())
                victim.signal(signal.SIGKILL)
    async with process(breakable, "--no-leader-elect"):
        await settled(ns)
    report(**observer.outcome("killed", KILLS))


async def test_the_api_server_restarts(
    breakable: ControlPlane, ns: ClusterNamespace, churn: Churn, observer: Observer, report: Report
) -> None:
    """Also without its history: then every watch ends with 410, and only the next list has the changes."""
    async with process(breakable, "--lease-namespace", ns.namespace) as controller:
        await settled(ns)
        for restart in (breakable.forget_history, *(breakable.restart_apiserver, breakable.forget_history) * RESTARTS):
            async with churn.going_on():
                await asyncio.to_thread(restart)
            await settled(ns)
        assert controller.process.poll() is None
    report(**observer.outcome("API server restarted", 1 + 2 * RESTARTS))


async def test_etcd_stalls(
    breakable: ControlPlane, ns: ClusterNamespace, churn: Churn, observer: Observer, report: Report
) -> None:
    """In the long form longer than the lease lasts: the lease is lost and acquired again."""
    async with process(breakable, "--lease-namespace", ns.namespace, "--lease-seconds", "6") as controller:
        await settled(ns)
        async with churn.going_on():
            breakable.pause(Program.ETCD)
            try:
                await asyncio.sleep(STALL_SECONDS)
            finally:
                breakable.resume(Program.ETCD)
            await asyncio.sleep(1)
        await settled(ns)
        assert controller.process.poll() is None
    report(**observer.outcome(f"etcd stopped for {STALL_SECONDS:g} s", 1))


async def test_other_writers_edit_the_same_slices(
    ns: ClusterNamespace, churn: Churn, observer: Observer, report: Report
) -> None:
    """Slices without an anchor endpoint are also deleted; the others get foreign labels and annotations."""
    async with running(ns.client):
        await settled(ns)
        async with churn.going_on():
            for number in range(FOREIGN_EDITS):
                await _edit(ns, churn, number)
        await settled(ns)
    report(**observer.outcome("slices changed by others", FOREIGN_EDITS))


async def _edit(ns: ClusterNamespace, churn: Churn, number: int) -> None:
    for endpoint_slice in await ns.slices(churn.services[number % len(churn.services)]):
        endpoints = endpoint_slice.endpoints or ()
        anchored = any("anchor" in endpoint.target_ref.name for endpoint in endpoints if endpoint.target_ref)
        with suppress(NotFound, Conflict):
            if anchored or number % 3:
                patch = {"metadata": {"labels": {"foreign": str(number)}, "annotations": {"foreign": "yes"}}}
                await ns.client.patch(ENDPOINT_SLICES, endpoint_slice.metadata.name, MergePatch(patch), ns.namespace)
            else:
                await ns.client.delete(ENDPOINT_SLICES, endpoint_slice.metadata.name, ns.namespace)


async def test_a_service_is_recreated_under_its_name(
    ns: ClusterNamespace, churn: Churn, observer: Observer, report: Report
) -> None:
    """Slices of the old Service are garbage collected or deleted by the controller; those of the new one stay."""
    recreated = churn.services.pop()
    observer.exempt.add(recreated)
    async with running(ns.client), churn.going_on():
        for number in range(RECREATIONS):
            await ns.client.delete(SERVICES, recreated, ns.namespace)
            await ns.service(recreated, selector={"app": recreated}, labels={"life": str(number)})
            await asyncio.sleep(0.1 * (number % 3))
        churn.services.append(recreated)
    async with running(ns.client):
        truth = await settled(ns)
    report(**observer.outcome("Service recreated", RECREATIONS))
    (service,) = [candidate for candidate in truth.services if candidate.metadata.name == recreated]
    assert all(
        endpoint_slice.metadata.owner_references[0].uid == service.metadata.uid
        for endpoint_slice in truth.slices_of(service)
    )


async def test_two_controllers_share_one_lease(
    breakable: ControlPlane, ns: ClusterNamespace, churn: Churn, observer: Observer, report: Report
) -> None:
    """Each takes over from the other, which is killed, or stopped and resumed."""
    lease = ("--lease-namespace", ns.namespace, "--lease-seconds", "3")
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
        await settled(ns)
    report(**observer.outcome("leader stopped past its lease, then killed", 1))


async def test_the_clock_of_the_leader_jumps(
    breakable: ControlPlane,
    ns: ClusterNamespace,
    churn: Churn,
    observer: Observer,
    wall_clock: WallClock,
    report: Report,
) -> None:
    """It goes on leading, though another process waits for its lease to end."""
    lease = ("--lease-namespace", ns.namespace, "--lease-seconds", "6")
    async with AsyncExitStack() as stack:
        stack.callback(wall_clock.shift, 0)
        leader = await stack.enter_async_context(process(breakable, *lease, environ=wall_clock.environ))
        await asyncio.to_thread(leader.line, "leadership gained")
        other = await stack.enter_async_context(process(breakable, *lease))
        await asyncio.to_thread(other.line, "another process leads")
        for shift in SHIFTS:
            wall_clock.shift(shift)
            async with churn.going_on():
                enough = churn.changes + SHIFTED_CHANGES
                await eventually(lambda enough=enough: churn.changes >= enough, "changes go on")
            await settled(ns)
        assert "leadership lost" not in leader.events
        assert "leadership gained" not in other.events
    report(**observer.outcome("clock of the leader set an hour and a day forward and back", len(SHIFTS)))


@asynccontextmanager
async def stock_controller(plane: ControlPlane) -> AsyncIterator[None]:
    """With the stock EndpointSlice controller, whose slices the overlay changes."""
    without = plane.settings
    plane.settings = msgspec.structs.replace(without, controllers=f"{without.controllers},endpointslice-controller")
    await asyncio.to_thread(plane.restart, Program.CONTROLLER_MANAGER, kill=True)
    try:
        yield
    finally:
        plane.settings = without
        await asyncio.to_thread(plane.restart, Program.CONTROLLER_MANAGER, kill=True)


async def has_all_endpoints(ns: ClusterNamespace) -> bool:
    truth = await Truth.read(ns)
    await asyncio.sleep(0.1)
    return all(not list(truth.wrong_endpoints(service)) for service in truth.services)


async def test_slices_are_written_while_the_overlay_webhook_does_not_answer(
    breakable: ControlPlane, ns: ClusterNamespace, churn: Churn, observer: Observer, report: Report
) -> None:
    """Without its hints until it answers again; connections are accepted, and nothing comes back."""
    overlaid = OverlayNamespace(ns.client, ns.namespace)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(stock_controller(breakable))
        balancer = await stack.enter_async_context(Balancer())
        webhook = await asyncio.to_thread(WebhookProcess, breakable, None, balancer.port)
        stack.push_async_callback(asyncio.to_thread, webhook.stop)
        stack.push_async_callback(uninstall, ns.client)
        balancer.backends[0] = webhook.port
        await stack.enter_async_context(process(breakable, "--mode", "overlay", "--no-leader-elect"))
        for _ in range(HOLES):
            await eventually(lambda: has_all_endpoints(ns), "the stock controller's slices")
            await eventually(overlaid.is_as_decided, "hints as decided")
            balancer.go_silent()
            await churn.some(HOLE_CHANGES)
            await eventually(lambda: has_all_endpoints(ns), "slices are written without the webhook")
            balancer.heal()
        await eventually(overlaid.is_as_decided, "hints as decided, once the webhook answers")
    report(**observer.outcome("overlay webhook black-holed", HOLES) | {"component": "slice webhook"})


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


async def test_bad_values_make_events_and_change_nothing(
    breakable: ControlPlane, ns: ClusterNamespace, report: Report
) -> None:
    """The API server accepts 256 KiB of annotations. Each makes an event, applies the default, and no further write."""
    assert "zonewise.dev/padding" in TUNING_ANNOTATIONS
    await ns.spread("web", {"zone-a": 2, "zone-b": 1})
    for name, annotations in BAD_VALUES.items():
        await ns.service(name, selector={"app": "web"}, annotations=annotations)
    async with process(breakable, "--no-leader-elect") as controller:
        await settled(ns)
        for name in BAD_VALUES:
            await eventually(lambda name=name: ns.events(name), f"an event for {name}")  # type: ignore[misc]
        before = await _versions(ns)
        await asyncio.sleep(2)
        assert await _versions(ns) == before
        assert not [line for line in controller.lines if line.get("level") == "error"]
    for name in BAD_VALUES.keys() - {"negative", "padding"}:
        assert set((await ns.hints(name)).values()) == {()}, name
    row = {"component": "slice controller", "fault": "annotations that can't be read"}
    report(**row, rounds=1, requests=len(BAD_VALUES), what="Services")


async def _versions(ns: ClusterNamespace) -> dict[str, str]:
    slices = await ns.client.list(ENDPOINT_SLICES, ns.namespace)
    services = await ns.client.list(SERVICES, ns.namespace)
    return {stored.metadata.name: stored.metadata.resource_version for stored in (*slices.items, *services.items)}  # type: ignore[attr-defined]
