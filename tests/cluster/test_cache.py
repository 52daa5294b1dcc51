"""Watch caches on a real API server, through a fault-injecting proxy."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from structlog.testing import capture_logs

from support.kube.cache_state import contents, sample, until_equal
from support.kube.fault_proxy import FaultProxy
from support.waiting import eventually
from zonewise.kube.client.client import Client
from zonewise.kube.decide import reflector
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.objects import CONFIG_MAPS, NAMESPACES, SECRETS, SERVICES, ConfigMap, Key, Resource
from zonewise.objects.change import Change

LARGE = "x" * 200_000
TEST_OBJECTS = "metadata.name!=kube-root-ca.crt"
"""Excludes the ConfigMap that a controller writes into every new namespace."""


@pytest.fixture
async def proxy(cluster: ControlPlane) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(cluster.server) as proxy:
        yield proxy


@pytest.fixture
async def proxied(proxy: FaultProxy, cluster: ControlPlane, tmp_path: Path) -> AsyncIterator[Client]:
    async with await Client.connect(proxy.kubeconfig(cluster.kubeconfig, tmp_path)) as client:
        yield client


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "LONGEST_WAIT_SECONDS", 1.0)


async def put(client: Client, namespace: str, name: str, **data: str) -> None:
    await client.create(CONFIG_MAPS, {"metadata": {"name": name, "labels": {"app": name[0]}}, "data": data}, namespace)


async def change(client: Client, namespace: str, name: str, **data: str) -> None:
    await client.patch(CONFIG_MAPS, name, MergePatch({"data": data}), namespace)


def by_first_letter(config_map: ConfigMap) -> list[str]:
    return [config_map.metadata.name[0]]


async def test_cache_fills_by_streaming_list_and_follows_changes(client: Client, namespace: str) -> None:
    await put(client, namespace, "before", a="1")
    changes: list[Change[ConfigMap]] = []
    async with Caches(client) as caches:
        cache = caches.of(CONFIG_MAPS, namespace, fields=TEST_OBJECTS)
        cache.add_index("letter", by_first_letter)
        cache.on_change(changes.append)
        await cache.wait_synced()
        assert Key(namespace, "before") in cache
        assert cache._reflector._streams_lists
        changes.clear()
        await put(client, namespace, "after", a="1")
        await change(client, namespace, "after", a="2")
        await client.delete(CONFIG_MAPS, "before", namespace)
        await eventually(lambda: len(changes) == 3)
        await until_equal(cache, client, CONFIG_MAPS, namespace, fields=TEST_OBJECTS)
        assert cache.by_index("letter", "b") == []
        assert [config_map.data for config_map in cache.by_index("letter", "a")] == [{"a": "2"}]
    received = [(change.key.name, change.old and change.old.data, change.new and change.new.data) for change in changes]
    assert received == [("after", None, {"a": "1"}), ("after", {"a": "1"}, {"a": "2"}), ("before", {"a": "1"}, None)]
    assert sample("zonewise_watch_events_total", cache, type="MODIFIED") == 1


async def test_cluster_scoped_kinds_and_empty_selections_sync(client: Client, namespace: str) -> None:
    async with Caches(client) as caches:
        namespaces = caches.of(NAMESPACES)
        nothing = caches.of(SERVICES, namespace)
        await caches.wait_synced()
        assert Key("", namespace) in namespaces
        assert len(nothing) == 0


async def test_label_and_field_selectors_limit_the_cache(client: Client, namespace: str) -> None:
    for name in ("a-1", "a-2", "b-1"):
        await put(client, namespace, name)
    async with Caches(client) as caches:
        labelled = caches.of(CONFIG_MAPS, namespace, selector="app=a")
        named = caches.of(CONFIG_MAPS, namespace, fields="metadata.name=b-1")
        await caches.wait_synced()
        assert {key.name for key in labelled.keys()} == {"a-1", "a-2"}  # noqa: SIM118 - not a dict
        assert {key.name for key in named.keys()} == {"b-1"}  # noqa: SIM118
        moved = MergePatch({"metadata": {"labels": {"app": "b"}}})
        await client.patch(CONFIG_MAPS, "a-2", moved, namespace)
        await until_equal(labelled, client, CONFIG_MAPS, namespace, selector="app=a")
        assert Key(namespace, "a-2") not in labelled


async def test_same_selection_shares_one_watch(proxied: Client, proxy: FaultProxy, namespace: str) -> None:
    caches = Caches(proxied)
    cache = caches.of(CONFIG_MAPS, namespace)
    async with caches:
        await cache.wait_synced()
        assert caches.of(CONFIG_MAPS, namespace) is cache
        assert proxy.accepted == 1
        selected = caches.of(CONFIG_MAPS, namespace, selector="app=a")
        assert selected is not cache
        await selected.wait_synced()
        assert proxy.accepted == 2


async def test_stopped_cache_can_run_again(client: Client, namespace: str) -> None:
    await put(client, namespace, "one")
    tasks_before = asyncio.all_tasks()
    caches = Caches(client)
    cache = caches.of(CONFIG_MAPS, namespace)
    running = asyncio.create_task(caches.run())
    await cache.wait_synced()
    assert sample("zonewise_watch_objects", cache) == len(cache) > 0
    assert 0 <= sample("zonewise_watch_staleness_seconds", cache) < 60
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == tasks_before
    assert sample("zonewise_watch_objects", cache) == 0
    await put(client, namespace, "while-stopped")
    async with caches:
        await until_equal(cache, client, CONFIG_MAPS, namespace)
    assert sample("zonewise_watch_relists_total", cache) == 0


async def test_error_in_the_with_block_is_raised_unchanged(client: Client, namespace: str) -> None:
    async def fails() -> None:
        async with Caches(client) as caches:
            caches.of(CONFIG_MAPS, namespace)
            raise LookupError

    with pytest.raises(LookupError):
        await fails()


async def test_unexpected_watch_exception_reaches_the_caller(client: Client) -> None:
    """Not an API error, so not retried."""
    caches = Caches(client)
    caches.of(None)  # type: ignore[arg-type]
    with pytest.raises(BaseExceptionGroup) as caught:
        await caches.run()
    assert caught.group_contains(AttributeError)


async def test_reset_connection_resumes_without_relist(
    proxied: Client, client: Client, proxy: FaultProxy, namespace: str
) -> None:
    async with Caches(proxied) as caches:
        cache = caches.of(CONFIG_MAPS, namespace)
        await cache.wait_synced()
        for number in range(3):
            proxy.reset()
            await put(client, namespace, f"during-{number}")
            await until_equal(cache, client, CONFIG_MAPS, namespace)
        assert sample("zonewise_watch_reconnects_total", cache, cause="unreachable") >= 3
        assert sample("zonewise_watch_relists_total", cache) == 0


async def test_reset_within_an_event_delivers_it_exactly_once(
    proxied: Client, client: Client, proxy: FaultProxy, namespace: str
) -> None:
    changes: list[Change[ConfigMap]] = []
    async with Caches(proxied) as caches:
        cache = caches.of(CONFIG_MAPS, namespace, fields="metadata.name=large")
        cache.on_change(changes.append)
        await cache.wait_synced()
        proxy.reset_after(100_000)
        await put(client, namespace, "large", a=LARGE)
        await until_equal(cache, client, CONFIG_MAPS, namespace, fields="metadata.name=large")
        assert sample("zonewise_watch_reconnects_total", cache, cause="unreachable") == 1
    assert [(change.old, change.new and len(change.new.data["a"])) for change in changes] == [(None, len(LARGE))]


async def test_reset_within_the_first_list_exposes_no_partial_list(
    proxied: Client, client: Client, proxy: FaultProxy, namespace: str
) -> None:
    for number in range(4):
        await put(client, namespace, f"large-{number}", a=LARGE)
    sizes: set[int] = set()
    proxy.reset_after(500_000)
    async with Caches(proxied) as caches:
        cache = caches.of(CONFIG_MAPS, namespace, selector="app=l")
        cache.on_change(lambda _: sizes.add(len(cache)))
        await until_equal(cache, client, CONFIG_MAPS, namespace, selector="app=l")
        assert sample("zonewise_watch_reconnects_total", cache, cause="unreachable") == 1
    assert sizes == {4}


async def test_silent_watch_is_detected_and_replaced(
    proxied: Client, client: Client, proxy: FaultProxy, namespace: str
) -> None:
    async with Caches(proxied, silence_seconds=1.0) as caches:
        cache = caches.of(CONFIG_MAPS, namespace)
        await cache.wait_synced()
        proxy.go_silent()
        await put(client, namespace, "unheard")
        silent_since = proxy.accepted
        await eventually(lambda: proxy.accepted > silent_since and "nothing came for 1 s" in cache.problem)
        assert cache.staleness_seconds(time.monotonic()) >= 1.0
        assert Key(namespace, "unheard") not in cache
        await proxy.heal()
        await until_equal(cache, client, CONFIG_MAPS, namespace)
        assert sample("zonewise_watch_relists_total", cache) == 0


async def test_unreachable_server_keeps_contents_and_reports_the_problem(
    proxied: Client, client: Client, proxy: FaultProxy, namespace: str
) -> None:
    await put(client, namespace, "kept")
    async with Caches(proxied) as caches:
        cache = caches.of(CONFIG_MAPS, namespace)
        await cache.wait_synced()
        last = contents(cache)
        with capture_logs() as logs:
            await proxy.refuse()
            await eventually(lambda: "refused" in cache.problem.lower() or "connect" in cache.problem.lower())
            await client.delete(CONFIG_MAPS, "kept", namespace)
            assert (contents(cache), cache.synced) == (last, True)
            await proxy.heal()
            await until_equal(cache, client, CONFIG_MAPS, namespace)
            assert cache.problem == ""
        assert {line["event"] for line in logs if line.get("watch") == cache.name} >= {"watch interrupted"}


async def test_cache_started_before_the_server_syncs_later(
    proxied: Client, client: Client, proxy: FaultProxy, namespace: str
) -> None:
    await proxy.refuse()
    async with Caches(proxied) as caches:
        cache = caches.of(CONFIG_MAPS, namespace)
        await eventually(lambda: cache.problem != "")
        assert not cache.synced
        await proxy.heal()
        await until_equal(cache, client, CONFIG_MAPS, namespace)


async def test_slow_network_still_syncs(proxied: Client, client: Client, proxy: FaultProxy, namespace: str) -> None:
    proxy.delay(0.05)
    async with Caches(proxied) as caches:
        cache = caches.of(CONFIG_MAPS, namespace)
        for number in range(5):
            await put(client, namespace, f"slow-{number}")
        await until_equal(cache, client, CONFIG_MAPS, namespace)


async def test_watch_timeout_resumes_without_relist(
    client: Client, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "WATCH_SECONDS", 2)
    async with Caches(client) as caches:
        cache = caches.of(CONFIG_MAPS, namespace)
        await cache.wait_synced()
        for number in range(3):
            ended = sample("zonewise_watch_reconnects_total", cache, cause="closed")
            await put(client, namespace, f"during-{number}")
            await eventually(lambda: sample("zonewise_watch_reconnects_total", cache, cause="closed") > ended)  # noqa: B023
        await until_equal(cache, client, CONFIG_MAPS, namespace)
        assert sample("zonewise_watch_relists_total", cache) == 0


async def test_cache_syncs_once_a_missing_crd_is_installed(client: Client) -> None:
    gadgets = Resource(view=ConfigMap, kind="Gadget", plural="gadgets", group="watch.zonewise.dev")
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "gadgets.watch.zonewise.dev"},
        "spec": {
            "group": "watch.zonewise.dev",
            "scope": "Namespaced",
            "names": {"plural": "gadgets", "singular": "gadget", "kind": "Gadget"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                }
            ],
        },
    }
    definitions = Resource(
        view=ConfigMap,
        kind="CustomResourceDefinition",
        plural="customresourcedefinitions",
        group="apiextensions.k8s.io",
        namespaced=False,
    )
    async with Caches(client) as caches:
        cache = caches.of(gadgets)
        await eventually(lambda: "not found" in cache.problem)
        await client.create(definitions, definition)
        try:
            await cache.wait_synced()
        finally:
            await client.delete(definitions, "gadgets.watch.zonewise.dev")


async def post(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    response: dict[str, Any] = json.loads(await client.request("POST", path, body=json.dumps(body).encode()))
    return response


async def token_bound_to_a_secret(client: Client, namespace: str, secret: str) -> str:
    """Token of the default ServiceAccount, valid while the Secret exists."""
    created = await client.create(SECRETS, {"metadata": {"name": secret}}, namespace)
    bound = {"apiVersion": "v1", "kind": "Secret", "name": secret, "uid": created.metadata.uid}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
    token: str = (await post(client, path, request))["status"]["token"]
    return token


async def allow_watching_config_maps(client: Client, namespace: str) -> None:
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}
    await post(client, f"{path}/roles", {"metadata": {"name": "watcher"}, "rules": [rule]})
    binding = {
        "metadata": {"name": "watcher"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "watcher"},
    }
    await post(client, f"{path}/rolebindings", binding)


async def test_rotated_token_is_used_on_reconnect(
    client: Client, proxy: FaultProxy, cluster: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    await allow_watching_config_maps(client, namespace)
    token_file = tmp_path / "token"
    token_file.write_text(await token_bound_to_a_secret(client, namespace, "first"))
    config_path = proxy.kubeconfig(cluster.kubeconfig, tmp_path)
    config = yaml.safe_load(config_path.read_text())
    config["users"][0]["user"] = {"tokenFile": str(token_file)}
    config_path.write_text(yaml.safe_dump(config))
    async with await Client.connect(config_path) as rotating, Caches(rotating) as caches:
        cache = caches.of(CONFIG_MAPS, namespace)
        await until_equal(cache, client, CONFIG_MAPS, namespace)
        await client.delete(SECRETS, "first", namespace)

        async def refused() -> bool:
            """The server caches a valid token for ten seconds."""
            proxy.reset()
            await asyncio.sleep(0.5)
            return "unauthorized" in cache.problem

        await eventually(refused, "the revoked token is refused")
        token_file.write_text(await token_bound_to_a_secret(client, namespace, "second"))
        await put(client, namespace, "with-the-new-token")
        await until_equal(cache, client, CONFIG_MAPS, namespace)
        assert sample("zonewise_watch_relists_total", cache) == 0
