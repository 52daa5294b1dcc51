"""The whole driver in a process of its own: `csi_driver.py SOCKET CONFIG STATE ZONE NODE`. ZONEWISE_CSI_CRASH says at which step it dies."""

import os
import signal
import sys
import threading
from pathlib import Path

from zonewise import log
from zonewise.ceph import nodeservice
from zonewise.ceph.cephfs import CephFs
from zonewise.ceph.cluster import Clusters
from zonewise.ceph.config import Configuration
from zonewise.ceph.controller import Controller
from zonewise.ceph.domains import PREFIX
from zonewise.ceph.identity import Identity
from zonewise.ceph.ids import Kind
from zonewise.ceph.rbd import Rbd
from zonewise.ceph.server import Server

socket, config, state, zone, node = sys.argv[1:]
log.configure("json", "debug")
stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda _number, _frame: stopping.set())
clusters = Clusters(Configuration(Path(config)), 60)
topology = {f"{PREFIX}zone": zone}
server = Server(
    f"unix://{socket}",
    {
        "Identity": Identity(),
        "Controller": Controller(clusters, {Kind.RBD: Rbd(), Kind.CEPHFS: CephFs()}),
        "Node": nodeservice.make(clusters, node, lambda: topology, state_directory=Path(state)),
    },
)
server.start()
stopping.wait()
server.stop(5)
os._exit(0)  # threads of Ceph's libraries may still be at work
