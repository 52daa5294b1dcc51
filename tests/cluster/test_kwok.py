"""A thousand kwok nodes: a Deployment spreads over their zones."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest

from support.lab import shared_cluster
from support.waiting import eventually
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import ApiError, Invalid
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.lab.nodes import kwok
from zonewise.objects import NODES, PODS, Resource

ZONES = ("zone-a", "zone-b", "zone-c")
DEPLOYMENTS: Resource[dict[str, Any]] = Resource(dict[str, Any], "Deployment", "deployments", "apps")


@pytest.fixture
async def plane(run_directory: shared_cluster.Run) -> AsyncIterator[ControlPlane]:
    """Private control plane: the nodes would keep every controller of the shared one busy."""
    plane = await asyncio.to_thread(run_directory.private, programs=tuple(Program))
    yield plane
    await asyncio.to_thread(run_directory.remove, plane)


def deployment(replicas: int) -> dict[str, Any]:
    spread = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "spread"}},
    }
    pod = {
        "metadata": {"labels": {"app": "spread"}},
        "spec": {"containers": [{"name": "c", "image": "none"}], "topologySpreadConstraints": [spread]},
    }
    return {
        "metadata": {"name": "spread"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "spread"}}, "template": pod},
    }


async def until_ready(client: Client, resource_version: str, replicas: int) -> None:
    changes = client.watch(DEPLOYMENTS, "default", resource_version=resource_version, silence_seconds=240)
    async with asyncio.timeout(240), aclosing(changes):
        async for change in changes:
            if change.object.get("status", {}).get("readyReplicas") == replicas:
                return


async def test_deployment_spreads_over_a_thousand_nodes(plane: ControlPlane) -> None:
    await asyncio.to_thread(kwok.up, plane.kubeconfig, kwok.manifests(1000, ZONES, tainted=False))
    async with Client(kubeconfig.load(plane.kubeconfig)) as client:
        zones = {
            node.metadata.name: node.metadata.labels["topology.kubernetes.io/zone"]
            for node in (await client.list(NODES)).items
        }
        assert sorted(Counter(zones.values()).values()) == [333, 333, 334]
        created = await client.create(DEPLOYMENTS, deployment(30), "default")
        await until_ready(client, created["metadata"]["resourceVersion"], 30)
        pods = (await client.list(PODS, "default")).items
    assert Counter(zones[pod.spec.node_name] for pod in pods) == dict.fromkeys(ZONES, 10)


async def test_kwok_removes_only_pods_that_end(cluster: ControlPlane, namespace: str) -> None:
    """It deletes by name, and at times again when the name is another pod's."""
    pod = {"metadata": {"name": "web-0"}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    async with (
        Client(kubeconfig.load(cluster.kubeconfig)) as admin,
        Client(kubeconfig.load(cluster.layout.kubeconfig(Program.KWOK))) as player,
    ):

        async def refusal() -> str:
            """The policy is in force a moment after the control plane started."""
            await admin.create(PODS.whole(), pod, namespace)
            try:
                await player.delete(PODS, "web-0", namespace, grace_seconds=0)
            except ApiError as error:
                return str(error)
            return ""

        assert "this pod does not end" in await eventually(refusal, "kwok is refused")
        await admin.delete(PODS, "web-0", namespace, grace_seconds=0)


def test_rejected_nodes_raise_one_error(cluster: ControlPlane) -> None:
    nodes = [{"metadata": {"name": f"Refused_{index}"}} for index in range(3)]
    with pytest.raises(Invalid, match="Refused_"):
        kwok.up(cluster.kubeconfig, nodes)
