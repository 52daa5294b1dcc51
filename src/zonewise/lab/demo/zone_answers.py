"""Answers by zone: every front pod of the demo calls the catalog's Service, and the answers are counted by zone.

That is what topology-aware routing changes, and so what people look at before and after.
"""

from __future__ import annotations

import http.client
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec

from zonewise.errors import ZonewiseError
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.decide.addresses import NodePlan
from zonewise.lab.demo.shop import PORT, UNANSWERED
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import nodes
from zonewise.lab.state import Lab

NAMESPACE = "shop"
FRONT, CATALOG = "front", "catalog"
CATALOG_PODS = "catalog-pods"
"""The headless Service of the same pods: its name is theirs."""
ORDERS = "orders"
"""Where there is a Ceph: one pod with a volume."""

Answers = Mapping[str, Counter[str]]
"""By the zone that asked, how often each zone answered."""


class ZoneQuery(msgspec.Struct, frozen=True, rename="camel"):
    """The questions from one zone: how often each zone answered, and `same_zone`, the share of 1 that stayed at home."""

    zone: str
    answers: dict[str, int]
    unanswered: int
    same_zone: float


class FrontPod(NamedTuple):
    """`address` is reached from inside the network namespace, which is its node's."""

    zone: str
    namespace: str
    address: str


Account = tuple[ZoneQuery, ...]
"""The JSON of `zonewise lab ask -o json`; fields are only ever added."""


def ask(lab: Lab, count: int, *, by_name: bool = False) -> Answers:
    """Have every front pod ask the catalog so often: through its Service's address, or one of the pods that DNS names for it.

    Asked from their node, so it works in a cut zone too.
    """
    path = f"/ask?n={count}{'&by=name' if by_name else ''}"
    fronts = _fronts(lab)
    if not fronts:
        raise ZonewiseError(f"no {FRONT} pods run in lab {lab.name}: start it with `zonewise lab up --demo`")
    answers: dict[str, Counter[str]] = {zone: Counter() for zone in lab.zones}
    with ThreadPoolExecutor(len(fronts)) as threads:
        for front, counts in zip(fronts, threads.map(lambda front: _ask(front, path, count), fronts), strict=True):
            answers[front.zone].update(counts)
    return answers


def _fronts(lab: Lab) -> list[FrontPod]:
    """A node is cut off together with its pods."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app%3D{FRONT}"
    listed = ControlPlane.attach(lab.directory).request("GET", path)["items"]
    return fronts_on({node.name: node for node in nodes.plan_of(lab).nodes}, listed)


def fronts_on(plans: Mapping[str, NodePlan], pods: Sequence[dict[str, Any]]) -> list[FrontPod]:
    """Those that run, as far as the API server knows, on one of these nodes."""
    return [
        FrontPod(plans[node].zone, plans[node].namespace, pod["status"]["podIP"])
        for pod in pods
        if pod["status"].get("phase") == "Running" and (node := pod["spec"].get("nodeName", "")) in plans
    ]


def _ask(front: FrontPod, path: str, count: int) -> Mapping[str, int]:
    def exchange() -> Mapping[str, int]:
        connection = http.client.HTTPConnection(front.address, PORT, timeout=10 + 3 * count)
        try:
            connection.request("GET", path)
            counts: Mapping[str, int] = json.load(connection.getresponse())["answers"]
        finally:
            connection.close()
        return counts

    try:
        return namespaces.inside(front.namespace, exchange)
    except (OSError, http.client.HTTPException, ValueError):
        return {UNANSWERED: count}


def account(answers: Answers, zones: Sequence[str]) -> Account:
    return tuple(
        ZoneQuery(
            zone,
            {other: counts[other] for other in zones},
            counts[UNANSWERED],
            counts[zone] / max(1, counts.total()),
        )
        for zone, counts in ((zone, answers[zone]) for zone in zones)
    )


def table(answers: Answers, zones: Sequence[str]) -> str:
    """A row for each client zone: answers by server zone in percent, and the share that stayed in the zone."""
    lost = any(counts[UNANSWERED] for counts in answers.values())
    columns = [*zones, *([UNANSWERED] if lost else [])]
    width = max(len(column) for column in (*columns, "asked from"))
    lines = ["  ".join(["asked from".ljust(width), *(column.rjust(width) for column in columns), "same zone"])]
    for zone in zones:
        counts = answers[zone]
        total = max(1, counts.total())
        shares = [f"{100 * counts[column] / total:.0f} %".rjust(width) for column in columns]
        lines.append("  ".join([zone.ljust(width), *shares, f"{100 * counts[zone] / total:.0f} %".rjust(9)]))
    return "\n".join(lines)


def complete(answers: Answers) -> bool:
    """Whether every zone asked and was answered every time."""
    return all(counts and not counts[UNANSWERED] for counts in answers.values())
