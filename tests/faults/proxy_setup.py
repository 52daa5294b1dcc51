"""The node proxy on the node of a network of namespaces, with a link to its API server that tests cut."""

from __future__ import annotations

import asyncio
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from network.proxy import node as node_nets
from network.proxy.cluster import RunningProxy, create_service, create_slice, started
from network.proxy.node import FAR_PODS, NEAR_PODS, NODE, NodeNet
from support.kube.fault_proxy import FaultProxy
from support.slices import cluster
from support.waiting import eventually
from unit.proxy.build import endpoint
from zonewise.kube.client.client import Client
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.network import namespaces
from zonewise.objects import ENDPOINT_SLICES, NODES, SERVICES

FAR = [four for four, _ in FAR_PODS]
NEAR = [four for four, _ in NEAR_PODS.values()]
PORTS = [{"name": "main", "port": 80}]
ZONE = "topology.kubernetes.io/zone"

Json = dict[str, Any]


@pytest.fixture(scope="session")
def node_net() -> Iterator[NodeNet]:
    with node_nets.create() as net:
        yield net


@dataclass
class ProxySetup:
    """A proxy on the network's node, node a1 of a real cluster, which it reaches through `link`."""

    node_net: NodeNet
    client: Client
    namespace: str
    link: FaultProxy
    proxy: RunningProxy

    async def serve(self, name: str, addresses: Sequence[str], **spec: Any) -> str:
        service = await create_service(self, name, {"ports": PORTS, **spec}, ours=True)
        await create_slice(self, name, endpoints_at(addresses), ours=True)
        return str(service["spec"]["clusterIP"])

    async def set_endpoints(self, name: str, endpoints: Sequence[Json]) -> None:
        patch = MergePatch({"endpoints": list(endpoints)})
        await self.client.patch(ENDPOINT_SLICES, f"{name}-hand", patch, self.namespace)

    async def reaches(self, address: str, *expected: str, port: int = 80) -> None:
        """From outside, exactly these endpoints answer."""

        async def check() -> bool:
            answering = await asyncio.to_thread(self.node_net.endpoints, "out", address, port, 24)
            return set(answering) == set(expected)

        await eventually(check, f"{address} leads to {expected}: {self.proxy.log.read_text()[-3000:]}")

    def metric(self, name: str) -> float:
        return sum(float(line.rpartition(" ")[2]) for line in self.proxy.metrics() if line.startswith(name))


def endpoints_at(addresses: Sequence[str], **conditions: bool) -> list[Json]:
    return [endpoint(address, "a1" if address in NEAR else "b1", **conditions) for address in addresses]


@pytest.fixture
async def setup(breakable: ControlPlane, node_net: NodeNet, tmp_path: Path) -> AsyncIterator[ProxySetup]:
    await asyncio.to_thread(breakable.wait_ready)
    inside = node_net.netns("node")
    async with AsyncExitStack() as stack:
        listen = _listening_in(inside)
        link = await stack.enter_async_context(FaultProxy(breakable.server, listen))
        client = await stack.enter_async_context(cluster.connect(breakable))
        namespace = f"t-{uuid.uuid4().hex[:8]}"
        breakable.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        await stack.enter_async_context(_node(client))
        config = link.kubeconfig(breakable.kubeconfig, tmp_path)
        running = RunningProxy(config, "a1", inside, tmp_path / "proxy.log")
        await stack.enter_async_context(_in_thread(started(running)))
        yield ProxySetup(node_net, client, namespace, link, running)
        for resource in (SERVICES, ENDPOINT_SLICES):
            await client.delete_collection(resource, namespace)


def _listening_in(namespace: str) -> Callable[[int], socket.socket]:
    return lambda port: namespaces.inside(namespace, lambda: socket.create_server(("127.0.0.1", port)))


@asynccontextmanager
async def _in_thread(entered: Any) -> AsyncIterator[None]:
    """The link between proxy and API server runs in this loop, so nothing may block it."""
    await asyncio.to_thread(entered.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(entered.__exit__, None, None, None)


@asynccontextmanager
async def _node(client: Client) -> AsyncIterator[None]:
    status = {"addresses": [{"type": "InternalIP", "address": address} for address in NODE]}
    node = {
        "metadata": {"name": "a1", "labels": {ZONE: "a"}},
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]},
    }
    await client.create(NODES.whole(), node)
    await client.patch(NODES, "a1", MergePatch({"status": status}), subresource="status")
    try:
        yield
    finally:
        await client.delete(NODES, "a1")
