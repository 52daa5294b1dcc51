"""Client calls and watches under network and server faults, through a fault-injecting TCP proxy."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from support.kube.fault_proxy import FaultProxy
from support.waiting import eventually
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client, EventType
from zonewise.kube.wire.errors import DeadlineExceeded, NotFound, Unreachable
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.objects import CONFIG_MAPS, ConfigMap


@pytest.fixture
async def proxy(cluster: ControlPlane) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(cluster.server) as proxy:
        yield proxy


@pytest.fixture
async def proxied(cluster: ControlPlane, proxy: FaultProxy, tmp_path: Path) -> AsyncIterator[Client]:
    """Client that connects through the proxy."""
    async with await Client.connect(proxy.kubeconfig(cluster.kubeconfig, tmp_path)) as client:
        yield client


async def fill(client: Client, namespace: str, count: int = 5, size: int = 20_000) -> set[str]:
    names = {f"x{number}" for number in range(count)}
    for name in names:
        await client.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": {"a": "x" * size}}, namespace)
    return names


async def test_read_with_a_cut_response_is_retried(
    client: Client, proxied: Client, proxy: FaultProxy, namespace: str
) -> None:
    names = await fill(client, namespace)
    await proxied.version()
    proxy.reset_after(30_000)
    listing = await proxied.list(CONFIG_MAPS, namespace)
    assert {item.metadata.name for item in listing.items} - {"kube-root-ca.crt"} == names
    assert proxy.accepted == 2


async def test_read_waits_for_an_unreachable_server(proxied: Client, proxy: FaultProxy) -> None:
    await proxy.refuse()
    waiting = asyncio.create_task(proxied.version())
    await asyncio.sleep(0.5)
    assert not waiting.done()
    await proxy.heal()
    assert (await waiting).startswith("v1.")


async def test_write_waits_for_an_unreachable_server(proxied: Client, proxy: FaultProxy, namespace: str) -> None:
    await proxy.refuse()
    waiting = asyncio.create_task(proxied.create(CONFIG_MAPS, {"metadata": {"name": "x"}}, namespace))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    await proxy.heal()
    assert (await waiting).metadata.name == "x"


async def test_unreachable_server_fails_at_once_without_wait_for_server(
    cluster: ControlPlane, proxy: FaultProxy, tmp_path: Path
) -> None:
    access = kubeconfig.load(proxy.kubeconfig(cluster.kubeconfig, tmp_path))
    await proxy.refuse()
    async with Client(access, wait_for_server=False) as client:
        with pytest.raises(
            Unreachable, match=r"^unreachable: get of /version: Cannot connect to host 127.0.0.1"
        ) as raised:
            await client.version()
    assert not raised.value.sent


async def test_deadline_error_contains_the_last_failure(proxied: Client, proxy: FaultProxy) -> None:
    await proxy.refuse()
    with pytest.raises((DeadlineExceeded, Unreachable), match="Cannot connect to host"):
        await proxied.request("GET", "/version", deadline_seconds=1)


@pytest.mark.parametrize("verb", ["create", "update", "patch", "delete"])
async def test_write_with_a_cut_response_is_not_retried(
    client: Client, proxied: Client, proxy: FaultProxy, namespace: str, verb: str
) -> None:
    """It was processed: a retry would conflict with itself, or overwrite a later change."""
    created = await client.create(CONFIG_MAPS.whole(), {"metadata": {"name": "x"}}, namespace)
    calls: dict[str, Any] = {
        "create": lambda: proxied.create(CONFIG_MAPS, {"metadata": {"name": "y"}}, namespace),
        "update": lambda: proxied.update(CONFIG_MAPS, {**created, "data": {"a": "1"}}),
        "patch": lambda: proxied.patch(CONFIG_MAPS, "x", MergePatch({"data": {"a": "1"}}), namespace),
        "delete": lambda: proxied.delete(CONFIG_MAPS, "x", namespace),
    }
    await proxied.version()  # a pooled connection, where HTTP libraries retry on their own
    accepted = proxy.accepted
    proxy.reset_after(10)
    with pytest.raises(Unreachable) as raised:
        await calls[verb]()
    assert raised.value.sent
    assert raised.value.action.startswith(f"{verb} of configmaps {namespace}/")
    assert proxy.accepted == accepted

    async def was_processed() -> bool:
        try:
            config_map = await client.get(CONFIG_MAPS, "y" if verb == "create" else "x", namespace)
        except NotFound:
            return verb == "delete"
        return verb == "create" or config_map.data == {"a": "1"}

    await eventually(was_processed)


async def test_every_call_ends_at_its_deadline(proxied: Client, proxy: FaultProxy, namespace: str) -> None:
    await proxied.version()
    proxy.go_silent()
    with pytest.raises(
        DeadlineExceeded, match=rf"^deadline exceeded: get of configmaps {namespace}/x: no answer within 0.5 s"
    ):
        await proxied.get(CONFIG_MAPS, "x", namespace, deadline_seconds=0.5)
    with pytest.raises(DeadlineExceeded):
        await proxied.create(CONFIG_MAPS, {"metadata": {"name": "x"}}, namespace, deadline_seconds=0.5)
    with pytest.raises(DeadlineExceeded):
        await proxied.list(CONFIG_MAPS, namespace, deadline_seconds=0.5)
    with pytest.raises(DeadlineExceeded):
        await anext(proxied.watch(CONFIG_MAPS, namespace, resource_version="", deadline_seconds=0.5))
    await proxy.heal()
    assert (await proxied.version()).startswith("v1.")


async def test_slow_server_is_waited_for(proxied: Client, proxy: FaultProxy) -> None:
    proxy.delay(0.2)
    assert (await proxied.version()).startswith("v1.")


async def test_reset_watch_raises_unreachable(
    client: Client, proxied: Client, proxy: FaultProxy, namespace: str
) -> None:
    start = (await client.list(CONFIG_MAPS, namespace)).resource_version
    async with aclosing(proxied.watch(CONFIG_MAPS, namespace, resource_version=start)) as events:
        await client.create(CONFIG_MAPS, {"metadata": {"name": "x"}}, namespace)
        assert (await anext(events)).type is EventType.ADDED
        proxy.reset()
        with pytest.raises(Unreachable, match=f"^unreachable: watch of configmaps in {namespace}: "):
            await anext(events)


async def test_watch_cut_within_an_event_yields_only_complete_events(
    client: Client, proxied: Client, proxy: FaultProxy, namespace: str
) -> None:
    start = (await client.list(CONFIG_MAPS, namespace)).resource_version
    await fill(client, namespace, count=4)
    await proxied.version()
    proxy.reset_after(50_000)
    received: list[ConfigMap] = []

    async def collect() -> None:
        fields = "metadata.name!=kube-root-ca.crt"
        async for event in proxied.watch(CONFIG_MAPS, namespace, fields=fields, resource_version=start):
            received.append(event.object)  # noqa: PERF401 - events before the cut count

    with pytest.raises(Unreachable):
        await collect()
    assert 0 < len(received) < 4
    assert all(len(config_map.data["a"]) == 20_000 for config_map in received)


async def test_silent_watch_raises_unreachable(
    client: Client, proxied: Client, proxy: FaultProxy, namespace: str
) -> None:
    start = (await client.list(CONFIG_MAPS, namespace)).resource_version
    watch = proxied.watch(CONFIG_MAPS, namespace, resource_version=start, silence_seconds=2)
    async with aclosing(watch) as events:
        await client.create(CONFIG_MAPS, {"metadata": {"name": "x"}}, namespace)
        await anext(events)
        proxy.go_silent()
        with pytest.raises(Unreachable, match="nothing came for 2 s"):
            await anext(events)


async def test_closed_watch_frees_its_connection(proxied: Client, proxy: FaultProxy, namespace: str) -> None:
    for _ in range(3):
        watch = proxied.watch(CONFIG_MAPS, namespace, resource_version="", initial_events=True)
        async with aclosing(watch) as events:
            await anext(events)
    await eventually(lambda: not proxy._connections)


async def test_client_is_usable_after_a_cancelled_call(proxied: Client, proxy: FaultProxy) -> None:
    await proxied.version()
    proxy.go_silent()
    waiting = asyncio.create_task(proxied.version())
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await proxy.heal()
    assert (await proxied.version()).startswith("v1.")


async def test_unconnected_client_raises(cluster: ControlPlane) -> None:
    client = Client(kubeconfig.load(cluster.kubeconfig))
    with pytest.raises(RuntimeError, match="not connected"):
        await client.version()
    async with client:
        await client.version()
    with pytest.raises(RuntimeError, match="not connected"):
        await client.version()
