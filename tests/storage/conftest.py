"""A driver on the run's Ceph. Tests share both, so each keeps to names of its own and removes what it made."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.ceph import driver as csi_driver
from support.ceph.driver import Driver
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
    """A look into Ceph past the driver."""
    cluster = csi_driver.own_cluster(csi_config)
    yield cluster
    cluster.close()


@pytest.fixture
def name() -> Callable[[str], str]:
    """Names that no other test has: `name("a")` is the same each time within a test."""
    mark = uuid.uuid4().hex[:8]
    return lambda word="": f"pvc-{mark}-{word}"
