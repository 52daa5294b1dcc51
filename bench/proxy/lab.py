"""The lab of the proxy benchmarks: two nodes on which nothing runs, and no controller that writes slices."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from bench.proxy.contestants import NODES
from zonewise.errors import ZonewiseError
from zonewise.lab import labs, processes
from zonewise.lab.decide.addresses import zone_names
from zonewise.lab.nodes import node_programs
from zonewise.lab.state import Lab, LabOptions


@contextmanager
def cluster() -> Iterator[Lab]:
    name = f"bench-{os.getpid()}"
    off = ("endpointslice", "endpoints", "endpointslice-mirroring", "node-lifecycle")
    controllers = ",".join(["*", *(f"-{name}-controller" for name in off)])
    options = LabOptions(zones=zone_names(1), nodes_per_zone=len(NODES), controllers=controllers, scheduler=False)
    try:
        lab = labs.up(name, options, lambda _step: None)
        _end_kubelets(lab)
        yield lab
    finally:
        labs.down(name, lambda _step: None)


def _end_kubelets(lab: Lab) -> None:
    """End all that runs on the nodes: kubelets watch Services and report all the time. Their objects and networks stay."""
    for node in NODES.values():
        process = processes.find(lab.directory, node_programs.process_name(node))
        if process is None or not process.signal(signal.SIGKILL):
            raise ZonewiseError(f"node {node} of lab {lab.name} does not run")
