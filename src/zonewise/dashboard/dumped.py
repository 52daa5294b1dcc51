"""A dump on the board, once, in place of a cluster: everything but traffic can be looked at without one."""

from __future__ import annotations

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

_KINDS: dict[str, type[View]] = {
    **KINDS,
    "Pod": Pod,
    "TopologyDisruptionBudget": TopologyDisruptionBudget,
    "Deployment": Deployment,
    "StatefulSet": StatefulSet,
    "DaemonSet": DaemonSet,
    "PersistentVolume": PersistentVolume,
}


def show(data: bytes, source: str, board: Board, hints: HintsForm) -> Situation:
    """`source` names the dump in errors."""
    read = dump.read(data, source, _KINDS)
    situation = gather(read["Node"], read["Service"], read["EndpointSlice"], read["Pod"], read["Namespace"])
    workloads = [*read["Deployment"], *read["StatefulSet"], *read["DaemonSet"]]
    world = World(situation, read["TopologyDisruptionBudget"], workloads, read["PersistentVolume"])
    written = {served.key: served.service for served in situation.services}
    rows = {
        str(found.key): tables.service(found, written[found.key]) for found in look(situation, lambda _: True, hints)
    }
    board.show({**tables.but_services(world), "services": rows, "notices": {}})
    return situation
