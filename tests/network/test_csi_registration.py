"""The CSI driver registers itself with a kubelet, and again after a restart of either."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support.lab.machine import ZONEWISE
from support.process import Program, wait_for
from zonewise.api.names import CSI_DRIVER
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.nodes import node_programs
from zonewise.lab.state import Lab

NODE = "zone-a-1"
KUBELET = Path("/var/lib/kubelet")
SOCKET = KUBELET / "plugins" / CSI_DRIVER / "csi.sock"
REGISTERED = "registered with the kubelet"


@contextmanager
def driver(lab: Lab) -> Iterator[Program]:
    """As in its container: kubelet's directories at their own paths."""
    pid = node_programs.first_process(lab.directory, NODE)
    root, folder = Path(f"/proc/{pid}/root"), Path("/tmp/csi")
    (root / folder.relative_to("/")).mkdir(exist_ok=True)
    (root / folder.relative_to("/") / "config.json").write_text(json.dumps({"version": 1, "clusters": []}))
    config = ControlPlane.attach(lab.directory).kubeconfig
    (root / folder.relative_to("/") / "kubeconfig").write_bytes(config.read_bytes())
    files = ("--config", folder / "config.json", "--kubeconfig", folder / "kubeconfig", "--state-directory", folder)
    sockets = ("--endpoint", f"unix://{SOCKET}", "--registration-directory", KUBELET / "plugins_registry")
    options = ("--node-name", NODE, "--health-port", 0, "--log-format", "json")
    program = Program("in_node.py", pid, sys.executable, ZONEWISE, "csi", "node", *files, *sockets, *options)
    try:
        yield program
    finally:
        program.remove()


def registered(lab: Lab) -> list[dict[str, Any]]:
    node = ControlPlane.attach(lab.directory).request("GET", f"/apis/storage.k8s.io/v1/csinodes/{NODE}")
    drivers: list[dict[str, Any]] = node["spec"].get("drivers") or []
    return drivers


def test_driver_is_registered_after_restarts_of_driver_and_kubelet(small_lab: Lab) -> None:
    with driver(small_lab) as first:
        first.wait_ready()
        (entry,) = registered(small_lab)
        assert (entry["name"], entry["nodeID"]) == (CSI_DRIVER, NODE)
        first.signal(signal.SIGKILL)
        first.end()
    with driver(small_lab) as second:
        second.wait_ready()
        assert second.events.count(REGISTERED) == 1
        (kubelet,) = node_programs.units(small_lab.directory, NODE, ["kubelet"])
        os.kill(kubelet.pid, signal.SIGKILL)
        wait_for(lambda: second.events.count(REGISTERED) == 2)
        assert [entry["name"] for entry in registered(small_lab)] == [CSI_DRIVER]
        second.signal(signal.SIGTERM)
        assert second.end() == 0
    wait_for(lambda: registered(small_lab) == [])
