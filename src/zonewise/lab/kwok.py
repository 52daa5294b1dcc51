"""kwok nodes: Node objects without machines, thousands of them, spread over a lab's zones; kwok plays their kubelets."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zonewise.errors import ZonewiseError
from zonewise.kube import kubeconfig
from zonewise.kube.client import Client
from zonewise.lab.labels import node_labels
from zonewise.lab.programs import KWOK_ANNOTATION
from zonewise.objects import NODES, Node

CPUS = (16, 32, 64)  # three sizes, so that capacity differs within a zone and between zones
NODES_PER_RACK = 20
_CONCURRENT = 32
_READY_WITHIN_SECONDS = 300.0


def manifests(count: int, zones: Sequence[str], *, tainted: bool) -> list[dict[str, Any]]:
    """Nodes dealt out to the zones in turn."""
    return [manifest(index, zones[index % len(zones)], index // len(zones), tainted=tainted) for index in range(count)]


def manifest(index: int, zone: str, place: int, *, tainted: bool) -> dict[str, Any]:
    """One node; `place` counts within its zone. The taint keeps pods that want to really run away."""
    name = f"kwok-{index:05d}"
    resources = {"cpu": str(CPUS[place % len(CPUS)]), "memory": "256Gi", "pods": "110", "ephemeral-storage": "1Ti"}
    return {
        "metadata": {
            "name": name,
            "annotations": {KWOK_ANNOTATION: "fake"},
            "labels": {**node_labels(name, zone, f"{zone}-r{place // NODES_PER_RACK + 1}"), "type": "kwok"},
        },
        "spec": {"taints": [{"key": KWOK_ANNOTATION, "value": "fake", "effect": "NoSchedule"}] if tainted else []},
        "status": {"allocatable": resources, "capacity": resources},
    }


def up(kubeconfig_path: Path, nodes: Sequence[dict[str, Any]]) -> None:
    """Create them all and wait until kwok has made them ready."""
    asyncio.run(_up(kubeconfig_path, nodes))


async def _up(path: Path, nodes: Sequence[dict[str, Any]]) -> None:
    async with Client(kubeconfig.load(path)) as client:
        places = asyncio.Semaphore(_CONCURRENT)

        async def create(node: dict[str, Any]) -> None:
            async with places:
                await client.create(NODES, node)

        async with asyncio.TaskGroup() as tasks:
            for node in nodes:
                tasks.create_task(create(node))
        await _until_ready(client, len(nodes))


async def _until_ready(client: Client, wanted: int) -> None:
    deadline = time.monotonic() + _READY_WITHIN_SECONDS
    while (ready := sum(map(_is_ready, (await client.list(NODES, selector="type=kwok")).items))) < wanted:
        if time.monotonic() > deadline:
            raise ZonewiseError(f"only {ready} of {wanted} kwok nodes are ready: look at `zonewise lab logs kwok`")
        await asyncio.sleep(0.2)


def _is_ready(node: Node) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)
