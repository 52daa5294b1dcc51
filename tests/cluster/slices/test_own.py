"""The controller against a real API server: the right slices for every policy, family and port, and no needless write."""

import asyncio
import signal

import pytest
from prometheus_client import REGISTRY, generate_latest

from support.slices.cluster import ControllerProcess, World, running, settled
from support.waiting import eventually
from zonewise.api.names import CONSUMER, SAME_ZONE, TOPOLOGY_KEYS, TOPOLOGY_MODE
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.objects import ENDPOINT_SLICES, LEASES, NAMESPACES, NODES, SERVICES, EndpointSlice
from zonewise.routing import DRAIN_ZONE, HintsForm
from zonewise.slices.controller import SlicesConfig

pytestmark = pytest.mark.xdist_group("slices")

EVEN = {"zone-a": 2, "zone-b": 2, "zone-c": 2}
MANY = {"zone-a": 4, "zone-b": 4, "zone-c": 4}
OWN_ZONE = {f"web-{zone}-{number}": (zone,) for zone in EVEN for number in range(2)}


def versions(slices: list[EndpointSlice]) -> dict[str, str]:
    return {seen.metadata.name: seen.metadata.resource_version for seen in slices}


async def test_pods_come_to_the_slices_and_go(world: World) -> None:
    await world.service("web", labels={"team": "blue"})
    async with running(world.client):
        await world.pod("one", {"app": "web"}, "zone-a-0")
        await world.pod("two", {"app": "web"}, "zone-b-0", ready=False)
        await world.pod("other", {"app": "else"}, "zone-b-0")
        await settled(world)
        await world.pod_status("two", ready=True)
        await world.delete_pod("one")
        await settled(world)
    (found,) = await world.slices("web")
    (endpoint,) = found.endpoints or ()
    assert (endpoint.zone, endpoint.node_name, endpoint.conditions.ready) == ("zone-b", "zone-b-0", True)
    assert found.metadata.labels["team"] == "blue"


async def test_every_policy_is_written(world: World) -> None:
    """Each as a Service of its own, then all changed to another one."""
    asked = {
        "require": {"annotations": {SAME_ZONE: "Require"}},
        "prefer": {"annotations": {SAME_ZONE: "Prefer"}},
        "balanced": {"annotations": {SAME_ZONE: "Balanced"}},
        "hints": {"annotations": {TOPOLOGY_MODE: "Auto"}},
        "keys": {"annotations": {TOPOLOGY_KEYS: '["kubernetes.io/hostname", "topology.kubernetes.io/zone", "*"]'}},
        "close": {"trafficDistribution": "PreferClose"},
        "zone": {"trafficDistribution": "PreferSameZone"},
        "node": {"trafficDistribution": "PreferSameNode"},
    }
    await world.spread("web", MANY)
    for name, options in asked.items():
        await world.service(name, selector={"app": "web"}, **options)
    async with running(world.client):
        await settled(world)
        for name in ("require", "prefer"):
            slices = await world.slices(name)
            assert {seen.metadata.labels[CONSUMER] for seen in slices} == set(MANY), name
        for name in ("hints", "close", "zone", "prefer", "require"):
            hints = await world.hints(name)
            assert {pod: (f"zone-{pod[9]}",) for pod in hints} == hints, name
        assert set((await world.hints("balanced")).values()) == {()}
        for name in asked:
            patch = MergePatch({"metadata": {"annotations": {SAME_ZONE: "Require", TOPOLOGY_KEYS: None}}})
            await world.client.patch(SERVICES, name, patch, world.namespace)
        await settled(world)
    for name in asked:
        assert {seen.metadata.labels.get(CONSUMER) for seen in await world.slices(name)} == set(MANY), name


async def test_strict_hints_are_the_stock_ones(world: World) -> None:
    await world.spread("web", EVEN)
    await world.service("web", annotations={TOPOLOGY_MODE: "Auto"})
    async with running(world.client, SlicesConfig(hints=HintsForm.STRICT)):
        await settled(world, HintsForm.STRICT)
        assert await world.hints("web") == OWN_ZONE
        await world.delete_pod("web-zone-a-0")  # five endpoints over three equal zones are refused
        await settled(world, HintsForm.STRICT)
        assert set((await world.hints("web")).values()) == {()}


async def test_two_families_and_ports_with_names(world: World) -> None:
    ports = ({"name": "http", "port": 80, "targetPort": "web"},)
    both = {"ipFamilyPolicy": "RequireDualStack"}
    families = ("IPv4", "IPv6")
    await world.service("web", ports=ports, **both)
    for name, number in (("old", 8080), ("new", 9090)):
        named = [{"name": "web", "containerPort": number}]
        await world.pod(name, {"app": "web"}, "zone-a-0", ports=named, families=families)
    async with running(world.client):
        await settled(world)
    found = {(seen.address_type, seen.ports[0].port) for seen in await world.slices("web") if seen.ports}
    assert found == {(family, number) for family in families for number in (8080, 9090)}


async def test_nodes_are_looked_at_again(world: World) -> None:
    """Their labels, their CPU, their drains: for Services that ask for something, and zones for those that don't."""
    await world.node("moving", "zone-a")
    await world.spread("web", EVEN)
    await world.service("web", annotations={TOPOLOGY_MODE: "Auto"})
    await world.pod("plain", {"app": "plain"}, "moving")
    await world.service("plain")
    async with running(world.client):
        await settled(world)
        await world.node("moving", "zone-b")
        await settled(world)
        (endpoint,) = (await world.slices("plain"))[0].endpoints or ()
        assert endpoint.zone == "zone-b"
        drained = MergePatch({"metadata": {"annotations": {DRAIN_ZONE: "zone-c"}}})
        await world.client.patch(NODES, "zone-c-0", drained)
        truth = await settled(world)
        assert any(truth.plan(service).decisions["IPv4"].drained for service in truth.services)
        healed = MergePatch({"metadata": {"annotations": {DRAIN_ZONE: None}}})
        await world.client.patch(NODES, "zone-c-0", healed)
        await settled(world)
        assert {zone for hints in (await world.hints("web")).values() for zone in hints} == set(EVEN)
        await world.client.delete(NODES, "moving")
        await settled(world)
    assert (await world.slices("plain"))[0].endpoints is None


async def test_a_namespace_drains_its_own_services(world: World) -> None:
    await world.spread("web", EVEN)
    await world.service("web")
    async with running(world.client):
        await settled(world)
        assert set((await world.hints("web")).values()) == {()}
        patch = MergePatch({"metadata": {"annotations": {DRAIN_ZONE: "zone-a"}}})
        await world.client.patch(NAMESPACES, world.namespace, patch)
        await eventually(lambda: _is_drained(world), "endpoints of zone-a hinted for nobody")
        await world.client.patch(
            NAMESPACES, world.namespace, MergePatch({"metadata": {"annotations": {DRAIN_ZONE: None}}})
        )
        await settled(world)


async def _is_drained(world: World) -> bool:
    hints = await world.hints("web")
    return all(("zone-a" in pod) == ("zone-a" not in zones and bool(zones)) for pod, zones in hints.items())


async def test_what_others_do_to_slices_is_undone(world: World) -> None:
    await world.spread("web", EVEN)
    await world.service("web")
    await world.service("lost")
    async with running(world.client):
        await settled(world)
        (found,) = await world.slices("web")
        for patch in ({"endpoints": []}, {"metadata": {"labels": {"foreign": "yes"}}}, {"ports": []}):
            await world.client.patch(ENDPOINT_SLICES, found.metadata.name, MergePatch(patch), world.namespace)
            await settled(world)
        await world.client.delete(ENDPOINT_SLICES, (await world.slices("lost"))[0].metadata.name, world.namespace)
        await eventually(lambda: world.slices("lost"), "the deleted slice made anew")
        await settled(world)
    assert [seen.metadata.name for seen in await world.slices("web")] == [found.metadata.name]


async def test_what_does_not_change_is_not_written(world: World) -> None:
    """Neither by touches, nor by heartbeats, nor by a new controller."""
    await world.spread("web", MANY)
    names = []
    for number, annotations in enumerate(({}, {SAME_ZONE: "Prefer"}, {SAME_ZONE: "Require"}, {TOPOLOGY_MODE: "Auto"})):
        names.append(f"web-{number}")
        await world.service(names[-1], selector={"app": "web"}, annotations=annotations)
    async with running(world.client):
        await settled(world)
    before = [versions(await world.slices(name)) for name in names]
    async with running(world.client) as controller:
        for name in names:
            await world.annotate(name, {"touched": "yes"})
        await world.node_status("zone-a-0", cpu="4")
        await world.service("later")
        await eventually(lambda: world.slices("later"), "a Service that came after all that")
        await eventually(lambda: not len(controller._queue), "an empty queue")
    assert [versions(await world.slices(name)) for name in names] == before


async def test_a_service_that_goes_gets_nothing_new(world: World) -> None:
    """With a finalizer it stays for a while; its namespace may go, too, and neither is an error."""
    await world.pod("one", {"app": "going"}, "zone-a-0")
    await world.service("going")
    finalizer = MergePatch({"metadata": {"finalizers": ["example.com/wait"]}})
    await world.client.patch(SERVICES, "going", finalizer, world.namespace)
    await world.client.delete(SERVICES, "going", world.namespace)
    await world.service("doomed", selector={"app": "going"})
    await world.client.delete(NAMESPACES, world.namespace)
    failures = REGISTRY.get_sample_value("endpoint_slice_controller_syncs", {"result": "error"})
    async with running(world.client) as controller:
        await eventually(lambda: not len(controller._queue), "an empty queue")
        await asyncio.sleep(0.2)
    assert await world.slices("going") == []
    assert REGISTRY.get_sample_value("endpoint_slice_controller_syncs", {"result": "error"}) == failures


async def test_large_services_fill_their_slices(world: World) -> None:
    await world.service("web")
    await world.spread("web", {"zone-a": 11})
    async with running(world.client, SlicesConfig(endpoints_per_slice=4)):
        await eventually(lambda: _sizes(world, [3, 4, 4]), "three slices")
        await world.delete_pod("web-zone-a-0")
        await world.pod("more", {"app": "web"}, "zone-b-0")
        await eventually(lambda: _has(world, "more"), "the new pod")
        assert sum(len(seen.endpoints or ()) for seen in await world.slices("web")) == 11


async def _sizes(world: World, wanted: list[int]) -> bool:
    return sorted(len(seen.endpoints or ()) for seen in await world.slices("web")) == wanted


async def _has(world: World, pod: str) -> bool:
    return pod in await world.hints("web") and "web-zone-a-0" not in await world.hints("web")


async def test_the_command_leads_writes_and_hands_over(world: World, slice_plane: ControlPlane) -> None:
    await world.spread("web", EVEN)
    await world.service("web", annotations={SAME_ZONE: "prefer"})
    process = ControllerProcess(slice_plane, "--lease-namespace", world.namespace)
    try:
        await asyncio.to_thread(process.wait_ready)
        await settled(world)
        status, scraped = await asyncio.to_thread(process.probe, "/metrics")
        assert status == 200
        assert 'endpoint_slice_controller_changes{operation="create"}' in scraped
        await eventually(lambda: world.events("web"), "an event about the value in lower case")
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.end) == 0
    finally:
        process.remove()
    assert process.events[-2:] == ["leadership released", "process ended"]
    lease = await world.client.get(LEASES, "zonewise-endpointslices", world.namespace)
    assert lease.spec.holder_identity is None


def test_metrics_have_the_stock_names() -> None:
    scraped = generate_latest().decode()
    for name in (
        "endpoints_added_per_sync_bucket",
        "endpoints_removed_per_sync_bucket",
        "endpoints_desired ",
        "num_endpoint_slices ",
        "desired_endpoint_slices ",
        'changes{operation="create"} ',
        'syncs{result="success"} ',
        "# TYPE endpoint_slice_controller_endpointslices_changed_per_sync histogram",
        'services_count_by_traffic_distribution{traffic_distribution="PreferClose"} ',
        "# TYPE endpoint_slice_controller_changes_endpointslices_per_sync histogram",
        "reallocated_endpoints_per_sync_bucket",
    ):
        assert (name if name.startswith("#") else f"endpoint_slice_controller_{name}") in scraped
