"""Takeover of a failed domain on a real API server: where the scheduler places pods with its volumes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from support.ceph.cluster import CONFIG, CsiCluster
from support.waiting import eventually
from zonewise.api.names import CSI_DRIVER, CSI_TOPOLOGY_PREFIX
from zonewise.ceph.decide.csinode import REJOINING
from zonewise.ceph.decide.domains import ACTIVE, UNLABELLED, takeover_key
from zonewise.ceph.node.topology_labels import NodeTopology, TopologyLabels
from zonewise.kube.client.client import Client
from zonewise.kube.controller.recorder import Recorder
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.errors import Invalid
from zonewise.objects import EVENTS, Key
from zonewise.objects.storage import CSI_NODES

pytestmark = pytest.mark.xdist_group("ceph-cluster")  # they label nodes of the shared cluster

ZONE, REGION = f"{CSI_TOPOLOGY_PREFIX}zone", f"{CSI_TOPOLOGY_PREFIX}region"
TAKES_A = takeover_key("zone", "zone-a")


@pytest.fixture
async def kube(client: Client, namespace: str) -> AsyncIterator[CsiCluster]:
    created = CsiCluster(client, namespace)
    yield created
    await created.remove()


@asynccontextmanager
async def plugin(kube: CsiCluster, node: str) -> AsyncIterator[TopologyLabels]:
    """The part of a node plugin that talks to Kubernetes."""
    caches = Caches(kube.client)
    topology = NodeTopology(node, kube.labels, Key(kube.namespace, CONFIG))
    async with Recorder(kube.client, "zonewise.dev/csi", node) as recorder:
        advertising = TopologyLabels(kube.client, caches, recorder, topology)
        async with caches:
            await caches.wait_synced()
            running = asyncio.create_task(advertising.run())
            try:
                yield advertising
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


async def test_failed_domain_is_taken_over_and_given_back(kube: CsiCluster) -> None:
    nodes = {zone: await kube.node(zone) for zone in ("zone-a", "zone-b", "zone-c")}
    async with AsyncExitStack() as stack:
        for zone, node in nodes.items():
            labels = await stack.enter_async_context(plugin(kube, node))
            assert await asyncio.to_thread(labels.segments) == {REGION: "eu", ZONE: zone}
            await kube.until_labelled(node, {REGION: "eu", ZONE: zone})
        await kube.volume("data", (("region", "eu"), ("zone", "zone-a")))
        await kube.pod("db", "data")
        assert await kube.until_scheduled("db") == nodes["zone-a"]

        await kube.fail(nodes["zone-a"])
        await kube.remove_pod("db")
        await kube.pod("db-2", "data")
        await kube.until_unschedulable("db-2")
        await kube.take_over({"zone=zone-a": ["zone-c"]})
        assert await kube.until_scheduled("db-2") == nodes["zone-c"]
        assert TAKES_A not in await kube.labels_of(nodes["zone-b"])

        await kube.take_over({"zone=zone-a": "zone-c"})  # invalid: nothing is given back
        await kube.take_over({"zone=zone-a": ["zone=zone-b"]})
        await kube.until_labelled(nodes["zone-b"], {TAKES_A: ACTIVE})
        await kube.until_labelled(nodes["zone-c"], {TAKES_A: None})

        await kube.recover(nodes["zone-a"])
        await kube.take_over({})
        for node in nodes.values():
            await kube.until_labelled(node, {TAKES_A: None})
        await kube.remove_pod("db-2")
        await kube.pod("db-3", "data")
        assert await kube.until_scheduled("db-3") == nodes["zone-a"]
        await eventually(lambda: has_events(kube, nodes["zone-c"], {"DomainTakenOver", "DomainGivenBack"}))


async def has_events(kube: CsiCluster, node: str, reasons: set[str]) -> bool:
    events = (await kube.client.list(EVENTS, "default", fields=f"regarding.name={node}")).items
    return reasons <= {event.reason for event in events}


async def test_nodes_without_labels_take_over_with_all(kube: CsiCluster) -> None:
    stray = await kube.node("")
    await kube.register(stray, [UNLABELLED])
    async with plugin(kube, stray) as advertising:
        assert await asyncio.to_thread(advertising.segments) == {UNLABELLED: "true"}
        await kube.take_over({"zone-a": ["all"]})
        await kube.until_labelled(
            stray, {UNLABELLED: "true", TAKES_A: ACTIVE, takeover_key("region", "zone-a"): ACTIVE}
        )
        await kube.volume("data", (("zone", "zone-a"),))
        await kube.pod("db", "data")
        assert await kube.until_scheduled("db") == stray

        await kube.label(stray, {kube.zone_label: "zone-b", kube.region_label: "eu"})
        await kube.until_labelled(stray, {ZONE: "zone-b", REGION: "eu", UNLABELLED: None})
        await eventually(lambda: keys_of(kube, stray, [REGION, ZONE]))
        assert await asyncio.to_thread(advertising.segments) == {REGION: "eu", ZONE: "zone-b"}
        await kube.label(stray, {kube.zone_label: "zone-a"})
        await kube.until_labelled(stray, {ZONE: "zone-a", TAKES_A: None})


async def keys_of(kube: CsiCluster, node: str, keys: list[str]) -> bool:
    drivers = (await kube.client.get(CSI_NODES, node)).spec.drivers or ()
    return [sorted(driver.topology_keys) for driver in drivers if driver.name == CSI_DRIVER] == [keys]


async def test_interrupted_csinode_change_is_finished(kube: CsiCluster) -> None:
    """The plugin was killed between its two writes. One write is not enough: the API server rejects changes to an entry."""
    node = await kube.node("zone-b")
    await kube.register(node, [UNLABELLED])
    whole = await kube.client.get(CSI_NODES.whole(), node)
    whole["spec"]["drivers"][0]["topologyKeys"] = [REGION, ZONE]
    with pytest.raises(Invalid):
        await kube.client.update(CSI_NODES.whole(), whole)
    entry = (
        f'{{"name": "{CSI_DRIVER}", "nodeID": "n-7", "topologyKeys": ["{UNLABELLED}"], "allocatable": {{"count": 30}}}}'
    )
    interrupted = await kube.client.get(CSI_NODES.whole(), node)
    interrupted["spec"]["drivers"] = []
    interrupted["metadata"]["annotations"] = {REJOINING: entry}
    await kube.client.update(CSI_NODES.whole(), interrupted)
    async with plugin(kube, node):
        await eventually(lambda: keys_of(kube, node, [REGION, ZONE]))
    finished = await kube.client.get(CSI_NODES.whole(), node)
    assert finished["spec"]["drivers"][0] | {"topologyKeys": []} == {
        "name": CSI_DRIVER,
        "nodeID": "n-7",
        "topologyKeys": [],
        "allocatable": {"count": 30},
    }
    assert REJOINING not in finished["metadata"].get("annotations", {})
