"""kwok nodes: thousands of Node objects without machines, spread over a lab's zones."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.lab.controlplane.programs import KWOK_ANNOTATION
from zonewise.lab.decide.node_labels import node_labels
from zonewise.objects import NODES

CPUS = (16, 32, 64)  # three sizes, so that capacity differs within a zone and between zones
NODES_PER_RACK = 20
_CONDITIONS = (
    ("Ready", "True", "KubeletReady"),
    ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID"),
)
_CONCURRENT = 32


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
        # As kwok's first stage would fill it in, which saves a write for every node.
        "status": {
            "phase": "Running",
            "allocatable": resources,
            "capacity": resources,
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}, {"type": "Hostname", "address": name}],
            "conditions": [_condition(*fields) for fields in _CONDITIONS],
        },
    }


def _condition(kind: str, status: str, reason: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": "kwok plays this kubelet"}


def up(kubeconfig_path: Path, nodes: Sequence[dict[str, Any]]) -> None:
    """Create them all; they are ready from the start and kwok keeps them so."""
    asyncio.run(_create(kubeconfig_path, nodes))


async def _create(path: Path, nodes: Sequence[dict[str, Any]]) -> None:
    """The first error stands for all. Workers end by themselves: one cancelled while it connects would leave its socket."""
    remaining = iter(nodes)

    async def work(client: Client) -> None:
        for node in remaining:
            await client.create(NODES, node)

    async with Client(kubeconfig.load(path)) as client:
        ended = await asyncio.gather(*(work(client) for _ in range(_CONCURRENT)), return_exceptions=True)
    for error in ended:
        if error is not None:
            raise error
