"""The manifests in deploy/: each program uses exactly the permissions they grant."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.install.deployed import SYSTEM, Deployed, Scope, audit_flags, documents, scopes, token_in
from support.process import Program as Process
from support.slices import cluster
from support.slices.cluster import ClusterNamespace, ControllerProcess
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

CONTROLLER, OVERLAY, WEBHOOK = "zonewise-controller", "zonewise-overlay-controller", "zonewise-webhook"
FINALIZERS = Scope("update", "services/finalizers")
LEASE = ("--lease-namespace", SYSTEM, "--lease-seconds", "3")
ROLES = Resource(
    view=View, kind="ClusterRole", plural="clusterroles", group="rbac.authorization.k8s.io", namespaced=False
)

Start = Callable[..., ControlPlane]


@asynccontextmanager
async def deployed(
    start: Start, folder: Path, manifest: str, **options: Any
) -> AsyncIterator[tuple[Deployed, ClusterNamespace]]:
    """The manifest applied to a private control plane, with a node in each of three zones."""
    plane = await asyncio.to_thread(start, flags=audit_flags(folder), **options)
    site = Deployed(plane, folder)
    site.apply(manifest)
    async with cluster.connect(plane) as client:
        ns = await ClusterNamespace.create(client, "shop")
        await ns.nodes()
        yield site, ns


async def has_state(ns: ClusterNamespace, code: str | None) -> bool:
    service = await ns.client.get(SERVICES, "web", ns.namespace)
    annotation = service.metadata.annotations.get(ROUTING_STATE)
    return annotation is None if code is None else annotation is not None and f'"code":"{code}"' in annotation


async def is_drained(ns: ClusterNamespace) -> bool:
    hints = await ns.hints("web")
    return hints["web-zone-a-0"] == (DRAINED_EVENLY,) and hints["web-zone-b-0"] == cluster.ZONES


async def repeats(ns: ClusterNamespace, reason: str) -> bool:
    events = (await ns.client.list(EVENTS, ns.namespace)).items
    return any(event.reason == reason and event.series and event.series.count > 1 for event in events)


_POLICY_CHANGES = [
    ("Require", "Required"),
    (None, None),
    ("Prefer", "BelowStart"),
    (None, None),
    ("Prefer", "BelowStart"),
]


async def change_policies(ns: ClusterNamespace) -> None:
    """Changes the policy several times, so that the state is written and removed and an event repeats."""
    for strength, code in _POLICY_CHANGES:
        await ns.annotate("web", {SAME_ZONE: strength})
        await eventually(lambda code=code: has_state(ns, code), f"state {code}")
    await eventually(lambda: repeats(ns, "BelowStart"), "an event repeats")
    await ns.client.patch(NODES, "zone-a-0", MergePatch({"metadata": {"annotations": {DRAIN_ZONE: "zone-a"}}}))
    await eventually(lambda: is_drained(ns), "zone-a is drained")


async def test_permissions_of_the_controller_in_mode_own(private_cluster: Start, tmp_path: Path) -> None:
    async with deployed(private_cluster, tmp_path, "own.yaml") as (site, ns):
        config = await site.kubeconfig(ns.client, CONTROLLER)
        await ns.service("web")
        await ns.spread("web", {"zone-a": 1, "zone-b": 1, "zone-c": 1})
        program = ControllerProcess(site.plane, *LEASE, "--metrics-port", "0", config=config)
        try:
            await change_policies(ns)
            assert (await asyncio.to_thread(program.scrape, token_in(config)))[0] == 403
            assert await eventually(lambda: holds(ns, "web", 3))
            assert not site.refused(CONTROLLER)
            assert site.used("own.yaml", CONTROLLER) == scopes("own.yaml", CONTROLLER) - {FINALIZERS}
            await without_finalizers(ns, site)
        finally:
            program.remove()


async def holds(ns: ClusterNamespace, service: str, count: int) -> bool:
    return sum(len(endpoint_slice.endpoints or ()) for endpoint_slice in await ns.slices(service)) == count


async def without_finalizers(ns: ClusterNamespace, site: Deployed) -> None:
    """With OwnerReferencesPermissionEnforcement, slices cannot be created without this permission."""
    (role,) = [document for document in documents("own.yaml") if document["kind"] == "ClusterRole"]
    fewer = [rule for rule in role["rules"] if rule["resources"] != ["services/finalizers"]]
    await ns.client.patch(ROLES, CONTROLLER, MergePatch({"rules": fewer}))
    await ns.service("next", selector={"app": "web"})
    await eventually(lambda: ("create", "endpointslices.discovery.k8s.io") in site.refused(CONTROLLER))
    assert not await ns.slices("next")
    await ns.client.patch(ROLES, CONTROLLER, MergePatch({"rules": role["rules"]}))
    assert await eventually(lambda: holds(ns, "next", 3))


async def test_permissions_of_webhook_and_controller_in_mode_overlay(private_cluster: Start, tmp_path: Path) -> None:
    stock = {
        "programs": (Program.ETCD, Program.APISERVER, Program.CONTROLLER_MANAGER),
        "controllers": "endpointslice-controller,serviceaccount-controller",
    }
    async with deployed(private_cluster, tmp_path, "overlay.yaml", **stock) as (site, ns):
        async with webhook(site, ns.client):
            config = await site.kubeconfig(ns.client, OVERLAY)
            program = ControllerProcess(site.plane, "--mode", "overlay", *LEASE, "--metrics-port", "0", config=config)
            try:
                assert (await asyncio.to_thread(program.scrape, token_in(config)))[0] == 403
                await ns.service("web")
                await ns.spread("web", {"zone-a": 1, "zone-b": 1, "zone-c": 1})
                await change_policies(ns)
            finally:
                program.remove()
            await create_stray_slice(ns)
        await forget_authorities(ns.client)
        async with webhook(site, ns.client):
            pass
        for account in (OVERLAY, WEBHOOK):
            assert not site.refused(account)
            assert site.used("overlay.yaml", account) == scopes("overlay.yaml", account)


async def create_stray_slice(ns: ClusterNamespace) -> None:
    """A slice of an unknown Service: the webhook reads the Service, which may be newer than its cache."""
    labels = {cluster.SERVICE_NAME: "web", cluster.MANAGED_BY: cluster.STOCK_MANAGER}
    body = {"metadata": {"name": "stray", "labels": labels}, "addressType": "IPv4", "endpoints": []}
    await ns.client.named("other").create(ENDPOINT_SLICES, body, ns.namespace)


async def forget_authorities(client: Client) -> None:
    """Empties the Secret, so that the certificate authority is created again in place."""
    await client.patch(SECRETS, WEBHOOK, JsonPatch([{"op": "replace", "path": "/data", "value": {}}]), SYSTEM)


@asynccontextmanager
async def webhook(site: Deployed, client: Client) -> AsyncIterator[None]:
    """`zonewise webhook` as deployed, but reached on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    url = f"https://127.0.0.1:{port}"
    client_config = [{"op": "replace", "path": "/webhooks/0/clientConfig", "value": {"url": f"{url}/endpointslices"}}]
    await client.patch(MUTATING_WEBHOOK_CONFIGURATIONS, "zonewise-overlay", JsonPatch(client_config))
    config = await site.kubeconfig(client, WEBHOOK)
    program = Process(
        str(Path(sys.executable).with_name("zonewise")),
        *("webhook", "--no-register", "--kubeconfig", config, "--url", url, "--host", "127.0.0.1", "--port", port),
        *("--secret", f"{SYSTEM}/{WEBHOOK}", "--health-port", 0, "--metrics-port", 0, "--log-format", "json"),
    )
    try:
        await asyncio.to_thread(program.wait_ready)
        assert (await asyncio.to_thread(program.scrape, token_in(config)))[0] == 403
        yield
    finally:
        program.remove()


@pytest.mark.parametrize("name", ["own.yaml", "overlay.yaml"])
def test_roles_have_no_wildcards(name: str) -> None:
    for document in documents(name):
        for rule in document.get("rules", []) if document["kind"].endswith("Role") else []:
            assert "*" not in {*rule["verbs"], *rule["resources"], *rule["apiGroups"]}


def test_applied_webhook_configuration_is_the_registered_one() -> None:
    (applied,) = [
        document for document in documents("overlay.yaml") if document["kind"] == "MutatingWebhookConfiguration"
    ]
    service = {"namespace": SYSTEM, "name": WEBHOOK, "port": 443}
    del applied["metadata"]["labels"]  # those of an install
    assert applied == configuration({"service": service})
