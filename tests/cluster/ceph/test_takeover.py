"""A domain fails and others take it over, on a real API server: where the real scheduler puts pods with its volumes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from support.ceph.cluster import CONFIG, Bed
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

ZONE, REGION = f"{CSI_TOPOLOGY_PREFIX}zone", f"{CSI_TOPOLOGY_PREFIX}region"
TAKES_A = takeover_key("zone", "zone-a")


@pytest.fixture
async def bed(client: Client, namespace: str) -> AsyncIterator[Bed]:
    made = Bed(client, namespace)
    yield made
    await made.remove()


@asynccontextmanager
async def plugin(bed: Bed, node: str) -> AsyncIterator[TopologyLabels]:
    """What a node plugin runs beside its gRPC server."""
    caches = Caches(bed.client)
    where = NodeTopology(node, bed.labels, Key(bed.namespace, CONFIG))
    async with Recorder(bed.client, "zonewise.dev/csi", node) as recorder:
        advertising = TopologyLabels(bed.client, caches, recorder, where)
        async with caches:
            await caches.wait_synced()
            running = asyncio.create_task(advertising.run())
            try:
                yield advertising
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)


async def test_a_failed_domain_is_taken_over_and_given_back(bed: Bed) -> None:
    nodes = {zone: await bed.node(zone) for zone in ("zone-a", "zone-b", "zone-c")}
    async with AsyncExitStack() as stack:
        for zone, node in nodes.items():
            found = await stack.enter_async_context(plugin(bed, node))
            assert await asyncio.to_thread(found.segments) == {REGION: "eu", ZONE: zone}
            await bed.until_labelled(node, {REGION: "eu", ZONE: zone})
        await bed.volume("data", (("region", "eu"), ("zone", "zone-a")))
        await bed.pod("db", "data")
        assert await bed.until_scheduled("db") == nodes["zone-a"]

        await bed.fail(nodes["zone-a"])
        await bed.remove_pod("db")
        await bed.pod("db-2", "data")
        await bed.until_unschedulable("db-2")
        await bed.take_over({"zone=zone-a": ["zone-c"]})
        assert await bed.until_scheduled("db-2") == nodes["zone-c"]
        assert TAKES_A not in await bed.labels_of(nodes["zone-b"])

        await bed.take_over({"zone=zone-a": "zone-c"})  # a mistake: nothing is given back
        await bed.take_over({"zone=zone-a": ["zone=zone-b"]})
        await bed.until_labelled(nodes["zone-b"], {TAKES_A: ACTIVE})
        await bed.until_labelled(nodes["zone-c"], {TAKES_A: None})

        await bed.recover(nodes["zone-a"])
        await bed.take_over({})
        for node in nodes.values():
            await bed.until_labelled(node, {TAKES_A: None})
        await bed.remove_pod("db-2")
        await bed.pod("db-3", "data")
        assert await bed.until_scheduled("db-3") == nodes["zone-a"]
        await eventually(lambda: said(bed, nodes["zone-c"], {"DomainTakenOver", "DomainGivenBack"}))


async def said(bed: Bed, node: str, reasons: set[str]) -> bool:
    events = (await bed.client.list(EVENTS, "default", fields=f"regarding.name={node}")).items
    return reasons <= {event.reason for event in events}


async def test_nodes_without_labels_are_served_and_take_over_with_all(bed: Bed) -> None:
    stray = await bed.node("")
    await bed.register(stray, [UNLABELLED])
    async with plugin(bed, stray) as advertising:
        assert await asyncio.to_thread(advertising.segments) == {UNLABELLED: "true"}
        await bed.take_over({"zone-a": ["all"]})
        await bed.until_labelled(stray, {UNLABELLED: "true", TAKES_A: ACTIVE, takeover_key("region", "zone-a"): ACTIVE})
        await bed.volume("data", (("zone", "zone-a"),))
        await bed.pod("db", "data")
        assert await bed.until_scheduled("db") == stray

        await bed.label(stray, {bed.zone_label: "zone-b", bed.region_label: "eu"})
        await bed.until_labelled(stray, {ZONE: "zone-b", REGION: "eu", UNLABELLED: None})
        await eventually(lambda: keys_of(bed, stray, [REGION, ZONE]))
        assert await asyncio.to_thread(advertising.segments) == {REGION: "eu", ZONE: "zone-b"}
        await bed.label(stray, {bed.zone_label: "zone-a"})
        await bed.until_labelled(stray, {ZONE: "zone-a", TAKES_A: None})


async def keys_of(bed: Bed, node: str, keys: list[str]) -> bool:
    drivers = (await bed.client.get(CSI_NODES, node)).spec.drivers or ()
    return [sorted(driver.topology_keys) for driver in drivers if driver.name == CSI_DRIVER] == [keys]


async def test_a_registration_that_was_left_half_way_is_finished(bed: Bed) -> None:
    """The plugin was killed between its two writes. One write would not do: the server refuses to change an entry."""
    node = await bed.node("zone-b")
    await bed.register(node, [UNLABELLED])
    whole = await bed.client.get(CSI_NODES.whole(), node)
    whole["spec"]["drivers"][0]["topologyKeys"] = [REGION, ZONE]
    with pytest.raises(Invalid):
        await bed.client.update(CSI_NODES.whole(), whole)
    note = (
        f'{{"name": "{CSI_DRIVER}", "nodeID": "n-7", "topologyKeys": ["{UNLABELLED}"], "allocatable": {{"count": 30}}}}'
    )
    left = await bed.client.get(CSI_NODES.whole(), node)
    left["spec"]["drivers"] = []
    left["metadata"]["annotations"] = {REJOINING: note}
    await bed.client.update(CSI_NODES.whole(), left)
    async with plugin(bed, node):
        await eventually(lambda: keys_of(bed, node, [REGION, ZONE]))
    found = await bed.client.get(CSI_NODES.whole(), node)
    assert found["spec"]["drivers"][0] | {"topologyKeys": []} == {
        "name": CSI_DRIVER,
        "nodeID": "n-7",
        "topologyKeys": [],
        "allocatable": {"count": 30},
    }
    assert REJOINING not in found["metadata"].get("annotations", {})
