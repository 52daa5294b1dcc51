"""Nodes of a lab: create, remove, cut, heal, shape, exec.

`prepare` comes before the API server, which listens on the host's end of the link it makes (`addresses.host_addresses`);
`up` comes after it and starts the programs of every node (`node_programs`). `down` needs only the lab's name and slot, finds
everything by namespace, and may be called after any crash.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zonewise.api.names import ZONE
from zonewise.errors import UsageError, ZonewiseError
from zonewise.lab import processes, state
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.decide import addresses
from zonewise.lab.decide.addresses import AddressPlan
from zonewise.lab.network import network, shaping
from zonewise.lab.network.shaping import Shaping
from zonewise.lab.nodes import cgroups, node_programs
from zonewise.lab.nodes import kube_proxy as stock_proxy
from zonewise.lab.state import Lab

READY_WITHIN_SECONDS = 180.0
_POLL_SECONDS = 0.2  # each time is a new TLS connection
_OTHERS_SHAPE_WITHIN_SECONDS = 60.0
CONTROLLER_MANAGER_FLAGS = ("--node-monitor-period=2s", "--node-monitor-grace-period=20s")
"""Kubelets beat every 4 s, so a zone that was cut off is noticed after 20 s rather than the stock 50."""


def plan_of(lab: Lab) -> AddressPlan:
    return addresses.plan(lab.name, lab.slot, lab.zones, lab.nodes_per_zone)


def prepare(lab: Lab) -> None:
    """Make the network: host link, router, zones and nodes. Needs root. What an earlier lab of the name left is removed."""
    network.build(plan_of(lab))
    shaping.forget(lab.directory)


def up(lab: Lab, progress: Callable[[str], None] = lambda _step: None) -> None:
    """Start those nodes that do not run, and wait until every one is ready."""
    plan = plan_of(lab)
    proxies = node_programs.up(lab, plan.nodes, progress)
    plane = ControlPlane.attach(lab.directory)
    _await_ready(lab, plane, {node.name for node in plan.nodes})
    _tell_zones(plane, proxies)


def down(name: str, slot: int | None) -> None:
    """End every process of the lab's cgroups and namespaces; remove namespaces, link and routes. Fine when there are none.

    By cgroup first: only that way processes that are frozen end.
    """
    cgroups.end(name)
    network.remove(name, addresses.link_of(slot) if slot is not None else "")


def cut(lab: Lab, zone: str) -> bool:
    """From now on no packet enters or leaves the zone: neither to other zones nor to the API server. False: so before."""
    with _shaping_alone(lab) as plan:
        before = shaping.read(lab.directory)
        shaping.apply(plan, lab.directory, before.with_cut(plan.zone(zone).name))
        return zone not in before.cut


def heal(lab: Lab, zone: str) -> bool:
    """Undo `cut`; False when the zone was not cut off."""
    with _shaping_alone(lab) as plan:
        before = shaping.read(lab.directory)
        shaping.apply(plan, lab.directory, before.with_healed(plan.zone(zone).name))
        return zone in before.cut


def shape(lab: Lab, a: str, b: str, latency_ms: float, loss_percent: float) -> None:
    """Delay and drop what goes between two zones, each way. Zero for both makes the path plain again."""
    path = shaping.ZonePath(a, b, latency_ms, loss_percent)
    with _shaping_alone(lab) as plan:
        shaping.check(plan, path)
        shaping.apply(plan, lab.directory, shaping.read(lab.directory).with_path(path))


@contextmanager
def _shaping_alone(lab: Lab) -> Iterator[AddressPlan]:
    """A read-modify-write of the desired shaping, one at a time; after the wait, check that the lab still exists."""
    if not (lab.zones and lab.nodes_per_zone):
        raise UsageError(f"lab {lab.name!r} has no network between zones: start one with `zonewise lab up --zones 3`")
    with state.locked(lab.name, _OTHERS_SHAPE_WITHIN_SECONDS):
        state.get(lab.name)
        yield plan_of(lab)


def shaped(lab: Lab) -> Shaping:
    """Which zones are cut and which paths shaped."""
    return shaping.read(lab.directory)


def exec_argv(lab: Lab, pod_or_node: str, argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` inside a node or a pod (`name`, or `namespace/name`)."""
    if any(node.name == pod_or_node for node in plan_of(lab).nodes):
        return node_programs.exec_argv(lab, pod_or_node, argv)
    return [*_kubectl(lab, "exec", pod_or_node), "--", *argv]


def load_image(lab: Lab, archive: Path) -> list[str]:
    """Load an image archive into every node; returns the names of its images."""
    return node_programs.load(lab, plan_of(lab).nodes, archive)


def _kubectl(lab: Lab, verb: str, pod: str) -> list[str]:
    """kubectl for one pod, by `name` or `namespace/name`."""
    namespace, _, name = pod.rpartition("/")
    kubectl = [str(lab.binaries / "kubectl"), f"--kubeconfig={lab.node_kubeconfig}"]
    return [*kubectl, f"--namespace={namespace or 'default'}", verb, name]


def logs_argv(lab: Lab, pod: str, *, follow: bool) -> list[str]:
    """The command line that prints a pod's output."""
    return [*_kubectl(lab, "logs", pod), *(["--follow"] if follow else [])]


def tail_argv(path: Path, *, follow: bool) -> list[str]:
    return ["tail", "-n", "+1", *(["-F"] if follow else []), str(path)]


def _await_ready(lab: Lab, plane: ControlPlane, wanted: set[str]) -> None:
    deadline = time.monotonic() + READY_WITHIN_SECONDS
    while missing := sorted(wanted - _ready(_listed(plane))):
        ended = [node for node in missing if not node_programs.is_running(lab.directory, node)]
        if ended or time.monotonic() > deadline:
            failed = ended or missing
            log = processes.log_path(lab.directory, _log_name(lab, failed[0]))
            raise ZonewiseError(f"nodes {', '.join(failed)} did not become ready: see {log}")
        time.sleep(_POLL_SECONDS)


def _log_name(lab: Lab, node: str) -> str:
    runs = node_programs.first_process(lab.directory, node)
    return node_programs.unit_name("kubelet", node) if runs else node_programs.process_name(node)


def _tell_zones(plane: ControlPlane, proxies: Sequence[stock_proxy.StartedProxy]) -> None:
    """Removes and restores each node's zone label once its kube-proxy watches."""
    deadline = time.monotonic() + READY_WITHIN_SECONDS
    for proxy in proxies:
        while not proxy.listens:
            if time.monotonic() > deadline:
                raise ZonewiseError(f"kube-proxy of {proxy.node.name} does not watch its node: see {proxy.log}")
            time.sleep(0.05)
        for zone in (None, proxy.node.zone):
            plane.request("PATCH", f"/api/v1/nodes/{proxy.node.name}", {"metadata": {"labels": {ZONE: zone}}})


def _listed(plane: ControlPlane) -> Sequence[dict[str, Any]]:
    """None while the API server, on a busy machine, does not answer: there is time to ask again."""
    try:
        items: Sequence[dict[str, Any]] = plane.request("GET", "/api/v1/nodes")["items"]
    except (OSError, http.client.HTTPException):
        return ()
    return items


def _ready(nodes: Sequence[dict[str, Any]]) -> set[str]:
    return {
        node["metadata"]["name"]
        for node in nodes
        for condition in node.get("status", {}).get("conditions", ())
        if condition["type"] == "Ready" and condition["status"] == "True"
    }
