"""Shared lab of three zones with two nodes each; the tests that use it run in one worker."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.lab.pods import Pods
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.lab import labs, state
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.decide.addresses import zone_names
from zonewise.lab.nodes import nodes
from zonewise.lab.state import Lab, LabOptions, NodeKind

_PREFIX = "test-"


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if {"real_lab", "real_machine"} & fixtures:
            item.add_marker(pytest.mark.xdist_group("real-lab"))
        elif {"lab", "machine"} & fixtures:
            item.add_marker(pytest.mark.xdist_group("lab"))


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Tests restore its state: no zone cut, no path shaped, all agents running."""
    _remove_abandoned()
    name = f"{_PREFIX}{os.getpid()}"
    yield labs.up(name, LabOptions(zones=zone_names(3), nodes_per_zone=2, kube_proxy=True), lambda _step: None)
    labs.down(name, lambda _step: None)


@pytest.fixture(scope="session")
def real_lab() -> Iterator[Lab]:
    """Two zones with a real node in each: kubelet, containerd, kube-proxy."""
    _remove_abandoned()
    name = f"{_PREFIX}{os.getpid()}-real"
    options = LabOptions(zones=zone_names(2), nodes_per_zone=1, kube_proxy=True, node_kind=NodeKind.REAL)
    yield labs.up(name, options, lambda _step: None)
    labs.down(name, lambda _step: None)


@pytest.fixture
async def real_pods(real_lab: Lab) -> AsyncIterator[Pods]:
    """As `pods`, on real nodes: pods name an image."""
    plane = ControlPlane.attach(real_lab.directory)
    name = f"t-{uuid.uuid4().hex[:10]}"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    plane.wait_service_account(name)
    async with Client(kubeconfig.load(real_lab.node_kubeconfig)) as client:
        yield Pods(real_lab, client, name)
    plane.request("DELETE", f"/api/v1/namespaces/{name}")


def _remove_abandoned() -> None:
    """Remove labs of killed test runs."""
    for name in state.names():
        pid, *_ = name.removeprefix(_PREFIX).split("-")  # what follows says which of the run's labs it is
        if name.startswith(_PREFIX) and not Path("/proc", pid).exists():
            labs.down(name, lambda _step: None)


@pytest.fixture
async def lab_client(lab: Lab) -> AsyncIterator[Client]:
    async with Client(kubeconfig.load(lab.node_kubeconfig)) as client:
        yield client


@pytest.fixture
async def pods(lab: Lab, lab_client: Client) -> AsyncIterator[Pods]:
    """Pods in the test's own namespace, which is deleted asynchronously after the test."""
    plane = ControlPlane.attach(lab.directory)
    name = f"t-{uuid.uuid4().hex[:10]}"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    plane.wait_service_account(name)
    yield Pods(lab, lab_client, name)
    plane.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def shaped_lab(lab: Lab) -> Iterator[Lab]:
    """Lab for tests that cut zones and shape paths; both are reset afterwards."""
    yield lab
    for zone in lab.zones:
        nodes.heal(lab, zone)
    for path in nodes.shaped(lab).paths:
        nodes.shape(lab, path.a, path.b, 0, 0)
