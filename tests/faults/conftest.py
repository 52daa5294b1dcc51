"""A control plane that tests may break, with the garbage collector as the only controller, and a world on it.

ZONEWISE_FAULTS=long runs each fault as often and as long as it takes to believe; without it a few times.
"""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from random import Random

import pytest

from support.lab import shared_cluster
from support.slices import cluster
from support.slices.churn import Churn, Observer
from support.slices.cluster import World
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program

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
async def world(breakable: ControlPlane) -> AsyncIterator[World]:
    await asyncio.to_thread(breakable.wait_ready)
    async with cluster.connect(breakable) as client:
        world = await World.create(client, f"t-{uuid.uuid4().hex[:8]}")
        await world.nodes()
        yield world


@pytest.fixture
async def churn(world: World) -> Churn:
    churn = Churn(world, Random(os.environ.get("ZONEWISE_SEED", "1")), services=8)
    await churn.populate()
    return churn


@pytest.fixture
async def observer(world: World) -> AsyncIterator[Observer]:
    observer = Observer(world)
    async with observer.watching():
        yield observer
    assert observer.states, "nothing was seen"
    assert observer.violations == []
