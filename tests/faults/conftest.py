"""A control plane that tests may break, with the garbage collector as the only controller, and a namespace on it.

ZONEWISE_FAULTS=long runs each fault as often and as long as it takes to believe; without it a few times.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random

import pytest

from faults.proxy_setup import node_net, setup
from support.clock import WallClock
from support.disruption import cluster as budget_cluster
from support.disruption.cluster import DisruptionNamespace
from support.disruption.processes import install
from support.lab import shared_cluster
from support.slices import cluster
from support.slices.churn import Churn, Observer
from support.slices.cluster import ClusterNamespace
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program

__all__ = ["node_net", "setup"]

LONG = os.environ.get("ZONEWISE_FAULTS") == "long"


@pytest.fixture(scope="session")
def breakable(run_directory: shared_cluster.Run) -> Iterator[ControlPlane]:
    plane = run_directory.private(
        programs=(Program.ETCD, Program.APISERVER, Program.CONTROLLER_MANAGER),
        controllers="garbage-collector-controller",
        flags=cluster.DUAL_STACK,
    )
    yield plane
    run_directory.remove(plane)


@pytest.fixture
async def ns(breakable: ControlPlane) -> AsyncIterator[ClusterNamespace]:
    await asyncio.to_thread(breakable.wait_ready)
    async with cluster.connect(breakable) as client:
        ns = await ClusterNamespace.create(client, f"t-{uuid.uuid4().hex[:8]}")
        await ns.nodes()
        yield ns


@pytest.fixture(scope="session")
def budget_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("budget-faults")


@pytest.fixture(scope="session")
def budget_plane(run_directory: shared_cluster.Run, budget_folder: Path) -> Iterator[ControlPlane]:
    """Of the tests in group "disruption-faults"."""
    plane = run_directory.private(**budget_cluster.control_plane_settings(budget_folder))
    asyncio.run(install(plane))
    yield plane
    run_directory.remove(plane)


@pytest.fixture
async def budget_namespace(budget_plane: ControlPlane, budget_folder: Path) -> AsyncIterator[DisruptionNamespace]:
    async with budget_cluster.disruption_namespace(budget_plane, budget_folder) as namespace:
        await namespace.make_nodes()
        yield namespace


@pytest.fixture(scope="session")
def wall_clock(tmp_path_factory: pytest.TempPathFactory) -> WallClock:
    return WallClock(tmp_path_factory.mktemp("clock"))


@pytest.fixture
async def churn(ns: ClusterNamespace) -> Churn:
    churn = Churn(ns, Random(os.environ.get("ZONEWISE_SEED", "1")), services=8)
    await churn.populate()
    return churn


@pytest.fixture
async def observer(ns: ClusterNamespace) -> AsyncIterator[Observer]:
    observer = Observer(ns)
    async with observer.watching():
        yield observer
    assert observer.states, "nothing was seen"
    assert observer.violations == []
