"""Puts the node service together: looks at what this node can do, says what was chosen and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from zonewise.ceph import filevolumes
from zonewise.ceph.cluster import Clusters
from zonewise.ceph.filevolumes import FileVolumes
from zonewise.ceph.imagevolumes import ImageVolumes
from zonewise.ceph.mappers import probing
from zonewise.ceph.node import Node
from zonewise.ceph.stages import Stages
from zonewise.log import get_logger

log = get_logger(__name__)

STATE_DIRECTORY = Path("/var/lib/kubelet/plugins/ceph.zonewise.dev/node")
"""Where kubelet's directory is mounted both ways: what is mounted in here is seen by a successor of the container, too."""


def make(
    clusters: Clusters,
    node_id: str,
    topology: Callable[[], Mapping[str, str]],
    *,
    state_directory: Path = STATE_DIRECTORY,
    mapper: str = "auto",
    cephfs_client: str = "auto",
    daemon_cgroup: str = "",
    max_volumes: int = 0,
) -> Node:
    cgroup = Path(daemon_cgroup) if daemon_cgroup else None
    choice = probing.probe(mapper, cgroup)
    log.info("mapper for RBD images chosen", mapper=choice.mapper.name, reason=choice.reason)
    client, reason = filevolumes.choose(cephfs_client)
    log.info("client for CephFS chosen", client=client.value, reason=reason)
    stages = Stages(state_directory)
    staged = list(stages.all())
    if staged:
        log.info("volumes of a predecessor are still staged", volumes=len(staged))
    return Node(
        node_id,
        clusters,
        stages,
        ImageVolumes(choice.mapper, probing.known(cgroup)),
        FileVolumes(client, cgroup),
        topology,
        max_volumes,
    )
