"""The real kube-controller-manager and ours give the same slices, field by field, for random Services without a policy.

And each leaves the other's alone: who takes over finds nothing to write, before and after changes.
"""

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from support.lab import shared_cluster
from support.routing.random_cluster import RandomCluster
from support.slices import cluster as slices_cluster
from support.slices.cluster import OF_OURS, World, running
from support.waiting import eventually
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.objects import ENDPOINT_SLICES
from zonewise.slices.controller import SliceController, SlicesConfig

pytestmark = pytest.mark.xdist_group("slices")

SERVICES, PODS, CHANGES = 200, 150, 60
MOST = 5
TRIGGER_TIME = "endpoints.kubernetes.io/last-change-trigger-time"
NOT_COMPARED = ("name", "uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")
QUIET_SECONDS = 3.0

Slices = list[dict[str, Any]]


@pytest.fixture
async def stock(run_directory: shared_cluster.Run) -> Any:
    """A control plane with the stock controller and no other one."""
    plane = await asyncio.to_thread(
        run_directory.private,
        programs=(Program.ETCD, Program.APISERVER, Program.CONTROLLER_MANAGER),
        controllers="endpointslice-controller",
        flags={
            **slices_cluster.DUAL_STACK,
            Program.CONTROLLER_MANAGER: (f"--max-endpoints-per-slice={MOST}", "--concurrent-service-endpoint-syncs=5"),
        },
    )
    yield plane
    await asyncio.to_thread(run_directory.remove, plane)


async def test_stock_and_ours_agree(stock: ControlPlane) -> None:
    async with slices_cluster.connect(stock) as client:
        world = await World.create(client, "compared")
        await world.nodes()
        cluster = RandomCluster(world, seed=20261116)
        await cluster.populate(SERVICES, PODS)
        theirs = await _quiet(world)
        stock.kill(Program.CONTROLLER_MANAGER)
        async with running(client, SlicesConfig(endpoints_per_slice=MOST)) as controller:
            await _idle(controller)
            assert _versions(await _all(world)) == _versions(theirs), "ours wrote over the stock controller's slices"
            await client.delete_collection(ENDPOINT_SLICES, world.namespace)
            await _idle(controller)
            _compare(theirs, await _quiet(world))
            await cluster.churn(CHANGES)
            await _idle(controller)
            ours = await _quiet(world)
        stock.spawn(Program.CONTROLLER_MANAGER)
        await world.service("sentinel")
        await eventually(lambda: world.slices("sentinel"), "the stock controller at work")
        after = [found for found in await _quiet(world) if _service(found) != "sentinel"]
        assert _versions(after) == _versions(ours), "the stock controller wrote over ours"


async def _all(world: World) -> Slices:
    return (await world.client.list(ENDPOINT_SLICES.whole(), world.namespace, selector=OF_OURS)).items


async def _quiet(world: World) -> Slices:
    """Once nobody has written for a while."""
    seen: Slices = []

    async def unchanged() -> bool:
        nonlocal seen
        before, seen = seen, await _all(world)
        if seen and _versions(before) == _versions(seen):
            return True
        await asyncio.sleep(QUIET_SECONDS)
        return False

    await eventually(unchanged, "no more writes")
    return seen


async def _idle(controller: SliceController) -> None:
    def is_idle() -> bool:
        backlog = controller._queue._backlog
        return not backlog._dirty and not backlog._processing

    await asyncio.sleep(0.5)
    await eventually(is_idle, "a controller with nothing to do")


def _versions(slices: Slices) -> dict[str, str]:
    return {found["metadata"]["name"]: found["metadata"]["resourceVersion"] for found in slices}


def _service(found: dict[str, Any]) -> str:
    name: str = found["metadata"]["labels"]["kubernetes.io/service-name"]
    return name


def _compare(theirs: Slices, ours: Slices) -> None:
    expected, got = _normalized(theirs), _normalized(ours)
    for group in expected.keys() | got.keys():
        assert got.get(group) == expected.get(group), f"{group} differs"


def _normalized(slices: Slices) -> dict[str, Any]:
    """By Service, family, ports and what else a slice says but for its endpoints: which of several slices an endpoint
    is in follows from the order in which pods are heard of, how full the slices are does not.
    """
    groups: dict[str, dict[str, list[Any]]] = defaultdict(lambda: {"endpoints": [], "sizes": []})
    for found in slices:
        metadata = {key: value for key, value in found["metadata"].items() if key not in NOT_COMPARED}
        notes = {key: value for key, value in metadata.pop("annotations", {}).items() if key != TRIGGER_TIME}
        ports = sorted(found["ports"] or [], key=repr)
        endpoints = found["endpoints"] or []
        rest = {key: value for key, value in found.items() if key not in {"metadata", "ports", "endpoints"}}
        group = groups[repr((metadata, notes, ports, rest))]
        group["endpoints"] = sorted([*group["endpoints"], *endpoints], key=repr)
        group["sizes"] = sorted([*group["sizes"], len(endpoints)])
    return groups
