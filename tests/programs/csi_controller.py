"""A controller of its own process: `csi_controller.py SOCKET CONFIG`. ZONEWISE_CSI_CRASH says at which step it dies."""

import signal
import sys
import threading
from pathlib import Path

from zonewise import log
from zonewise.ceph.cluster import Clusters
from zonewise.ceph.config import Configuration
from zonewise.ceph.controller import Controller
from zonewise.ceph.identity import Identity
from zonewise.ceph.ids import Kind
from zonewise.ceph.rbd import Rbd
from zonewise.ceph.server import Server

log.configure()
stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda _number, _frame: stopping.set())
clusters = Clusters(Configuration(Path(sys.argv[2])), 60)
controller = Controller(clusters, {Kind.RBD: Rbd(patience_seconds=0.5)})
server = Server(f"unix://{sys.argv[1]}", {"Identity": Identity(), "Controller": controller})
server.start()
stopping.wait()
server.stop(5)
