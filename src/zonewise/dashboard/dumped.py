"""A dump on the board, once, in place of a cluster: everything but traffic can be looked at without one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zonewise import dump
from zonewise.dashboard import tables
from zonewise.dashboard.board import Board
from zonewise.dashboard.tables import World
from zonewise.objects import Pod, View
from zonewise.objects.apps import DaemonSet, Deployment, StatefulSet
from zonewise.objects.policy import TopologyDisruptionBudget
from zonewise.objects.storage import PersistentVolume
from zonewise.planning.outlook import look
from zonewise.planning.situation import KINDS, Situation, gather
from zonewise.routing import HintsForm
from zonewise.seeing.status import serves_all

_KINDS: dict[str, type[View]] = {
    **KINDS,
    "Pod": Pod,
    "TopologyDisruptionBudget": TopologyDisruptionBudget,
    "Deployment": Deployment,
    "StatefulSet": StatefulSet,
    "DaemonSet": DaemonSet,
    "PersistentVolume": PersistentVolume,
}


Objects = Mapping[str, Sequence[Any]]
"""By kind."""


def read(data: bytes, source: str) -> Objects:
    """`source` names the dump in errors."""
    return dump.read(data, source, _KINDS)


def show(found: Objects, board: Board, hints: HintsForm) -> Situation:
    everything = serves_all(found["DaemonSet"])
    situation = gather(
        found["Node"],
        found["Service"],
        found["EndpointSlice"],
        found["Pod"],
        found["Namespace"],
        all_services=everything,
    )
    workloads = [*found["Deployment"], *found["StatefulSet"], *found["DaemonSet"]]
    world = World(situation, found["TopologyDisruptionBudget"], workloads, found["PersistentVolume"])
    written = {served.key: served.service for served in situation.services}
    rows = {
        str(outlook.key): tables.service(outlook, written[outlook.key], all_services=everything)
        for outlook in look(situation, lambda _: True, hints)
    }
    board.show({**tables.but_services(world), "services": rows, "notices": {}})
    return situation
