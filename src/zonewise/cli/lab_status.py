"""Text of `zonewise lab status` and of the first line of `zonewise lab up`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zonewise.lab.status import LabStatus


def headline(report: LabStatus) -> str:
    zones = (
        f", {len(report.zones)} zones, {report.ready_nodes} of {report.nodes} nodes ready"
        if report.zones
        else ", no nodes"
    )
    server = f" at {report.server}" if report.server else ""
    return f"lab {report.name} is {report.health}: Kubernetes {report.kube_version}{server}{zones}"


def describe(report: LabStatus) -> str:
    lines = [headline(report)]
    if report.problem:
        lines.append(f"  problem: {report.problem}; see `zonewise lab logs --name {report.name}`")
    if report.zones:
        lines.append(f"  {'ZONE':24} {'NODES':>9} {'KWOK':>6} {'READY':>6}")
        lines += [
            f"  {zone.name or '(none)':24} {zone.namespace_nodes:9} {zone.kwok_nodes:6} {zone.ready_nodes:6}{'  cut off' if zone.cut else ''}"
            for zone in report.zones
        ]
    lines.append(f"  {'PROCESS':24} {'PID':>9} {'MEMORY':>9}")
    lines += [
        f"  {process.name:24} {process.pid:9} {f'{process.memory_bytes >> 20} MiB' if process.running else 'ended':>9}"
        for process in report.processes
    ]
    return "\n".join(lines)
