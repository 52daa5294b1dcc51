"""The whole driver in a process of its own, from a fork server; may crash at a crash point."""

import os
import signal
import threading
from pathlib import Path

from zonewise import log
from zonewise.api.names import CSI_TOPOLOGY_PREFIX
from zonewise.ceph import crash_points
from zonewise.ceph.backend.cephfs import CephFsBackend
from zonewise.ceph.backend.cluster import CephClusters
from zonewise.ceph.backend.rbd import RbdBackend
from zonewise.ceph.config import CsiConfigFile
from zonewise.ceph.controller.service import ControllerService
from zonewise.ceph.decide.ids import VolumeKind
from zonewise.ceph.grpc_server import GrpcServer
from zonewise.ceph.identity import IdentityService
from zonewise.ceph.node.service import build_node_service


def run(socket: Path, config: Path, state: Path, node: str, crash: str, log_file: Path) -> None:
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    log.configure("json", "debug")
    crash_points.arm(crash)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopping.set())
    clusters = CephClusters(CsiConfigFile(config), 60)
    topology = {f"{CSI_TOPOLOGY_PREFIX}zone": "zone-a"}
    server = GrpcServer(
        f"unix://{socket}",
        {
            "Identity": IdentityService(),
            "Controller": ControllerService(
                clusters, {VolumeKind.RBD: RbdBackend(), VolumeKind.CEPHFS: CephFsBackend()}, abandoned_after_seconds=0
            ),  # there is no other controller
            "Node": build_node_service(clusters, node, lambda: topology, state_directory=state),
        },
    )
    server.start()
    stopping.wait()
    server.stop(5)
    os._exit(0)  # threads of Ceph's libraries may still run
