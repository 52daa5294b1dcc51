"""A controller in a process of its own, from a fork server; may crash at a crash point."""

import os
import signal
import threading
from pathlib import Path

from zonewise import log
from zonewise.ceph import crash_points
from zonewise.ceph.backend.cluster import CephClusters
from zonewise.ceph.backend.rbd import RbdBackend
from zonewise.ceph.config import CsiConfigFile
from zonewise.ceph.controller.service import ControllerService
from zonewise.ceph.decide.ids import VolumeKind
from zonewise.ceph.grpc_server import GrpcServer
from zonewise.ceph.identity import IdentityService


def run(socket: Path, config: Path, crash: str, log_file: Path) -> None:
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    log.configure()
    crash_points.arm(crash)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopping.set())
    clusters = CephClusters(CsiConfigFile(config), 60)
    # Long timeouts, so that a slow process on a busy machine does not count as dead.
    rbd = {VolumeKind.RBD: RbdBackend(patience_seconds=60)}
    controller = ControllerService(clusters, rbd, abandoned_after_seconds=600)
    server = GrpcServer(f"unix://{socket}", {"Identity": IdentityService(), "Controller": controller})
    server.start()
    stopping.wait()
    server.stop(5)
