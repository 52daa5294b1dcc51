"""One control plane for all tests of disruption in this folder, and a namespace with nodes in three zones for each.

Files here carry `pytestmark = pytest.mark.xdist_group("disruption")`: webhooks and policies are the whole cluster's,
so tests go one after the other.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.disruption import cluster, processes
from support.disruption.cluster import Bed
from support.disruption.processes import Installed
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
async def bed(disruption_plane: ControlPlane, disruption_folder: Path) -> AsyncIterator[Bed]:
    async with cluster.bed(disruption_plane, disruption_folder) as made:
        await made.make_nodes()
        yield made


@pytest.fixture(scope="module")
def installed(disruption_plane: ControlPlane) -> Iterator[Installed]:
    """Zonewise, for the tests of one file that ask for it: from the first of them to the end of the file."""
    with processes.installed(disruption_plane) as running:
        yield running
