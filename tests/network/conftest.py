"""Labs that tests share: three zones with two nodes each, and two zones with one. The tests of a lab run in one worker."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from support.lab.pods import Pods
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.lab import labs, state
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.decide.addresses import zone_names
from zonewise.lab.nodes import nodes
from zonewise.lab.state import Lab, LabOptions

_PREFIX = "test-"


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if {"small_lab", "machine"} & fixtures:
            item.add_marker(pytest.mark.xdist_group("small-lab"))
        elif "lab" in fixtures:
            item.add_marker(pytest.mark.xdist_group("lab"))


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Tests restore its state: no zone cut, no path shaped, all nodes running."""
    with _running("", zones=3, nodes_per_zone=2) as lab:
        yield lab


@pytest.fixture(scope="session")
def small_lab() -> Iterator[Lab]:
    """For tests of the nodes and of what runs on them, which leave it ready."""
    with _running("-small", zones=2, nodes_per_zone=1, network_policies=True) as lab:
        yield lab


@contextmanager
def _running(suffix: str, zones: int, nodes_per_zone: int, *, network_policies: bool = False) -> Iterator[Lab]:
    _remove_abandoned()
    name = f"{_PREFIX}{os.getpid()}{suffix}"
    options = LabOptions(
        zones=zone_names(zones), nodes_per_zone=nodes_per_zone, kube_proxy=True, network_policies=network_policies
    )
    try:
        yield labs.up(name, options, lambda _step: None)
    finally:
        labs.down(name, lambda _step: None)


def _remove_abandoned() -> None:
    """Remove labs of killed test runs."""
    for name in state.names():
        pid, *_ = name.removeprefix(_PREFIX).split("-")  # what follows says which of the run's labs it is
        if name.startswith(_PREFIX) and not Path("/proc", pid).exists():
            labs.down(name, lambda _step: None)


@pytest.fixture
async def pods(lab: Lab) -> AsyncIterator[Pods]:
    async with _pods_of(lab) as pods:
        yield pods


@pytest.fixture
async def small_pods(small_lab: Lab) -> AsyncIterator[Pods]:
    async with _pods_of(small_lab) as pods:
        yield pods


@asynccontextmanager
async def _pods_of(lab: Lab) -> AsyncIterator[Pods]:
    """In the test's own namespace, which is deleted asynchronously after the test."""
    plane = ControlPlane.attach(lab.directory)
    name = f"t-{uuid.uuid4().hex[:10]}"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    plane.wait_service_account(name)
    async with Client(kubeconfig.load(lab.node_kubeconfig)) as client:
        yield Pods(lab, client, name)
    plane.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def shaped_lab(lab: Lab) -> Iterator[Lab]:
    """Lab for tests that cut zones and shape paths; both are reset afterwards."""
    yield lab
    for zone in lab.zones:
        nodes.heal(lab, zone)
    for path in nodes.shaped(lab).paths:
        nodes.shape(lab, path.a, path.b, 0, 0)
