"""A driver on the shared Ceph cluster of a test run: each test uses names of its own and removes its volumes."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.ceph import driver as csi_driver
from support.ceph.driver import MIB, Driver
from support.ceph.node import MakeVolume, NodeProcess, Volume, capability, running
from zonewise.ceph.backend.cluster import CephCluster
from zonewise.lab.ceph.cluster import LabCeph


@pytest.fixture(scope="session")
def csi_config(ceph_cluster: LabCeph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return csi_driver.config_file(tmp_path_factory.mktemp("csi"), ceph_cluster)


@pytest.fixture(scope="session")
def driver(ceph_cluster: LabCeph, csi_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with csi_driver.serving(tmp_path_factory.mktemp("sockets"), csi_config, ceph_cluster) as running:
        yield running


@pytest.fixture(scope="session")
def ceph_admin(csi_config: Path) -> Iterator[CephCluster]:
    """Direct access to Ceph."""
    cluster = csi_driver.own_cluster(csi_config)
    yield cluster
    cluster.close()


@pytest.fixture
def name() -> Callable[[str], str]:
    """Unique names per test: `name("a")` is the same within a test."""
    prefix = uuid.uuid4().hex[:8]
    return lambda word="": f"pvc-{prefix}-{word}"


@pytest.fixture(scope="module")
def node(ceph_cluster: LabCeph, csi_config: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running(NodeProcess(tmp_path_factory.mktemp("node"), csi_config, ceph_cluster)) as process:
        yield process


@pytest.fixture
def make_volume(node: NodeProcess, name: Callable[[str], str], tmp_path: Path) -> Iterator[MakeVolume]:
    """Creates volumes that are removed at the end of the test."""
    made: list[Volume] = []

    def create(
        *, kind: str = "rbd", filesystem: str = "", block: bool = False, mode: str = "SINGLE_NODE_WRITER", size: int = 0
    ) -> Volume:
        volume_capability = capability(block=block, filesystem=filesystem, mode=mode)
        size = size or (320 * MIB if filesystem == "xfs" else 64 * MIB)
        created = node.driver.create(
            name(f"{len(made)}"),
            preferred=["zone-b"],
            requisite=["zone-a", "zone-b"],
            size=size,
            capability=volume_capability,
            parameters={"type": kind},
        )
        made.append(Volume(node, created, tmp_path, volume_capability))
        return made[-1]

    yield create
    for volume in made:
        volume.unpublish_and_unstage()
        node.driver.delete(volume.id)
