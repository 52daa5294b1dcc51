"""Output of `lab up`: addresses, and a tour of commands. Each step builds on the one before."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from zonewise.api.names import SAME_ZONE
from zonewise.lab.demo import installed
from zonewise.lab.demo.zone_answers import CATALOG, CATALOG_PODS, NAMESPACE, ORDERS
from zonewise.lab.nodes import nodes
from zonewise.lab.state import DEFAULT_NAME, Lab

_KEYS = """'zonewise.dev/topology-keys=["topology.kubernetes.io/zone", "*"]'"""
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"


class TourStep(NamedTuple):
    see: str
    commands: tuple[str, ...]


def text(lab: Lab, *, terminal: bool) -> str:
    bold, dim, plain = (_BOLD, _DIM, _PLAIN) if terminal else ("", "", "")
    lines = ["", *(f"  {what:<11} {bold}{where}{plain}" for what, where in places(lab))]
    for number, stop in enumerate(stops(lab), 1):
        lines += ["", f"  {number}  {stop.see}", *(f"     {dim}${plain} {bold}{line}{plain}" for line in stop.commands)]
    return "\n".join([*lines, "", f"  `{_down(lab)}` leaves nothing behind."])


def places(lab: Lab) -> list[tuple[str, str]]:
    """By what they are for."""
    lines = [("dashboard", f"http://127.0.0.1:{installed.dashboard_port(lab)}/")] if lab.options.zonewise else []
    finding = "" if _is_found() else f"source {Path(sys.prefix, 'bin', 'activate')}; "
    lines.append(("first", f"{finding}export KUBECONFIG={lab.node_kubeconfig}"))
    if lab.options.ceph:
        lines.append(("ceph", f"export CEPH_CONF={lab.ceph / 'ceph.conf'}"))
        lines.append(("volumes", f"zonewise csi journal --config {lab.ceph / 'csi.json'}"))
    return lines


def _is_found() -> bool:
    """Whether a shell finds the command that runs this."""
    return shutil.which("zonewise") == str(Path(sys.prefix, "bin", "zonewise"))


def _down(lab: Lab) -> str:
    return f"zonewise lab down{_name(lab)}"


def _name(lab: Lab) -> str:
    return "" if lab.name == DEFAULT_NAME else f" --name {lab.name}"


def stops(lab: Lab) -> list[TourStep]:
    if not lab.options.demo:
        return [
            TourStep("Look at it", (f"zonewise lab kubectl{_name(lab)} -- get nodes -L topology.kubernetes.io/zone",))
        ] * bool(lab.zones)
    return _whole(lab) if lab.options.zonewise else _stock(lab)


def _whole(lab: Lab) -> list[TourStep]:
    name = _name(lab)
    ask, kubectl = f"zonewise lab ask{name}", f"zonewise lab kubectl{name} --"
    annotate = f"{kubectl} -n {NAMESPACE} annotate service"
    node, zone = nodes.plan_of(lab).nodes[0].name, lab.zones[-1]
    steps = [
        TourStep("Which zone answers which? Every zone answers every other.", (ask,)),
        TourStep(
            "Keep answers at home, ask again, and ask why.",
            (f"{annotate} {CATALOG} {SAME_ZONE}=Prefer", ask, f"zonewise explain service {CATALOG} -n {NAMESPACE}"),
        ),
        TourStep(
            "DNS, too: a headless name means the pods of the client's zone.",
            (f"{annotate} {CATALOG_PODS} {_KEYS}", f"{ask} --by-name"),
        ),
        TourStep(
            "Drain a node: one catalog at a time leaves a zone, as its budget says.",
            (f"{kubectl} drain {node} --ignore-daemonsets --delete-emptydir-data", f"{kubectl} uncordon {node}"),
        ),
        TourStep(
            f"Lose {zone}: the others serve on.",
            (f"zonewise lab cut{name} {zone}", ask, f"zonewise lab heal{name} {zone}"),
        ),
    ]
    return [*steps, _takeover(zone, name)] if lab.options.ceph else steps


def _takeover(zone: str, name: str) -> TourStep:
    kubectl, pod = f"zonewise lab kubectl{name} --", f"pod -l app={ORDERS}"
    return TourStep(
        f"Take over {zone}'s Ceph volumes: the orders, stored there, continue in another zone.",
        (
            f"zonewise lab cut{name} {zone}; {kubectl} cordon -l topology.kubernetes.io/zone={zone}",
            f"{kubectl} -n {NAMESPACE} delete {pod} --force",
            f"zonewise explain volume {ORDERS} -n {NAMESPACE}",
            f"zonewise csi takeover zone={zone} all",
            f"{kubectl} -n {NAMESPACE} get {pod} -o wide -w",
        ),
    )


def _stock(lab: Lab) -> list[TourStep]:
    name, zone, other = _name(lab), lab.zones[0], lab.zones[-1]
    prefer = """'{"spec":{"trafficDistribution":"PreferSameZone"}}'"""
    ask = f"zonewise lab ask{name}"
    return [
        TourStep("Which zone answers which? Every zone answers every other.", (ask,)),
        TourStep(
            "Keep answers at home, and ask again.",
            (f"zonewise lab kubectl{name} -- -n {NAMESPACE} patch service {CATALOG} -p {prefer}", ask),
        ),
        TourStep("20 ms each way between two zones.", (f"zonewise lab latency{name} {zone} {other} 20",)),
        TourStep(f"Lose {other}.", (f"zonewise lab cut{name} {other}", ask, f"zonewise lab heal{name} {other}")),
    ]
