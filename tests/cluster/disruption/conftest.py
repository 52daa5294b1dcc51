"""Fixtures for disruption tests: one shared control plane, and a namespace with nodes in three zones per test.

Files here carry `pytestmark = pytest.mark.xdist_group("disruption")`: webhooks and policies are cluster-wide, so the
tests run in sequence.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.disruption import cluster, processes
from support.disruption.cluster import DisruptionNamespace
from support.disruption.processes import Installed
from support.disruption.webhook import leading
from support.lab import shared_cluster
from zonewise.lab.controlplane.controlplane import ControlPlane


@pytest.fixture(scope="session")
def disruption_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("disruption")


@pytest.fixture(scope="session")
def disruption_plane(run_directory: shared_cluster.Run, disruption_folder: Path) -> Iterator[ControlPlane]:
    plane = run_directory.private(**cluster.control_plane_settings(disruption_folder))
    yield plane
    run_directory.remove(plane)


@pytest.fixture
async def ns(disruption_plane: ControlPlane, disruption_folder: Path) -> AsyncIterator[DisruptionNamespace]:
    async with cluster.disruption_namespace(disruption_plane, disruption_folder) as ns:
        await ns.make_nodes()
        yield ns


@pytest.fixture
async def ns_with_leader(ns: DisruptionNamespace) -> AsyncIterator[DisruptionNamespace]:
    async with leading(ns):
        yield ns


@pytest.fixture(scope="module")
def installed(disruption_plane: ControlPlane) -> Iterator[Installed]:
    """One leader and one webhook, from the first test of a file that requests them to the end of the file."""
    with processes.installed(disruption_plane) as running:
        yield running
