"""Slice groups that a node watches: its zone's, shared and global ones, and those of a new zone after a change."""

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
from zonewise.proxy.decide.node_health import is_eligible
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
    """With one slice per group and one without a group, each with one address."""
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
async def running(caches: Caches, informers: ProxyInformers) -> AsyncIterator[None]:
    synced = asyncio.Event()
    async with caches:
        task = asyncio.create_task(informers.run(synced))
        try:
            await synced.wait()
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _addresses(informers: ProxyInformers, service: Key) -> set[str]:
    slices = informers.slices_of(service)
    return {
        address
        for endpoint_slice in slices
        for endpoint in endpoint_slice.endpoints or ()
        for address in endpoint.addresses
    }


def _names(slices: set[Key], service: Key) -> set[str]:
    return {key.name for key in slices if key.namespace == service.namespace}


async def test_node_watches_the_groups_of_its_zone_label(client: Client, node: str, service: Key) -> None:
    common = {GROUPS[group] for group in ("zonewise-shared", "zonewise-all", "")}
    caches = Caches(client)
    informers = ProxyInformers(client, caches, node, all_services=False)
    dirty: set[Key] = set()
    informers.on_dirty = dirty.update
    reported: set[Key] = set()
    informers.on_slice = lambda change: reported.add(change.key)
    async with running(caches, informers):
        assert _addresses(informers, service) == {GROUPS["a"], *common}
        assert _names(reported, service) == {"web-a", "web-plain", "web-zonewise-shared", "web-zonewise-all"}
        await client.patch(NODES, node, MergePatch({"metadata": {"labels": {ZONE: "b"}}}))
        await eventually(lambda: _addresses(informers, service) == {GROUPS["b"], *common}, "the other zone's group")
        await eventually(lambda: service in dirty, "the Service is marked dirty")
        assert informers.location().zone == "b"
        assert "web-b" not in _names(reported, service), "it was there before"
        informers.watch_every_group(True)
        await eventually(lambda: _addresses(informers, service) == set(GROUPS.values()), "every group on request")
        informers.watch_every_group(False)
        await eventually(lambda: _addresses(informers, service) == {GROUPS["b"], *common}, "its own group again")
        await client.patch(NODES, node, MergePatch({"metadata": {"labels": {ZONE: None}}}))
        await eventually(lambda: _addresses(informers, service) == set(GROUPS.values()), "without a zone, every group")


async def test_deleted_node_stays_known_as_it_was_last(client: Client) -> None:
    """An autoscaler taints a node, deletes its object, and then ends the machine: load balancers must not come back."""
    name, taint = f"n-{uuid.uuid4().hex[:8]}", {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
    await client.create(NODES, {"metadata": {"name": name, "labels": {ZONE: "a"}}})
    caches = Caches(client)
    informers = ProxyInformers(client, caches, name, all_services=False)
    async with running(caches, informers):
        assert is_eligible(informers.last_node)
        await client.patch(NODES, name, MergePatch({"spec": {"taints": [taint]}}))
        await eventually(lambda: not is_eligible(informers.last_node), "the taint is seen")
        await client.delete(NODES, name)
        await eventually(lambda: not informers.node.metadata.name, "the node is gone")
        assert not is_eligible(informers.last_node)
