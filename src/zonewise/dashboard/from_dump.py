"""A dump shown by the dashboard instead of a cluster: everything but traffic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from zonewise import dump
from zonewise.dashboard.decide import row_builder
from zonewise.dashboard.decide.row_builder import DashboardView
from zonewise.dashboard.live_state import LiveState
from zonewise.diagnostics.decide.from_dump import STATUS_KINDS
from zonewise.objects import Pod, View
from zonewise.objects.apps import StatefulSet
from zonewise.planning.forecast import forecast_services
from zonewise.planning.snapshot import DumpObjects, Snapshot, build_from_dump, require_kinds
from zonewise.routing import HintsForm

_KINDS: Final[Mapping[str, type[View]]] = {**STATUS_KINDS, "Pod": Pod, "StatefulSet": StatefulSet}


def read_dump(data: bytes, source: str) -> DumpObjects:
    """`source` names the dump in errors."""
    objects = dump.read(data, source, _KINDS)
    require_kinds(objects, source, "Node")
    return objects


def publish_dump(objects: DumpObjects, state: LiveState, hints: HintsForm) -> Snapshot:
    snapshot = build_from_dump(objects, objects["Pod"])
    workloads = [*objects["Deployment"], *objects["StatefulSet"], *objects["DaemonSet"]]
    view = DashboardView(snapshot, objects["TopologyDisruptionBudget"], workloads, objects["PersistentVolume"])
    services = {item.key: item.service for item in snapshot.services}
    rows = {
        str(forecast.key): row_builder.service_row(
            forecast, services[forecast.key], snapshot.data_planes.of(services[forecast.key])
        )
        for forecast in forecast_services(snapshot, lambda _: True, hints)
    }
    state.publish({**row_builder.cluster_rows(view), "services": rows, "notices": {}})
    return snapshot
