"""A budget of ours in every namespace that the suite creates, so that the guard decides all of its evictions and deletes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPException
from typing import Any, Final

from zonewise.errors import ZonewiseError
from zonewise.lab.controlplane.controlplane import ControlPlane, StatusError
from zonewise.lab.state import Lab

_NAMESPACES: Final = "/api/v1/namespaces?labelSelector=e2e-framework"
_EVERY_SECONDS: Final = 0.2
_BUDGET: Final = {
    "apiVersion": "zonewise.dev/v1alpha1",
    "kind": "TopologyDisruptionBudget",
    "metadata": {"name": "all"},
    "spec": {
        "selector": {},
        "minAvailable": 0,
        "nodeSelectorTerm": {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "Exists"}]},
    },
}
"""Counts and charges every pod, and refuses nothing that the specs expect."""


@contextmanager
def in_every_namespace(lab: Lab) -> Iterator[None]:
    """Raises ZonewiseError at the end if no namespace got one."""
    plane, ending = ControlPlane.attach(lab.directory), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        made = pool.submit(_create, plane, ending)
        try:
            yield
        finally:
            ending.set()
        if not made.result():
            raise ZonewiseError("no namespace of the suite got a budget")


def _create(plane: ControlPlane, ending: threading.Event) -> set[str]:
    made: set[str] = set()
    while not ending.wait(_EVERY_SECONDS):
        with suppress(OSError, HTTPException):  # a busy API server: what has none yet is tried again
            for namespace in _listed(plane) - made:
                path = f"/apis/zonewise.dev/v1alpha1/namespaces/{namespace}/topologydisruptionbudgets"
                with suppress(StatusError):  # its deletion has begun
                    plane.request("POST", path, _BUDGET)
                    made.add(namespace)
    return made


def _listed(plane: ControlPlane) -> set[str]:
    items: list[dict[str, Any]] = plane.request("GET", _NAMESPACES)["items"]
    return {item["metadata"]["name"] for item in items if item["status"]["phase"] == "Active"}
