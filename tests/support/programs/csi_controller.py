"""A controller in a process of its own, forked from one that has everything loaded: it dies at a step, if told which."""

import os
import signal
import threading
from pathlib import Path

from zonewise import log
from zonewise.ceph import crash_points
from zonewise.ceph.backend.cluster import Clusters
from zonewise.ceph.backend.rbd import Rbd
from zonewise.ceph.config import Configuration
from zonewise.ceph.controller.service import Controller
from zonewise.ceph.decide.ids import Kind
from zonewise.ceph.grpc_server import Server
from zonewise.ceph.identity import Identity


def run(socket: Path, config: Path, crash: str, said: Path) -> None:
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    log.configure()
    crash_points.arm(crash)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopping.set())
    clusters = Clusters(Configuration(config), 60)
    # Nobody may be taken for dead on a busy machine.
    rbd = {Kind.RBD: Rbd(patience_seconds=60)}
    controller = Controller(clusters, rbd, abandoned_after_seconds=600)
    server = Server(f"unix://{socket}", {"Identity": Identity(), "Controller": controller})
    server.start()
    stopping.wait()
    server.stop(5)
