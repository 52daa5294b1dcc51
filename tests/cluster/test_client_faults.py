"""What calls and watches do when the network or the server fails: through a TCP proxy that breaks on demand."""

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
async def through(cluster: ControlPlane, proxy: FaultProxy, tmp_path: Path) -> AsyncIterator[Client]:
    """A client that goes through the proxy."""
    async with await Client.connect(proxy.kubeconfig(cluster.kubeconfig, tmp_path)) as client:
        yield client


async def fill(client: Client, namespace: str, count: int = 5, size: int = 20_000) -> set[str]:
    names = {f"x{number}" for number in range(count)}
    for name in names:
        await client.create(CONFIG_MAPS, {"metadata": {"name": name}, "data": {"a": "x" * size}}, namespace)
    return names


async def test_a_read_cut_in_the_middle_of_its_answer_is_repeated(
    client: Client, through: Client, proxy: FaultProxy, namespace: str
) -> None:
    names = await fill(client, namespace)
    await through.version()
    proxy.reset_after(30_000)
    listing = await through.list(CONFIG_MAPS, namespace)
    assert {item.metadata.name for item in listing.items} - {"kube-root-ca.crt"} == names
    assert proxy.accepted == 2


async def test_a_read_waits_for_a_server_that_is_away(through: Client, proxy: FaultProxy) -> None:
    await proxy.refuse()
    waiting = asyncio.create_task(through.version())
    await asyncio.sleep(0.5)
    assert not waiting.done()
    await proxy.heal()
    assert (await waiting).startswith("v1.")


async def test_a_write_waits_for_a_server_that_is_away(through: Client, proxy: FaultProxy, namespace: str) -> None:
    await proxy.refuse()
    waiting = asyncio.create_task(through.create(CONFIG_MAPS, {"metadata": {"name": "x"}}, namespace))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    await proxy.heal()
    assert (await waiting).metadata.name == "x"


async def test_a_caller_without_patience_gets_the_error_at_once(
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


async def test_the_deadline_says_what_was_last_tried(through: Client, proxy: FaultProxy) -> None:
    await proxy.refuse()
    with pytest.raises((DeadlineExceeded, Unreachable), match="Cannot connect to host"):
        await through.request("GET", "/version", deadline_seconds=1)


@pytest.mark.parametrize("verb", ["create", "update", "patch", "delete"])
async def test_a_write_whose_answer_was_cut_is_not_repeated(
    client: Client, through: Client, proxy: FaultProxy, namespace: str, verb: str
) -> None:
    """It was processed: sending it again would conflict with itself, or hit what came after it."""
    made = await client.create(CONFIG_MAPS.whole(), {"metadata": {"name": "x"}}, namespace)
    calls: dict[str, Any] = {
        "create": lambda: through.create(CONFIG_MAPS, {"metadata": {"name": "y"}}, namespace),
        "update": lambda: through.update(CONFIG_MAPS, {**made, "data": {"a": "1"}}),
        "patch": lambda: through.patch(CONFIG_MAPS, "x", MergePatch({"data": {"a": "1"}}), namespace),
        "delete": lambda: through.delete(CONFIG_MAPS, "x", namespace),
    }
    await through.version()  # a connection in the pool, the case in which HTTP libraries repeat by themselves
    accepted = proxy.accepted
    proxy.reset_after(10)
    with pytest.raises(Unreachable) as raised:
        await calls[verb]()
    assert raised.value.sent
    assert raised.value.action.startswith(f"{verb} of configmaps {namespace}/")
    assert proxy.accepted == accepted

    async def was_processed() -> bool:
        try:
            found = await client.get(CONFIG_MAPS, "y" if verb == "create" else "x", namespace)
        except NotFound:
            return verb == "delete"
        return verb == "create" or found.data == {"a": "1"}

    await eventually(was_processed)


async def test_every_call_ends_at_its_deadline(through: Client, proxy: FaultProxy, namespace: str) -> None:
    await through.version()
    proxy.go_silent()
    with pytest.raises(
        DeadlineExceeded, match=rf"^deadline exceeded: get of configmaps {namespace}/x: no answer within 0.5 s"
    ):
        await through.get(CONFIG_MAPS, "x", namespace, deadline_seconds=0.5)
    with pytest.raises(DeadlineExceeded):
        await through.create(CONFIG_MAPS, {"metadata": {"name": "x"}}, namespace, deadline_seconds=0.5)
    with pytest.raises(DeadlineExceeded):
        await through.list(CONFIG_MAPS, namespace, deadline_seconds=0.5)
    with pytest.raises(DeadlineExceeded):
        await anext(through.watch(CONFIG_MAPS, namespace, resource_version="", deadline_seconds=0.5))
    await proxy.heal()
    assert (await through.version()).startswith("v1.")


async def test_a_slow_server_is_waited_for(through: Client, proxy: FaultProxy) -> None:
    proxy.delay(0.2)
    assert (await through.version()).startswith("v1.")


async def test_a_watch_that_is_reset_says_so(
    client: Client, through: Client, proxy: FaultProxy, namespace: str
) -> None:
    start = (await client.list(CONFIG_MAPS, namespace)).resource_version
    async with aclosing(through.watch(CONFIG_MAPS, namespace, resource_version=start)) as events:
        await client.create(CONFIG_MAPS, {"metadata": {"name": "x"}}, namespace)
        assert (await anext(events)).type is EventType.ADDED
        proxy.reset()
        with pytest.raises(Unreachable, match=f"^unreachable: watch of configmaps in {namespace}: "):
            await anext(events)


async def test_a_watch_cut_in_the_middle_of_an_event_gives_only_whole_ones(
    client: Client, through: Client, proxy: FaultProxy, namespace: str
) -> None:
    start = (await client.list(CONFIG_MAPS, namespace)).resource_version
    await fill(client, namespace, count=4)
    await through.version()
    proxy.reset_after(50_000)
    seen: list[ConfigMap] = []

    async def collect() -> None:
        ours = "metadata.name!=kube-root-ca.crt"
        async for event in through.watch(CONFIG_MAPS, namespace, fields=ours, resource_version=start):
            seen.append(event.object)  # noqa: PERF401 - what came before the cut counts

    with pytest.raises(Unreachable):
        await collect()
    assert 0 < len(seen) < 4
    assert all(len(viewed.data["a"]) == 20_000 for viewed in seen)


async def test_a_silent_watch_is_given_up(client: Client, through: Client, proxy: FaultProxy, namespace: str) -> None:
    start = (await client.list(CONFIG_MAPS, namespace)).resource_version
    watch = through.watch(CONFIG_MAPS, namespace, resource_version=start, silence_seconds=2)
    async with aclosing(watch) as events:
        await client.create(CONFIG_MAPS, {"metadata": {"name": "x"}}, namespace)
        await anext(events)
        proxy.go_silent()
        with pytest.raises(Unreachable, match="nothing came for 2 s"):
            await anext(events)


async def test_a_watch_left_early_frees_its_connection(through: Client, proxy: FaultProxy, namespace: str) -> None:
    for _ in range(3):
        watch = through.watch(CONFIG_MAPS, namespace, resource_version="", initial_events=True)
        async with aclosing(watch) as events:
            await anext(events)
    await eventually(lambda: not proxy._connections)


async def test_a_cancelled_call_leaves_the_client_usable(through: Client, proxy: FaultProxy) -> None:
    await through.version()
    proxy.go_silent()
    waiting = asyncio.create_task(through.version())
    await asyncio.sleep(0.1)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await proxy.heal()
    assert (await through.version()).startswith("v1.")


async def test_a_client_must_be_connected(cluster: ControlPlane) -> None:
    client = Client(kubeconfig.load(cluster.kubeconfig))
    with pytest.raises(RuntimeError, match="not connected"):
        await client.version()
    async with client:
        await client.version()
    with pytest.raises(RuntimeError, match="not connected"):
        await client.version()
