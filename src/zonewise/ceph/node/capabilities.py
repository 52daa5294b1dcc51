"""Puts the node service together: looks at what this node can do, says what was chosen and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from zonewise.ceph.backend.cluster import CephClusters
from zonewise.ceph.node import cephfs_stage
from zonewise.ceph.node.cephfs_stage import CephFsStager
from zonewise.ceph.node.mappers import probe
from zonewise.ceph.node.rbd_stage import RbdStager
from zonewise.ceph.node.service import NodeService
from zonewise.ceph.node.stage_records import StageRecords
from zonewise.log import get_logger

log = get_logger(__name__)

STATE_DIRECTORY = Path("/var/lib/kubelet/plugins/ceph.zonewise.dev/node")
"""Where kubelet's directory is mounted both ways: what is mounted in here is seen by a successor of the container, too."""


def make(
    clusters: CephClusters,
    node_id: str,
    topology: Callable[[], Mapping[str, str]],
    *,
    state_directory: Path = STATE_DIRECTORY,
    mapper: str = "auto",
    cephfs_client: str = "auto",
    daemon_cgroup: str = "",
    max_volumes: int = 0,
) -> NodeService:
    cgroup = Path(daemon_cgroup) if daemon_cgroup else None
    choice = probe.probe(mapper, cgroup)
    log.info("mapper for RBD images chosen", mapper=choice.mapper.name, reason=choice.reason)
    client, reason = cephfs_stage.choose(cephfs_client)
    log.info("client for CephFS chosen", client=client.value, reason=reason)
    stages = StageRecords(state_directory)
    staged = list(stages.all())
    if staged:
        log.info("volumes of a predecessor are still staged", volumes=len(staged))
    return NodeService(
        node_id,
        clusters,
        stages,
        RbdStager(choice.mapper, probe.known(cgroup)),
        CephFsStager(client, cgroup),
        topology,
        max_volumes,
    )
