"""A dump on the board, once, in place of a cluster: everything but traffic can be looked at without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zonewise import dump
from zonewise.dashboard.decide import row_builder
from zonewise.dashboard.decide.row_builder import DashboardView
from zonewise.dashboard.live_state import LiveState
from zonewise.objects import Pod, View
from zonewise.objects.apps import StatefulSet
from zonewise.objects.policy import TopologyDisruptionBudget
from zonewise.objects.storage import PersistentVolume
from zonewise.planning.data_plane import carriers_of
from zonewise.planning.forecast import look
from zonewise.planning.snapshot import KINDS, Snapshot, gather, require
from zonewise.routing import HintsForm

_KINDS: dict[str, type[View]] = {
    **KINDS,
    "Pod": Pod,
    "TopologyDisruptionBudget": TopologyDisruptionBudget,
    "StatefulSet": StatefulSet,
    "PersistentVolume": PersistentVolume,
}


Objects = Mapping[str, Sequence[Any]]
"""By kind."""


def read(data: bytes, source: str) -> Objects:
    """`source` names the dump in errors."""
    found = dump.read(data, source, _KINDS)
    require(found, source, "Node")
    return found


def show(found: Objects, board: LiveState, hints: HintsForm) -> Snapshot:
    carriers = carriers_of([*found["Deployment"], *found["DaemonSet"]])
    situation = gather(
        found["Node"],
        found["Service"],
        found["EndpointSlice"],
        found["Pod"],
        found["Namespace"],
        carriers=carriers,
    )
    workloads = [*found["Deployment"], *found["StatefulSet"], *found["DaemonSet"]]
    world = DashboardView(situation, found["TopologyDisruptionBudget"], workloads, found["PersistentVolume"])
    written = {served.key: served.service for served in situation.services}
    rows = {
        str(outlook.key): row_builder.service(outlook, written[outlook.key], carriers.of(written[outlook.key]))
        for outlook in look(situation, lambda _: True, hints)
    }
    board.show({**row_builder.but_services(world), "services": rows, "notices": {}})
    return situation
