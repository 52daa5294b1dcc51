"""Status of a lab: processes, zones and nodes, as `zonewise lab status` shows them."""

import http.client
from collections import Counter
from enum import StrEnum
from typing import Any

import msgspec

from zonewise import log
from zonewise.api.names import ZONE
from zonewise.lab import processes, state
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import KWOK_ANNOTATION
from zonewise.lab.network import shaping
from zonewise.lab.nodes import node_programs, nodes
from zonewise.lab.state import Lab, LabPhase
from zonewise.objects.stored import NewerError

_log = log.get_logger(__name__)


class LabHealth(StrEnum):
    READY = "ready"
    STARTING = "starting"
    DEGRADED = "degraded"  # it runs, and not all of its nodes are ready
    BROKEN = "broken"


class ProcessStatus(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    pid: int
    running: bool
    memory_bytes: int


class LabZoneStatus(msgspec.Struct, frozen=True, rename="camel"):
    """`namespace_nodes` are those in network namespaces: all but kwok nodes."""

    name: str
    namespace_nodes: int = 0
    kwok_nodes: int = 0
    ready_nodes: int = 0
    cut: bool = False

    @property
    def nodes(self) -> int:
        return self.namespace_nodes + self.kwok_nodes


class LabStatus(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The JSON of `-o json`; fields are only ever added."""

    name: str
    health: LabHealth
    problem: str = ""
    kube_version: str
    server: str = ""
    kubeconfig: str = ""
    directory: str
    slot: int
    zones: tuple[LabZoneStatus, ...] = ()
    processes: tuple[ProcessStatus, ...] = ()

    @property
    def nodes(self) -> int:
        return sum(zone.nodes for zone in self.zones)

    @property
    def ready_nodes(self) -> int:
        return sum(zone.ready_nodes for zone in self.zones)


class ListedLab(msgspec.Struct, frozen=True, rename="camel"):
    """`phase` is null where a start ended before it wrote anything down."""

    name: str
    phase: LabPhase | None
    directory: str


Labs = tuple[ListedLab, ...]
"""The JSON of `zonewise lab list -o json`; fields are only ever added."""


def listed() -> Labs:
    return tuple(ListedLab(name, _phase(name), str(state.directory_of(name))) for name in state.names())


def _phase(name: str) -> LabPhase | None:
    """None also for a lab of a newer release, whose record only that can read."""
    try:
        lab = state.find(name)
    except NewerError as error:
        _log.warning("lab left alone", lab=name, problem=str(error))
        return None
    return lab.phase if lab else None


def of(lab: Lab) -> LabStatus:
    if lab.phase is LabPhase.READY:
        return _asked(lab, _recorded(lab))
    if state.is_held(lab.name):
        return _recorded(lab)
    since = state.find(lab.name)
    if since is not None and since.phase is LabPhase.READY:  # it came up while we looked
        return _asked(since, _recorded(since))
    return msgspec.structs.replace(_recorded(lab), health=LabHealth.BROKEN, problem="its start failed or was killed")


def _recorded(lab: Lab) -> LabStatus:
    recorded = tuple(map(_process, processes_of(lab)))
    return LabStatus(
        name=lab.name,
        health=LabHealth.STARTING,
        kube_version=lab.options.version,
        directory=str(lab.directory),
        slot=lab.slot,
        zones=tuple(map(LabZoneStatus, lab.zones)),
        processes=recorded,
    )


def processes_of(lab: Lab) -> list[processes.Process]:
    """With those of nodes, which these start and restart themselves."""
    recorded = [*processes.recorded(lab.directory), *processes.recorded(lab.ceph)]
    if lab.runtime is not None:
        names = node_programs.unit_names(lab)
        for node in nodes.plan_of(lab).nodes:
            recorded += node_programs.units(lab.directory, node.name, names)
    return recorded


def _asked(lab: Lab, status: LabStatus) -> LabStatus:
    plane = ControlPlane.attach(lab.directory)
    status = msgspec.structs.replace(status, server=plane.server, kubeconfig=str(plane.kubeconfig))
    ended = [process.name for process in status.processes if not process.running]
    try:
        plane.request("GET", "/readyz")
        listed_nodes = plane.request("GET", "/api/v1/nodes?resourceVersion=0")["items"]
    except (OSError, http.client.HTTPException) as error:
        problem = f"{', '.join(ended)} ended" if ended else f"the API server does not answer: {error}"
        return msgspec.structs.replace(status, health=LabHealth.BROKEN, problem=problem)
    zones = _zones(lab, listed_nodes)
    health, problem = (LabHealth.BROKEN, f"{', '.join(ended)} ended") if ended else judge(zones)
    return msgspec.structs.replace(status, health=health, problem=problem, zones=zones)


def judge(zones: tuple[LabZoneStatus, ...]) -> tuple[LabHealth, str]:
    """Whether all nodes are ready, and if not, where."""
    lacking = [
        f"{zone.nodes - zone.ready_nodes} of {zone.nodes} nodes in {zone.name or 'no zone'}{' (cut off)' if zone.cut else ''}"
        for zone in zones
        if zone.ready_nodes < zone.nodes
    ]
    return (LabHealth.DEGRADED, f"not ready: {', '.join(lacking)}") if lacking else (LabHealth.READY, "")


def _zones(lab: Lab, nodes: list[Any]) -> tuple[LabZoneStatus, ...]:
    cut = shaping.read(lab.directory).cut
    return tuple(msgspec.structs.replace(zone, cut=zone.name in cut) for zone in count(lab.zones, nodes))


def count(zones: tuple[str, ...], nodes: list[Any]) -> tuple[LabZoneStatus, ...]:
    """Nodes per zone, by kind; zones that only nodes know of come last."""
    kinds: Counter[tuple[str, str]] = Counter()
    for node in nodes:
        zone = node["metadata"].get("labels", {}).get(ZONE, "")
        kinds[zone, _kind(node)] += 1
        kinds[zone, "ready"] += _is_ready(node)
    names = dict.fromkeys((*zones, *sorted(zone for zone, _ in kinds)))
    return tuple(
        LabZoneStatus(name, kinds[name, "namespace"], kinds[name, "kwok"], kinds[name, "ready"]) for name in names
    )


def _kind(node: Any) -> str:
    return "kwok" if KWOK_ANNOTATION in node["metadata"].get("annotations", {}) else "namespace"


def _is_ready(node: Any) -> bool:
    conditions = node.get("status", {}).get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _process(process: processes.Process) -> ProcessStatus:
    return ProcessStatus(process.name, process.pid, process.running, process.memory_bytes)
