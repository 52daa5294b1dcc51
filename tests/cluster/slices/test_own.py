"""The controller on a real API server: correct slices for every policy, family and port, and no needless writes."""

import asyncio
import signal
from collections import Counter

import pytest
from prometheus_client import REGISTRY, generate_latest

from support.slices.cluster import ClusterNamespace, ControllerProcess, running, settled
from support.waiting import eventually
from zonewise.api.names import CONSUMER, NO_NODE, SAME_NODE, SAME_ZONE, TOPOLOGY_KEYS, TOPOLOGY_MODE
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
    return {endpoint_slice.metadata.name: endpoint_slice.metadata.resource_version for endpoint_slice in slices}


async def test_pods_are_added_to_slices_and_removed(ns: ClusterNamespace) -> None:
    await ns.service("web", labels={"team": "blue"})
    async with running(ns.client):
        await ns.pod("one", {"app": "web"}, "zone-a-0")
        await ns.pod("two", {"app": "web"}, "zone-b-0", ready=False)
        await ns.pod("other", {"app": "else"}, "zone-b-0")
        await settled(ns)
        await ns.pod_status("two", ready=True)
        await ns.delete_pod("one")
        await settled(ns)
    (endpoint_slice,) = await ns.slices("web")
    (endpoint,) = endpoint_slice.endpoints or ()
    assert (endpoint.zone, endpoint.node_name, endpoint.conditions.ready) == ("zone-b", "zone-b-0", True)
    assert endpoint_slice.metadata.labels["team"] == "blue"


async def test_every_policy_is_written(ns: ClusterNamespace) -> None:
    """Each as a Service of its own, then all changed to another one."""
    policies = {
        "require": {"annotations": {SAME_ZONE: "Require"}},
        "prefer": {"annotations": {SAME_ZONE: "Prefer"}},
        "balanced": {"annotations": {SAME_ZONE: "Balanced"}},
        "hints": {"annotations": {TOPOLOGY_MODE: "Auto"}},
        "keys": {"annotations": {TOPOLOGY_KEYS: '["kubernetes.io/hostname", "topology.kubernetes.io/zone", "*"]'}},
        "close": {"trafficDistribution": "PreferClose"},
        "zone": {"trafficDistribution": "PreferSameZone"},
        "node": {"trafficDistribution": "PreferSameNode"},
    }
    await ns.spread("web", MANY)
    for name, options in policies.items():
        await ns.service(name, selector={"app": "web"}, **options)
    async with running(ns.client):
        await settled(ns)
        for name in ("require", "prefer"):
            slices = await ns.slices(name)
            assert {endpoint_slice.metadata.labels[CONSUMER] for endpoint_slice in slices} == set(MANY), name
        for name in ("hints", "close", "zone", "prefer", "require"):
            hints = await ns.hints(name)
            assert {pod: (f"zone-{pod[9]}",) for pod in hints} == hints, name
        assert set((await ns.hints("balanced")).values()) == {()}
        for name in policies:
            patch = MergePatch({"metadata": {"annotations": {SAME_ZONE: "Require", TOPOLOGY_KEYS: None}}})
            await ns.client.patch(SERVICES, name, patch, ns.namespace)
        await settled(ns)
    for name in policies:
        assert {endpoint_slice.metadata.labels.get(CONSUMER) for endpoint_slice in await ns.slices(name)} == set(
            MANY
        ), name


async def test_hints_for_nodes_are_stored(ns: ClusterNamespace) -> None:
    """One endpoint in zone-a would get nearly four times an even share, so its node does not keep to it."""
    await ns.spread("web", {"zone-a": 1, "zone-b": 5, "zone-c": 5})
    await ns.service("web", annotations={SAME_NODE: "Prefer"})
    async with running(ns.client):
        await settled(ns)
    endpoints = [endpoint for item in await ns.slices("web") for endpoint in item.endpoints or ()]
    hinted = Counter(hint.name for endpoint in endpoints if endpoint.hints for hint in endpoint.hints.for_nodes)
    assert hinted == {NO_NODE: 1, "zone-b-0": 5, "zone-c-0": 5}


async def test_strict_hints_match_stock_hints(ns: ClusterNamespace) -> None:
    await ns.spread("web", EVEN)
    await ns.service("web", annotations={TOPOLOGY_MODE: "Auto"})
    async with running(ns.client, SlicesConfig(hints=HintsForm.STRICT)):
        await settled(ns, HintsForm.STRICT)
        assert await ns.hints("web") == OWN_ZONE
        await ns.delete_pod("web-zone-a-0")  # five endpoints over three equal zones are refused
        await settled(ns, HintsForm.STRICT)
        assert set((await ns.hints("web")).values()) == {()}


async def test_dual_stack_with_named_ports(ns: ClusterNamespace) -> None:
    ports = ({"name": "http", "port": 80, "targetPort": "web"},)
    both = {"ipFamilyPolicy": "RequireDualStack"}
    families = ("IPv4", "IPv6")
    await ns.service("web", ports=ports, **both)
    for name, number in (("old", 8080), ("new", 9090)):
        named = [{"name": "web", "containerPort": number}]
        await ns.pod(name, {"app": "web"}, "zone-a-0", ports=named, families=families)
    async with running(ns.client):
        await settled(ns)
    families_and_ports = {
        (endpoint_slice.address_type, endpoint_slice.ports[0].port)
        for endpoint_slice in await ns.slices("web")
        if endpoint_slice.ports
    }
    assert families_and_ports == {(family, number) for family in families for number in (8080, 9090)}


async def test_node_changes_update_slices(ns: ClusterNamespace) -> None:
    """Labels, CPU and drains of nodes, for Services with a policy; zones also for those without one."""
    await ns.node("moving", "zone-a")
    await ns.spread("web", EVEN)
    await ns.service("web", annotations={TOPOLOGY_MODE: "Auto"})
    await ns.pod("plain", {"app": "plain"}, "moving")
    await ns.service("plain")
    async with running(ns.client):
        await settled(ns)
        await ns.node("moving", "zone-b")
        await settled(ns)
        (endpoint,) = (await ns.slices("plain"))[0].endpoints or ()
        assert endpoint.zone == "zone-b"
        drained = MergePatch({"metadata": {"annotations": {DRAIN_ZONE: "zone-c"}}})
        await ns.client.patch(NODES, "zone-c-0", drained)
        truth = await settled(ns)
        assert any(truth.plan(service).decisions["IPv4"].drained for service in truth.services)
        healed = MergePatch({"metadata": {"annotations": {DRAIN_ZONE: None}}})
        await ns.client.patch(NODES, "zone-c-0", healed)
        await settled(ns)
        assert {zone for hints in (await ns.hints("web")).values() for zone in hints} == set(EVEN)
        await ns.client.delete(NODES, "moving")
        await settled(ns)
    assert (await ns.slices("plain"))[0].endpoints is None


async def test_namespace_drains_its_own_services(ns: ClusterNamespace) -> None:
    await ns.spread("web", EVEN)
    await ns.service("web")
    async with running(ns.client):
        await settled(ns)
        assert set((await ns.hints("web")).values()) == {()}
        patch = MergePatch({"metadata": {"annotations": {DRAIN_ZONE: "zone-a"}}})
        await ns.client.patch(NAMESPACES, ns.namespace, patch)
        await eventually(lambda: _is_drained(ns), "endpoints of zone-a hinted for no zone")
        await ns.client.patch(NAMESPACES, ns.namespace, MergePatch({"metadata": {"annotations": {DRAIN_ZONE: None}}}))
        await settled(ns)


async def _is_drained(ns: ClusterNamespace) -> bool:
    hints = await ns.hints("web")
    return all(("zone-a" in pod) == ("zone-a" not in zones and bool(zones)) for pod, zones in hints.items())


async def test_foreign_changes_of_slices_are_reverted(ns: ClusterNamespace) -> None:
    await ns.spread("web", EVEN)
    await ns.service("web")
    await ns.service("lost")
    async with running(ns.client):
        await settled(ns)
        (endpoint_slice,) = await ns.slices("web")
        for patch in ({"endpoints": []}, {"metadata": {"labels": {"foreign": "yes"}}}, {"ports": []}):
            await ns.client.patch(ENDPOINT_SLICES, endpoint_slice.metadata.name, MergePatch(patch), ns.namespace)
            await settled(ns)
        await ns.client.delete(ENDPOINT_SLICES, (await ns.slices("lost"))[0].metadata.name, ns.namespace)
        await eventually(lambda: ns.slices("lost"), "the deleted slice created again")
        await settled(ns)
    assert [remaining.metadata.name for remaining in await ns.slices("web")] == [endpoint_slice.metadata.name]


async def test_unchanged_slices_are_not_written(ns: ClusterNamespace) -> None:
    """Neither after annotations, nor heartbeats, nor with a new controller."""
    await ns.spread("web", MANY)
    names = []
    for number, annotations in enumerate(({}, {SAME_ZONE: "Prefer"}, {SAME_ZONE: "Require"}, {TOPOLOGY_MODE: "Auto"})):
        names.append(f"web-{number}")
        await ns.service(names[-1], selector={"app": "web"}, annotations=annotations)
    async with running(ns.client):
        await settled(ns)
    before = [versions(await ns.slices(name)) for name in names]
    async with running(ns.client) as controller:
        for name in names:
            await ns.annotate(name, {"touched": "yes"})
        await ns.node_status("zone-a-0", cpu="4")
        await ns.service("later")
        await eventually(lambda: ns.slices("later"), "the slices of a later Service")
        await eventually(lambda: not len(controller._queue), "an empty queue")
    assert [versions(await ns.slices(name)) for name in names] == before


async def test_service_being_deleted_gets_no_new_slices(ns: ClusterNamespace) -> None:
    """A finalizer keeps it for a while; its namespace may be deleted too, and neither is an error."""
    await ns.pod("one", {"app": "going"}, "zone-a-0")
    await ns.service("going")
    finalizer = MergePatch({"metadata": {"finalizers": ["example.com/wait"]}})
    await ns.client.patch(SERVICES, "going", finalizer, ns.namespace)
    await ns.client.delete(SERVICES, "going", ns.namespace)
    await ns.service("doomed", selector={"app": "going"})
    await ns.client.delete(NAMESPACES, ns.namespace)
    failures = REGISTRY.get_sample_value("endpoint_slice_controller_syncs", {"result": "error"})
    async with running(ns.client) as controller:
        await eventually(lambda: not len(controller._queue), "an empty queue")
        await asyncio.sleep(0.2)
    assert await ns.slices("going") == []
    assert REGISTRY.get_sample_value("endpoint_slice_controller_syncs", {"result": "error"}) == failures


async def test_large_services_fill_several_slices(ns: ClusterNamespace) -> None:
    await ns.service("web")
    await ns.spread("web", {"zone-a": 11})
    async with running(ns.client, SlicesConfig(endpoints_per_slice=4)):
        await eventually(lambda: _sizes(ns, [3, 4, 4]), "three slices")
        await ns.delete_pod("web-zone-a-0")
        await ns.pod("more", {"app": "web"}, "zone-b-0")
        await eventually(lambda: _has(ns, "more"), "the new pod")
        assert sum(len(endpoint_slice.endpoints or ()) for endpoint_slice in await ns.slices("web")) == 11


async def _sizes(ns: ClusterNamespace, expected: list[int]) -> bool:
    return sorted(len(endpoint_slice.endpoints or ()) for endpoint_slice in await ns.slices("web")) == expected


async def _has(ns: ClusterNamespace, pod: str) -> bool:
    return pod in await ns.hints("web") and "web-zone-a-0" not in await ns.hints("web")


async def test_command_leads_writes_and_releases_the_lease(ns: ClusterNamespace, slice_plane: ControlPlane) -> None:
    await ns.spread("web", EVEN)
    await ns.service("web", annotations={SAME_ZONE: "prefer"})
    process = ControllerProcess(slice_plane, "--lease-namespace", ns.namespace)
    try:
        await asyncio.to_thread(process.wait_ready)
        await settled(ns)
        status, scraped = await asyncio.to_thread(process.probe, "/metrics")
        assert status == 200
        assert 'endpoint_slice_controller_changes{operation="create"}' in scraped
        await eventually(lambda: ns.events("web"), "an event about the value in lower case")
        process.signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.end) == 0
    finally:
        process.remove()
    assert process.events[-2:] == ["leadership released", "process ended"]
    lease = await ns.client.get(LEASES, "zonewise-endpointslices", ns.namespace)
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
