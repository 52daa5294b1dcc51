"""Admission webhooks on a real API server: trust, verdicts as clients see them, and deadlines."""

import asyncio
import base64
import copy
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.kube.admission_server import (
    CONFIG_MAP_RULE,
    LABEL,
    SECRET,
    Site,
    config_map,
    configuration,
    registered,
    rule,
    site,
    trusted,
)
from support.kube.fault_proxy import FaultProxy
from support.waiting import eventually
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.server import ca_injector as webhooks
from zonewise.kube.server.ca_injector import CaInjector
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.admission_review import AdmissionVerdict, Operation
from zonewise.kube.wire.errors import (
    ApiError,
    DeadlineExceeded,
    ErrorCause,
    Forbidden,
    ServerError,
    TooManyRequests,
    Unavailable,
)
from zonewise.kube.wire.patch import Apply, JsonPatch, MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.objects import CONFIG_MAPS, PODS, SECRETS, Resource
from zonewise.objects.admissionregistration import VALIDATING_WEBHOOK_CONFIGURATIONS

POD = {"metadata": {"name": "web-0"}, "spec": {"containers": [{"name": "c", "image": "none"}]}}


@pytest.fixture
async def running(client: Client, namespace: str) -> AsyncIterator[Site]:
    async with site(client, namespace) as running:
        yield running


@pytest.fixture
async def validating(client: Client, namespace: str, running: Site) -> AsyncIterator[Resource[dict[str, Any]]]:
    rules = [CONFIG_MAP_RULE, rule("pods/eviction", "CREATE")]
    async with registered(client, configuration(namespace, running.url("judge"), rules)) as resource:
        await trusted(client, namespace, running)
        yield resource


@pytest.mark.usefixtures("validating")
async def test_denied_eviction_reaches_the_client_with_all_details(
    client: Client, namespace: str, running: Site
) -> None:
    await client.create(PODS, POD, namespace)
    cause = ErrorCause(reason="ZoneBudget", message="zone a would lose its last pod", field="zone")
    running.judge.verdict = AdmissionVerdict.deny("not now", code=429, causes=[cause], retry_after_seconds=7)
    with pytest.raises(TooManyRequests, match="denied the request: not now") as caught:
        await client.evict("web-0", namespace)
    assert caught.value.reason == "TooManyRequests"
    assert caught.value.causes == (cause,)
    assert caught.value.retry_after_seconds == 7
    request = running.judge.requests[-1]
    assert (request.operation, request.resource.resource, request.sub_resource) == (
        Operation.CREATE,
        "pods",
        "eviction",
    )
    assert (request.name, request.namespace, request.user_info.username) == ("web-0", namespace, "admin")
    assert request.object is not None
    assert request.object["kind"] == "Eviction"


@pytest.mark.usefixtures("validating")
async def test_dry_run_requests_are_flagged(client: Client, namespace: str, running: Site) -> None:
    await client.create(PODS, POD, namespace)
    await client.evict("web-0", namespace, dry_run=True)
    assert running.judge.requests[-1].dry_run
    await client.evict("web-0", namespace)
    assert not running.judge.requests[-1].dry_run


@pytest.mark.usefixtures("validating")
async def test_updates_and_deletes_carry_both_objects(client: Client, namespace: str, running: Site) -> None:
    await client.create(CONFIG_MAPS, config_map("x"), namespace)
    await client.patch(CONFIG_MAPS, "x", MergePatch({"data": {"a": "2"}}), namespace)
    await client.delete(CONFIG_MAPS, "x", namespace, grace_seconds=3)
    created, updated, deleted = running.judge.requests[-3:]
    assert created.old_object is None
    assert created.object is not None
    assert updated.old_object is not None
    assert updated.object is not None
    assert (updated.old_object["data"], updated.object["data"]) == ({"a": "1"}, {"a": "2"})
    assert deleted.object is None
    assert deleted.old_object is not None
    assert deleted.options is not None
    assert deleted.options["gracePeriodSeconds"] == 3


CODES = {403: Forbidden, 503: Unavailable, 500: ServerError}


@pytest.mark.usefixtures("validating")
@pytest.mark.parametrize(("code", "kind"), CODES.items(), ids=map(str, CODES))
async def test_denial_codes_raise_matching_client_errors(
    client: Client, namespace: str, running: Site, code: int, kind: type[ApiError]
) -> None:
    running.judge.verdict = AdmissionVerdict.deny("because", code=code)
    with pytest.raises(kind, match=r'admission webhook "judge.zonewise.dev" denied the request: because'):
        await client.create(CONFIG_MAPS, config_map("x"), namespace, deadline_seconds=5)


async def kubectl(cluster: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [cluster.binaries / "kubectl", "--kubeconfig", cluster.kubeconfig, *arguments]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.usefixtures("validating")
async def test_kubectl_shows_warnings_and_denials(cluster: ControlPlane, namespace: str, running: Site) -> None:
    running.judge.verdict = AdmissionVerdict.allow(warnings=["rack label is missing"])
    result = await kubectl(cluster, "-n", namespace, "create", "configmap", "x")
    assert result.returncode == 0
    assert "Warning: rack label is missing" in result.stderr
    running.judge.verdict = AdmissionVerdict.deny("zone a is frozen")
    result = await kubectl(cluster, "-n", namespace, "create", "configmap", "y")
    assert result.returncode == 1
    assert "denied the request: zone a is frozen" in result.stderr


async def test_mutating_patch_is_applied(client: Client, namespace: str, running: Site) -> None:
    body = configuration(namespace, running.url("judge"), [CONFIG_MAP_RULE])
    async with registered(client, body, mutating=True):
        await trusted(client, namespace, running)
        operation = {"op": "add", "path": "/data/b", "value": "from the webhook"}
        running.judge.verdict = AdmissionVerdict.allow(patch=[operation])
        created = await client.create(CONFIG_MAPS, config_map("x"), namespace)
    assert created.data == {"a": "1", "b": "from the webhook"}


DEADLINES = {"our deadline": (1.0, 30), "the API server's timeout": (60.0, 2)}


@pytest.mark.parametrize(("deadline_seconds", "timeout_seconds"), DEADLINES.values(), ids=DEADLINES)
async def test_stuck_webhook_returns_its_declared_verdict(
    client: Client, namespace: str, deadline_seconds: float, timeout_seconds: int
) -> None:
    async with site(client, namespace, deadline_seconds=deadline_seconds) as running:
        body = configuration(namespace, running.url("judge"), [CONFIG_MAP_RULE], timeoutSeconds=timeout_seconds)
        async with registered(client, body):
            await trusted(client, namespace, running)
            running.judge.stuck = True
            with pytest.raises(Unavailable, match="denied the request: no decision in time"):
                await client.create(CONFIG_MAPS, config_map("x"), namespace, deadline_seconds=25)


async def test_api_server_reuses_connections(client: Client, namespace: str, running: Site) -> None:
    async with FaultProxy(running.url("")) as proxy:
        url = running.url("judge", proxy.port)
        async with registered(client, configuration(namespace, url, [CONFIG_MAP_RULE])):
            await trusted(client, namespace, running)
            before = proxy.accepted
            for index in range(20):
                await client.create(CONFIG_MAPS, config_map(f"x{index}"), namespace)
            assert len(running.judge.requests) == 20
            assert proxy.accepted <= before + 2


def without_trust(document: dict[str, Any]) -> dict[str, Any]:
    """Webhook configuration without caBundle, the callers' key and server-managed metadata."""
    metadata = {
        name: value
        for name, value in document["metadata"].items()
        if name not in {"managedFields", "generation", "resourceVersion"}
    }
    webhooks = [
        {**webhook, "clientConfig": {**webhook["clientConfig"], "caBundle": None, "url": None}}
        for webhook in document["webhooks"]
    ]
    return {**document, "metadata": metadata, "webhooks": webhooks}


def bundles(document: dict[str, Any]) -> set[str]:
    return {webhook["clientConfig"].get("caBundle", "") for webhook in document["webhooks"]}


async def test_removed_ca_bundle_is_restored_and_nothing_else_changes(
    client: Client, namespace: str, running: Site
) -> None:
    body = configuration(namespace, running.url("judge"), [CONFIG_MAP_RULE])
    second = {**body["webhooks"][0], "name": "second.zonewise.dev", "objectSelector": {"matchLabels": {"a": "b"}}}
    body["webhooks"].append(second)
    name = body["metadata"]["name"]
    async with registered(client, body) as resource:
        created = await client.get(resource, name)

        async def injected() -> bool:
            injected_bundles = bundles(await client.get(resource, name))
            return len(injected_bundles) == 1 and "" not in injected_bundles

        await eventually(injected)
        first = await client.get(resource, name)
        assert without_trust(first) == without_trust(created)
        assert b"BEGIN CERTIFICATE" in base64.b64decode(bundles(first).pop())
        await client.patch(
            resource,
            name,
            JsonPatch(
                [
                    {"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"},
                    {"op": "replace", "path": "/webhooks/1/timeoutSeconds", "value": 3},
                    {"op": "add", "path": "/metadata/annotations", "value": {"theirs": "kept"}},
                ]
            ),
        )
        await eventually(injected)
        again = await client.get(resource, name)
        assert bundles(again) == bundles(first)
        assert again["webhooks"][1]["timeoutSeconds"] == 3
        assert again["metadata"]["annotations"] == {"theirs": "kept"}


async def test_foreign_configurations_are_not_changed(client: Client, namespace: str, running: Site) -> None:
    own = configuration(namespace, running.url("judge"), [CONFIG_MAP_RULE])
    foreign = configuration(namespace, running.url("judge"), [rule("secrets", "CREATE")])
    foreign["metadata"] = {"name": f"theirs-{namespace}", "labels": {LABEL: "somebody-else"}}
    foreign["webhooks"][0]["failurePolicy"] = "Ignore"
    async with registered(client, foreign) as resource, registered(client, own):
        await trusted(client, namespace, running)
        assert bundles(await client.get(resource, foreign["metadata"]["name"])) == {""}


async def test_inject_ignores_a_deleted_configuration(client: Client, namespace: str) -> None:
    body = configuration(namespace, "https://127.0.0.1:1/judge", [CONFIG_MAP_RULE])
    async with registered(client, body), Caches(client) as caches:
        injector = CaInjector(client, caches, selector=f"{LABEL}={namespace}")
        await caches.wait_synced()
    await injector.inject(b"bundle", ["key"])


async def test_inject_fails_before_the_configurations_are_synced(
    client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "SYNC_SECONDS", 0.05)
    injector = CaInjector(client, Caches(client), selector=f"{LABEL}={namespace}")
    with pytest.raises(DeadlineExceeded, match="first list of validatingwebhookconfigurations"):
        await injector.inject(b"bundle", ["key"])


@pytest.mark.parametrize("before", ["with a path", "without"])
async def test_applied_again_a_configuration_keeps_bundle_and_path(client: Client, namespace: str, before: str) -> None:
    """As `zonewise install` and charts apply it; "with a path" is what a release without callers' keys applied."""
    body = configuration(namespace, "https://unused", [CONFIG_MAP_RULE], failurePolicy="Ignore")
    service = {"namespace": namespace, "name": "guard", "port": 443}
    body["webhooks"][0]["clientConfig"] = {"service": service}
    old = copy.deepcopy(body)
    if before == "with a path":
        old["webhooks"][0]["clientConfig"]["service"]["path"] = "/judge"
    resource, name = VALIDATING_WEBHOOK_CONFIGURATIONS.whole(), body["metadata"]["name"]
    key = "7" * 64
    await client.patch(resource, name, Apply(old, "install"))
    try:
        async with Caches(client) as caches:
            injector = CaInjector(client, caches, selector=f"{LABEL}={namespace}")
            await injector.inject(b"bundle", [key])
            injected = await client.get(resource, name)
            for _ in range(2):
                await client.patch(resource, name, Apply(body, "install"))  # raises Conflict if both own a field
        config = (await client.get(resource, name))["webhooks"][0]["clientConfig"]
        assert config == injected["webhooks"][0]["clientConfig"]
        assert config == {"caBundle": "YnVuZGxl", "service": {**service, "path": f"/judge/{key}"}}
    finally:
        await client.delete(resource, name)


ROLES = ("view", "edit", "admin")


@pytest.mark.parametrize("role", ROLES)
async def test_tenants_cannot_read_the_callers_key(
    cluster: ControlPlane, client: Client, namespace: str, running: Site, role: str
) -> None:
    """With the stock roles, in all namespaces but that of the Secret."""
    user = f"{role}-{namespace}"
    path = await asyncio.to_thread(cluster.add_user, user, user)
    await kubectl(cluster, "-n", "default", "create", "rolebinding", user, f"--clusterrole={role}", f"--user={user}")
    body = configuration(namespace, running.url("judge"), [CONFIG_MAP_RULE])
    try:
        async with registered(client, body) as resource, Client(kubeconfig.load(path)) as tenant:
            with pytest.raises(Forbidden):
                await tenant.get(resource, body["metadata"]["name"])
            with pytest.raises(Forbidden):
                await tenant.get(SECRETS, SECRET, namespace)
    finally:
        await kubectl(cluster, "-n", "default", "delete", "rolebinding", user)
