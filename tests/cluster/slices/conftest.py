"""A control plane without another slice controller: only etcd and the API server."""

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from support.lab import shared_cluster
from support.slices import cluster
from support.slices.cluster import ClusterNamespace
from zonewise.lab.controlplane.controlplane import ControlPlane


@pytest.fixture(scope="session")
def slice_plane(run_directory: shared_cluster.Run) -> Iterator[ControlPlane]:
    plane = run_directory.private(flags=cluster.DUAL_STACK)
    yield plane
    run_directory.remove(plane)


@pytest.fixture
async def ns(slice_plane: ControlPlane) -> AsyncIterator[ClusterNamespace]:
    """A private namespace, and one ready node in each of three zones."""
    async with cluster.connect(slice_plane) as client:
        ns = await ClusterNamespace.create(client, f"t-{uuid.uuid4().hex[:8]}")
        await ns.nodes()
        yield ns
