"""The real kube-controller-manager and the slice controller write the same slices for random Services without a policy.

Each leaves the slices of the other alone: after a takeover there is nothing to write, before and after changes.
"""

import asyncio
from collections import defaultdict
from typing import Any

import pytest

from support.lab import shared_cluster
from support.routing.random_cluster import RandomCluster
from support.slices import cluster as slices_cluster
from support.slices.cluster import OF_OURS, ClusterNamespace, running
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
    """A control plane with only the stock controller."""
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


async def test_stock_and_own_controller_agree(stock: ControlPlane) -> None:
    async with slices_cluster.connect(stock) as client:
        ns = await ClusterNamespace.create(client, "compared")
        await ns.nodes()
        cluster = RandomCluster(ns, seed=20261116)
        await cluster.populate(SERVICES, PODS)
        theirs = await _quiet(ns)
        stock.kill(Program.CONTROLLER_MANAGER)
        async with running(client, SlicesConfig(endpoints_per_slice=MOST)) as controller:
            await _idle(controller)
            assert _versions(await _all(ns)) == _versions(theirs), "ours wrote over the stock controller's slices"
            await client.delete_collection(ENDPOINT_SLICES, ns.namespace)
            await _idle(controller)
            _compare(theirs, await _quiet(ns))
            await cluster.churn(CHANGES)
            await _idle(controller)
            ours = await _quiet(ns)
        stock.spawn(Program.CONTROLLER_MANAGER)
        await ns.service("sentinel")
        await eventually(lambda: ns.slices("sentinel"), "the stock controller at work")
        after = [endpoint_slice for endpoint_slice in await _quiet(ns) if _service(endpoint_slice) != "sentinel"]
        assert _versions(after) == _versions(ours), "the stock controller wrote over ours"


async def _all(ns: ClusterNamespace) -> Slices:
    return (await ns.client.list(ENDPOINT_SLICES.whole(), ns.namespace, selector=OF_OURS)).items


async def _quiet(ns: ClusterNamespace) -> Slices:
    """The slices, once there were no writes for a while."""
    last: Slices = []

    async def unchanged() -> bool:
        nonlocal last
        before, last = last, await _all(ns)
        if last and _versions(before) == _versions(last):
            return True
        await asyncio.sleep(QUIET_SECONDS)
        return False

    await eventually(unchanged, "no more writes")
    return last


async def _idle(controller: SliceController) -> None:
    def is_idle() -> bool:
        backlog = controller._queue._backlog
        return not backlog._dirty and not backlog._processing

    await asyncio.sleep(0.5)
    await eventually(is_idle, "a controller with nothing to do")


def _versions(slices: Slices) -> dict[str, str]:
    return {
        endpoint_slice["metadata"]["name"]: endpoint_slice["metadata"]["resourceVersion"] for endpoint_slice in slices
    }


def _service(endpoint_slice: dict[str, Any]) -> str:
    name: str = endpoint_slice["metadata"]["labels"]["kubernetes.io/service-name"]
    return name


def _compare(theirs: Slices, ours: Slices) -> None:
    expected, got = _normalized(theirs), _normalized(ours)
    for group in expected.keys() | got.keys():
        assert got.get(group) == expected.get(group), f"{group} differs"


def _normalized(slices: Slices) -> dict[str, Any]:
    """Endpoints and slice sizes by everything else in a slice.

    The slice of an endpoint depends on the order of pod events, the sizes of the slices do not.
    """
    groups: dict[str, dict[str, list[Any]]] = defaultdict(lambda: {"endpoints": [], "sizes": []})
    for endpoint_slice in slices:
        metadata = {key: value for key, value in endpoint_slice["metadata"].items() if key not in NOT_COMPARED}
        notes = {key: value for key, value in metadata.pop("annotations", {}).items() if key != TRIGGER_TIME}
        ports = sorted(endpoint_slice["ports"] or [], key=repr)
        endpoints = endpoint_slice["endpoints"] or []
        other_fields = {
            key: value for key, value in endpoint_slice.items() if key not in {"metadata", "ports", "endpoints"}
        }
        group = groups[repr((metadata, notes, ports, other_fields))]
        group["endpoints"] = sorted([*group["endpoints"], *endpoints], key=repr)
        group["sizes"] = sorted([*group["sizes"], len(endpoints)])
    return groups
