"""What a node receives of slice groups: its own zone's, the shared and the global ones, and another zone's once it moves."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from network.proxy.cluster import LABEL
from support.waiting import eventually
from zonewise.kube.client.client import Client
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import ENDPOINT_SLICES, NODES, SERVICES, Key
from zonewise.proxy.informers import ProxyInformers

ZONE = "topology.kubernetes.io/zone"
GROUPS = {"a": "10.1.0.1", "b": "10.2.0.1", "zonewise-shared": "10.3.0.1", "zonewise-all": "10.4.0.1", "": "10.5.0.1"}


@pytest.fixture
async def node(client: Client) -> AsyncIterator[str]:
    name = f"n-{uuid.uuid4().hex[:8]}"
    await client.create(NODES, {"metadata": {"name": name, "labels": {ZONE: "a"}}})
    yield name
    await client.delete(NODES, name)


@pytest.fixture
async def service(client: Client, namespace: str) -> Key:
    """With one slice per group, each with one address, and one of no group."""
    spec = {"ports": [{"name": "http", "port": 80}]}
    await client.create(SERVICES, {"metadata": {"name": "web", "labels": LABEL}, "spec": spec}, namespace)
    for group, address in GROUPS.items():
        consumer = {"zonewise.dev/consumer": group} if group else {}
        body = {
            "metadata": {
                "name": f"web-{group or 'plain'}",
                "labels": {"kubernetes.io/service-name": "web", **LABEL, **consumer},
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080}],
            "endpoints": [{"addresses": [address]}],
        }
        await client.create(ENDPOINT_SLICES, body, namespace)
    return Key(namespace, "web")


@asynccontextmanager
async def running(caches: Caches, sources: ProxyInformers) -> AsyncIterator[None]:
    synced = asyncio.Event()
    async with caches:
        task = asyncio.create_task(sources.run(synced))
        try:
            await synced.wait()
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _addresses(sources: ProxyInformers, service: Key) -> set[str]:
    slices = sources.slices_of(service)
    return {address for found in slices for endpoint in found.endpoints or () for address in endpoint.addresses}


async def test_a_node_gets_its_zone_s_groups_and_follows_its_label(client: Client, node: str, service: Key) -> None:
    for_everyone = {GROUPS[group] for group in ("zonewise-shared", "zonewise-all", "")}
    caches = Caches(client)
    sources = ProxyInformers(client, caches, node, all_services=False)
    marked: set[Key] = set()
    sources.on_dirty = marked.update
    async with running(caches, sources):
        assert _addresses(sources, service) == {GROUPS["a"], *for_everyone}
        await client.patch(NODES, node, MergePatch({"metadata": {"labels": {ZONE: "b"}}}))
        await eventually(lambda: _addresses(sources, service) == {GROUPS["b"], *for_everyone}, "the other zone's group")
        await eventually(lambda: service in marked, "the Service is looked at again")
        assert sources.place().zone == "b"
        sources.watch_every_group(True)
        await eventually(lambda: _addresses(sources, service) == set(GROUPS.values()), "every group, if asked for")
        sources.watch_every_group(False)
        await eventually(lambda: _addresses(sources, service) == {GROUPS["b"], *for_everyone}, "and its own again")
        await client.patch(NODES, node, MergePatch({"metadata": {"labels": {ZONE: None}}}))
        await eventually(lambda: _addresses(sources, service) == set(GROUPS.values()), "without a zone, every group")
