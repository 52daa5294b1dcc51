"""The overlay beside the real kube-controller-manager: hints stay in place, and there are no write loops."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from support.lab import shared_cluster
from support.slices.overlay import (
    CONTROLLERS,
    DUAL_STACK,
    LOOK_SECONDS,
    ZONES,
    OverlayNamespace,
    WebhookProcess,
    concurrently,
    hinted_zones,
    hints_by_address,
    make_nodes,
    node,
)
from support.waiting import eventually
from zonewise.api.names import (
    MANAGED_BY,
    OLD_HINTS,
    PADDING,
    SAME_ZONE,
    STARTING_THRESHOLD,
    STOCK_MANAGER,
    TOPOLOGY_KEYS,
)
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.controller.recorder import Recorder
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.objects import ENDPOINT_SLICES, NODES, SERVICE_NAME
from zonewise.objects.discovery import service_key
from zonewise.routing import DRAIN_ZONE
from zonewise.slices.informers import SliceInformers, SlicesMode
from zonewise.slices.overlay_controller import OverlayController
from zonewise.slices.reporter import RoutingReporter
from zonewise.topology import ZONE

pytestmark = pytest.mark.xdist_group("overlay")

AT_ONCE = {STARTING_THRESHOLD: "0", PADDING: "0"}
POLICIES = ({SAME_ZONE: "Require"}, {SAME_ZONE: "Prefer"} | AT_ONCE, {OLD_HINTS: "auto"})
SERVICES = 300
PODS_OF_GROUPS = (3, 3, 6)
"""A third of the Services get more endpoints than fit into one slice."""
REQUIRING = {f"s-{index}" for index in range(100)}


@pytest.fixture(scope="module")
def plane(run_directory: shared_cluster.Run) -> Iterator[ControlPlane]:
    """Runs the stock EndpointSlice controller, whose slices are overlaid."""
    plane = run_directory.private(
        programs=(Program.ETCD, Program.APISERVER, Program.CONTROLLER_MANAGER),
        controllers=CONTROLLERS,
        flags={
            Program.APISERVER: (DUAL_STACK,),
            Program.CONTROLLER_MANAGER: ("--max-endpoints-per-slice=6",),
        },
    )
    asyncio.run(_prepare(plane))
    yield plane
    run_directory.remove(plane)


async def _prepare(plane: ControlPlane) -> None:
    async with Client(kubeconfig.load(plane.kubeconfig)) as client:
        await make_nodes(client)


@pytest.fixture(scope="module")
def webhook(plane: ControlPlane) -> Iterator[WebhookProcess]:
    running = WebhookProcess(plane)
    yield running
    running.stop()


@pytest.fixture
async def site(plane: ControlPlane) -> AsyncIterator[OverlayNamespace]:
    name = f"t-{uuid.uuid4().hex[:8]}"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    plane.wait_service_account(name)
    async with Client(kubeconfig.load(plane.kubeconfig)) as client:
        yield OverlayNamespace(client, name)


@asynccontextmanager
async def overlaying(client: Client) -> AsyncIterator[None]:
    caches = Caches(client)
    async with Recorder(client, "zonewise.dev/test", "test") as recorder:
        controller = OverlayController(
            client, SliceInformers(caches, SlicesMode.OVERLAY), RoutingReporter(client, recorder)
        )
        async with caches:
            await caches.wait_synced()
            working = asyncio.create_task(controller.run())
            try:
                yield
            finally:
                working.cancel()
                await asyncio.wait([working])


async def test_controller_writes_hints_that_change_without_slice_writes(
    site: OverlayNamespace, webhook: WebhookProcess
) -> None:
    await concurrently(site.pod(f"p-{number}", "g", node(number), number) for number in range(6))
    await site.service("asks", "g", {})
    await site.service("automatic", "g", {OLD_HINTS: "auto"})
    async with overlaying(site.client):
        await eventually(lambda: site.hinted_zones("automatic", {(zone,): 2 for zone in ZONES}), "hints by CPU")
        await _add_and_remove_policy(site)
        await _drain_and_return(site)
        await _resize_nodes(site)
        await site.at_rest(webhook)
        assert await site.is_as_decided()
    assert webhook.reviews()["ours"] > 0
    assert webhook.undecided() == 0


async def _add_and_remove_policy(site: OverlayNamespace) -> None:
    await site.annotate("asks", {SAME_ZONE: "Require"})
    await eventually(lambda: site.hinted_zones("asks", {(zone,): 2 for zone in ZONES}), "the policy is hinted")
    await eventually(lambda: site.state_of("asks"), "the state annotation")
    await site.annotate("asks", {SAME_ZONE: None})
    await eventually(lambda: site.hinted_zones("asks", {(): 6}), "no hints without a policy")
    await eventually(lambda: site.has_no_state("asks"), "no state annotation")


async def _drain_and_return(site: OverlayNamespace) -> None:
    """Endpoints of the drained zone serve no zone, all others serve every zone."""
    await site.annotate("asks", {DRAIN_ZONE: ZONES[0]})

    async def left() -> bool:
        hinted = [
            hinted_zones(endpoint)
            for endpoint_slice in await site.slices_of("asks")
            for endpoint in endpoint_slice.endpoints or ()
        ]
        return hinted.count(ZONES) == 4 and sum(not set(zones) & set(ZONES) for zones in hinted if zones) == 2

    await eventually(left, "traffic leaves the drained zone")
    await site.annotate("asks", {DRAIN_ZONE: None})
    await eventually(lambda: site.hinted_zones("asks", {(): 6}), "traffic returns")


async def _resize_nodes(site: OverlayNamespace) -> None:
    """The stock controller does not react to them either."""
    for name in (node(0), node(3)):
        await site.allocatable(name, "64")
    larger = {(ZONES[0],): 4, (ZONES[1],): 1, (ZONES[2],): 1}
    await eventually(lambda: site.hinted_zones("automatic", larger), "more endpoints for the larger zone")
    for name in (node(0), node(3)):
        await site.allocatable(name, "16")
    await eventually(lambda: site.hinted_zones("automatic", {(zone,): 2 for zone in ZONES}), "and back")


BAD_VALUES = {
    "wrong-case": {SAME_ZONE: "require"},
    "unknown-word": {SAME_ZONE: "Always"},
    "broken-json": {TOPOLOGY_KEYS: '["topology.kubernetes.io/zone"'},
    "not-a-list": {TOPOLOGY_KEYS: '{"a": 1}'},
    "seventeen-keys": {TOPOLOGY_KEYS: json.dumps([f"example.com/key-{number}" for number in range(17)])},
    "key-twice": {TOPOLOGY_KEYS: json.dumps([ZONE, ZONE, "*"])},
    "star-first": {TOPOLOGY_KEYS: json.dumps(["*", ZONE])},
    "negative-threshold": {SAME_ZONE: "Prefer", STARTING_THRESHOLD: "-3"},
    "padding-larger": {SAME_ZONE: "Prefer", STARTING_THRESHOLD: "4", PADDING: "5"},
    "huge": {SAME_ZONE: "x" * 200_000},
    "drains-nothing": {DRAIN_ZONE: "no zone at all!"},
}
"""None of them gives hints to six endpoints: a bad value means the default, or is ignored."""


async def test_bad_values_apply_the_default_and_make_no_writes(site: OverlayNamespace, webhook: WebhookProcess) -> None:
    await concurrently(site.pod(f"p-{number}", "g", node(number), number) for number in range(6))
    async with overlaying(site.client):
        await concurrently(site.service(name, "g", annotations) for name, annotations in BAD_VALUES.items())
        await site.service("good", "g", {SAME_ZONE: "Require"})
        await eventually(lambda: site.hinted_zones("good", {(zone,): 2 for zone in ZONES}), "valid policies are served")
        await site.at_rest(webhook)
        assert [name for name in BAD_VALUES if not await site.hinted_zones(name, {(): 6})] == []
    assert webhook.undecided() == 0


FOREIGN = {
    # name: managed-by label, field manager
    "of another controller": ("other.example", "other"),
    "of no existing Service": (STOCK_MANAGER, "kube-controller-manager"),
    "of our own controller": (STOCK_MANAGER, "zonewise"),
}


@pytest.mark.parametrize("name", FOREIGN)
async def test_slices_of_other_writers_are_admitted_unchanged(
    site: OverlayNamespace, webhook: WebhookProcess, name: str
) -> None:
    managed_by, writer = FOREIGN[name]
    labels = {MANAGED_BY: managed_by, SERVICE_NAME: "web"}
    endpoint = {"addresses": ["10.0.0.1"], "hints": {"forZones": [{"name": "elsewhere"}]}}
    body = {"metadata": {"name": "foreign", "labels": labels}, "addressType": "IPv4", "endpoints": [endpoint]}
    created = await site.client.named(writer).create(ENDPOINT_SLICES, body, site.namespace)
    assert hints_by_address([created]) == {"10.0.0.1": ("elsewhere",)}
    assert webhook.undecided() == 0


async def test_hints_are_lost_without_the_webhook_and_restored_with_it(
    site: OverlayNamespace, webhook: WebhookProcess
) -> None:
    hinted, spread = {(zone,): 2 for zone in ZONES}, {(): 6}
    await concurrently(site.pod(f"p-{number}", "g", node(number), number) for number in range(6))
    await site.service("web", "g", {SAME_ZONE: "Require"})
    await eventually(lambda: site.hinted_zones("web", hinted), "the webhook alone sets hints on writes")
    webhook.stop()
    await site.annotate("web", {"example.com/touched": "yes"})
    await eventually(lambda: site.hinted_zones("web", spread), "the stock controller removes the hints")
    async with overlaying(site.client):
        await eventually(lambda: _state_says_that_hints_are_removed(site), "the state says that no webhook runs")
    webhook.start()
    async with overlaying(site.client):
        await eventually(lambda: site.hinted_zones("web", hinted), "the hints are restored without other writes")
        await site.at_rest(webhook)


async def _state_says_that_hints_are_removed(site: OverlayNamespace) -> bool:
    return "no webhook restores them" in str(await site.state_of("web"))


@pytest.mark.timeout(900)
async def test_three_hundred_services_are_stable_after_churn(site: OverlayNamespace, webhook: WebhookProcess) -> None:
    await concurrently(
        site.pod(f"p-{group}-{number}", f"g{group}", node(number), group * 20 + number)
        for group, pods in enumerate(PODS_OF_GROUPS)
        for number in range(pods)
    )
    async with overlaying(site.client):
        await concurrently(
            site.service(f"s-{index}", f"g{index % 3}", POLICIES[index // 100], dual=index % 4 == 0)
            for index in range(SERVICES)
        )
        await eventually(lambda: _all_written(site, 0), "every Service has its slices")
        await _churn(site)
        await _all_as_decided(site, webhook)
        await _stock_sync_changes_nothing(site, webhook)
        await _move_node_without_slice_writes(site)
        await _all_as_decided(site, webhook)
    assert webhook.undecided() == 0


async def _churn(site: OverlayNamespace) -> None:
    """Pods are added, and are unready for a while, faster than all slices are written."""
    for number in range(3):
        await concurrently(site.set_ready(f"p-{group}-{number}", False) for group in range(3))
        await concurrently(
            site.pod(f"q-{group}-{number}", f"g{group}", node(number), 100 + group * 20 + number) for group in range(3)
        )
        await concurrently(site.set_ready(f"p-{group}-{number}", True) for group in range(3))
    await eventually(lambda: _all_written(site, 3), "every Service has its new endpoints")


async def _all_written(site: OverlayNamespace, more: int) -> bool:
    """Whether every Service has its group's endpoints in every family, and so many more, all ready."""
    await asyncio.sleep(LOOK_SECONDS)
    ready: Counter[tuple[str, str]] = Counter()
    for endpoint_slice in await site.slices():
        count = sum(endpoint.conditions.ready is True for endpoint in endpoint_slice.endpoints or ())
        ready[service_key(endpoint_slice).name, endpoint_slice.address_type] += count
    expected = {
        (f"s-{index}", family): PODS_OF_GROUPS[index % 3] + more
        for index in range(SERVICES)
        for family in (("IPv4", "IPv6") if index % 4 == 0 else ("IPv4",))
    }
    return ready == expected


async def _all_as_decided(site: OverlayNamespace, webhook: WebhookProcess) -> None:
    """Every endpoint is hinted as decided over all slices, and then there are no reviews and no writes."""
    await eventually(site.is_as_decided, "all hints are as decided")
    await site.at_rest(webhook)
    assert await site.is_as_decided()
    assert all(hints_by_address(await site.slices()).values())


async def _stock_sync_changes_nothing(site: OverlayNamespace, webhook: WebhookProcess) -> None:
    """It writes every slice with hints without them, and each is stored unchanged."""
    versions, before = await site.versions(), webhook.reviews()["hinted"]
    await concurrently(site.annotate(f"s-{index}", {"example.com/touched": "yes"}) for index in range(SERVICES))
    stripped = sum(SAME_ZONE in service.metadata.annotations for service in await site.services())
    await eventually(lambda: webhook.reviews()["hinted"] - before >= stripped, "the stock controller wrote")
    assert await site.at_rest(webhook) == versions


async def _move_node_without_slice_writes(site: OverlayNamespace) -> None:
    """The stock controller does not sync slices when a node label changes."""
    moved = node(3)
    await site.client.patch(NODES, moved, MergePatch({"metadata": {"labels": {ZONE: ZONES[1]}}}))

    async def followed() -> bool:
        await asyncio.sleep(LOOK_SECONDS)
        slices = [
            endpoint_slice for endpoint_slice in await site.slices() if service_key(endpoint_slice).name in REQUIRING
        ]
        moved_endpoints = [
            endpoint
            for endpoint_slice in slices
            for endpoint in endpoint_slice.endpoints or ()
            if endpoint.node_name == moved
        ]
        return bool(moved_endpoints) and {hinted_zones(endpoint) for endpoint in moved_endpoints} == {(ZONES[1],)}

    await eventually(followed, "Services that require their zone are hinted for the new zone of the node")
    await site.client.patch(NODES, moved, MergePatch({"metadata": {"labels": {ZONE: ZONES[0]}}}))
