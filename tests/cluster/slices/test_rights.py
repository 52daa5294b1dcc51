"""The manifests of deploy/: each program does its whole work with exactly the rights they give, and not with one less."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.install.deployed import SYSTEM, Deployed, Scope, audit_flags, documents, scopes
from support.process import Program as Process
from support.slices import cluster
from support.slices.cluster import ControllerProcess, World
from support.waiting import eventually
from zonewise.api.names import DRAINED_EVENLY, ROUTING_STATE, SAME_ZONE
from zonewise.kube.client.client import Client
from zonewise.kube.wire.patch import JsonPatch, MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.objects import ENDPOINT_SLICES, EVENTS, NODES, SECRETS, SERVICES, Resource
from zonewise.objects.admissionregistration import MUTATING_WEBHOOK_CONFIGURATIONS
from zonewise.objects.meta import View
from zonewise.routing import DRAIN_ZONE
from zonewise.slices.webhook import configuration

CONTROLLER, WEBHOOK = "zonewise-controller", "zonewise-webhook"
FINALIZERS = Scope("update", "services/finalizers")
LEASE = ("--lease-namespace", SYSTEM, "--lease-seconds", "3")
ROLES = Resource(
    view=View, kind="ClusterRole", plural="clusterroles", group="rbac.authorization.k8s.io", namespaced=False
)

Start = Callable[..., ControlPlane]


@asynccontextmanager
async def deployed(start: Start, folder: Path, manifest: str, **options: Any) -> AsyncIterator[tuple[Deployed, World]]:
    """The file applied to a control plane of the test's own, with a node in each of three zones."""
    plane = await asyncio.to_thread(start, flags=audit_flags(folder), **options)
    site = Deployed(plane, folder)
    site.apply(manifest)
    async with cluster.connect(plane) as client:
        world = await World.create(client, "shop")
        await world.nodes()
        yield site, world


async def has_state(world: World, code: str | None) -> bool:
    service = await world.client.get(SERVICES, "web", world.namespace)
    said = service.metadata.annotations.get(ROUTING_STATE)
    return said is None if code is None else said is not None and f'"code":"{code}"' in said


async def is_drained(world: World) -> bool:
    hints = await world.hints("web")
    return hints["web-zone-a-0"] == (DRAINED_EVENLY,) and hints["web-zone-b-0"] == cluster.ZONES


async def repeats(world: World, reason: str) -> bool:
    events = (await world.client.list(EVENTS, world.namespace)).items
    return any(event.reason == reason and event.series and event.series.count > 1 for event in events)


_WISHES = [("Require", "Required"), (None, None), ("Prefer", "BelowStart"), (None, None), ("Prefer", "BelowStart")]


async def ask_for_all(world: World) -> None:
    """A Service that changes its mind, so that its state is written and removed and an event repeats."""
    for asked, code in _WISHES:
        await world.annotate("web", {SAME_ZONE: asked})
        await eventually(lambda code=code: has_state(world, code), f"state {code}")
    await eventually(lambda: repeats(world, "BelowStart"), "an event repeats")
    await world.client.patch(NODES, "zone-a-0", MergePatch({"metadata": {"annotations": {DRAIN_ZONE: "zone-a"}}}))
    await eventually(lambda: is_drained(world), "zone-a is drained")


async def test_the_controller_in_mode_own(private_cluster: Start, tmp_path: Path) -> None:
    async with deployed(private_cluster, tmp_path, "own.yaml") as (site, world):
        config = await site.kubeconfig(world.client, CONTROLLER)
        await world.service("web")
        await world.spread("web", {"zone-a": 1, "zone-b": 1, "zone-c": 1})
        program = ControllerProcess(site.plane, *LEASE, config=config)
        try:
            await ask_for_all(world)
            assert await eventually(lambda: holds(world, "web", 3))
            assert not site.refused(CONTROLLER)
            assert site.used("own.yaml", CONTROLLER) == scopes("own.yaml", CONTROLLER) - {FINALIZERS}
            await without_finalizers(world, site)
        finally:
            program.remove()


async def holds(world: World, service: str, count: int) -> bool:
    return sum(len(found.endpoints or ()) for found in await world.slices(service)) == count


async def without_finalizers(world: World, site: Deployed) -> None:
    """Where the API server asks who may keep an owner from being deleted, slices can't be made without this right."""
    (role,) = [found for found in documents("own.yaml") if found["kind"] == "ClusterRole"]
    fewer = [rule for rule in role["rules"] if rule["resources"] != ["services/finalizers"]]
    await world.client.patch(ROLES, CONTROLLER, MergePatch({"rules": fewer}))
    await world.service("next", selector={"app": "web"})
    await eventually(lambda: ("create", "endpointslices.discovery.k8s.io") in site.refused(CONTROLLER))
    assert not await world.slices("next")
    await world.client.patch(ROLES, CONTROLLER, MergePatch({"rules": role["rules"]}))
    assert await eventually(lambda: holds(world, "next", 3))


async def test_the_webhook_and_the_controller_in_mode_overlay(private_cluster: Start, tmp_path: Path) -> None:
    stock = {
        "programs": (Program.ETCD, Program.APISERVER, Program.CONTROLLER_MANAGER),
        "controllers": "endpointslice-controller,serviceaccount-controller",
    }
    async with deployed(private_cluster, tmp_path, "overlay.yaml", **stock) as (site, world):
        async with webhook(site, world.client):
            config = await site.kubeconfig(world.client, CONTROLLER)
            program = ControllerProcess(site.plane, "--mode", "overlay", *LEASE, config=config)
            try:
                await world.service("web")
                await world.spread("web", {"zone-a": 1, "zone-b": 1, "zone-c": 1})
                await ask_for_all(world)
            finally:
                program.remove()
            await written_by_a_stranger(world)
        await forget_authorities(world.client)
        async with webhook(site, world.client):
            pass
        for account in (CONTROLLER, WEBHOOK):
            assert not site.refused(account)
            assert site.used("overlay.yaml", account) == scopes("overlay.yaml", account)


async def written_by_a_stranger(world: World) -> None:
    """A slice of no Service that the webhook knows: it looks whether the Service is newer than its cache."""
    labels = {cluster.SERVICE_NAME: "web", cluster.MANAGED_BY: cluster.STOCK_MANAGER}
    body = {"metadata": {"name": "stray", "labels": labels}, "addressType": "IPv4", "endpoints": []}
    await world.client.named("stranger").create(ENDPOINT_SLICES, body, world.namespace)


async def forget_authorities(client: Client) -> None:
    """An authority that is due is renewed in its place, as one that nobody has."""
    await client.patch(SECRETS, WEBHOOK, JsonPatch([{"op": "replace", "path": "/data", "value": {}}]), SYSTEM)


@asynccontextmanager
async def webhook(site: Deployed, client: Client) -> AsyncIterator[None]:
    """`zonewise webhook` as deployed, but reached on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"https://127.0.0.1:{port}"
    where = [{"op": "replace", "path": "/webhooks/0/clientConfig", "value": {"url": f"{url}/endpointslices"}}]
    await client.patch(MUTATING_WEBHOOK_CONFIGURATIONS, "zonewise-overlay", JsonPatch(where))
    config = await site.kubeconfig(client, WEBHOOK)
    program = Process(
        str(Path(sys.executable).with_name("zonewise")),
        *("webhook", "--no-register", "--kubeconfig", config, "--url", url, "--host", "127.0.0.1", "--port", port),
        *("--secret", f"{SYSTEM}/{WEBHOOK}", "--health-port", 0, "--log-format", "json"),
    )
    try:
        await asyncio.to_thread(program.wait_ready)
        yield
    finally:
        program.remove()


@pytest.mark.parametrize("name", ["own.yaml", "overlay.yaml"])
def test_nothing_is_allowed_everywhere(name: str) -> None:
    for document in documents(name):
        for rule in document.get("rules", []) if document["kind"].endswith("Role") else []:
            assert "*" not in {*rule["verbs"], *rule["resources"], *rule["apiGroups"]}


def test_the_configuration_that_is_applied_is_the_one_the_webhook_would_register() -> None:
    (applied,) = [found for found in documents("overlay.yaml") if found["kind"] == "MutatingWebhookConfiguration"]
    where = {"namespace": SYSTEM, "name": WEBHOOK, "path": "/endpointslices", "port": 443}
    assert applied == configuration({"service": where})
