"""The control planes that tests run against: one shared by all workers of a run, and private ones for faults."""

import logging
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings

from support.fault_report import FaultTable, report
from support.lab import shared_cluster
from support.lab.leftovers import LeftoverCheck
from support.lab.machine import Machine
from support.release import FIRST_COMMIT, has_first_release
from support.rerun import RerunList
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.lab.ceph import cluster as ceph
from zonewise.lab.ceph.cluster import LabCeph
from zonewise.lab.controlplane.controlplane import ControlPlane

# A busy machine may take its time: what hangs is ended by pytest-timeout, not by a stopwatch per example.
settings.register_profile("zonewise", deadline=None)
settings.load_profile("zonewise")

# What a shell starts in the background ignores Ctrl-C, and so does all that it starts: tests send it, and wait for its effect.
signal.signal(signal.SIGINT, signal.default_int_handler)


__all__ = ["report"]


@pytest.hookimpl(trylast=True)  # once there is a terminal to write to
def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(RerunList(config.pluginmanager.getplugin("terminalreporter")))
        config.pluginmanager.register(FaultTable())
        config.pluginmanager.register(LeftoverCheck(config))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says what the upgrade tests upgraded from."""
    ran = [report for report in terminalreporter.getreports("passed") if "test_upgrade.py" in report.nodeid]
    if ran:
        commit = FIRST_COMMIT[:7]
        what = f"commit {commit}" if has_first_release() else f"its recorded states: no commit {commit} in this clone"
        terminalreporter.write_line(f"upgrades were tested from 0.1 by {what}")


@pytest.fixture(autouse=True)
def every_level_is_logged() -> Iterator[None]:
    """A program that did not configure logging shows warnings only, and tests look at every line."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def run_directory() -> Iterator[shared_cluster.Run]:
    with shared_cluster.Run.join() as run:
        yield run


@pytest.fixture(scope="session")
def cluster(run_directory: shared_cluster.Run) -> ControlPlane:
    """The control plane all tests share. Tests must not break it, and keep to their own namespace and object names."""
    return run_directory.shared()


@pytest.fixture
def namespace(cluster: ControlPlane) -> Iterator[str]:
    """A namespace of the test's own in which pods can be created; its deletion goes on after the test."""
    name = f"t-{uuid.uuid4().hex[:10]}"
    cluster.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    cluster.wait_service_account(name)
    yield name
    cluster.request("DELETE", f"/api/v1/namespaces/{name}")


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """For labs of the test's own, of which nothing may be left."""
    machine = Machine(tmp_path / "state")
    yield machine
    machine.run("down", "--all")
    machine.assert_untouched()


@pytest.fixture
async def client(cluster: ControlPlane) -> AsyncIterator[Client]:
    async with Client(kubeconfig.load(cluster.kubeconfig)) as client:
        yield client


@pytest.fixture
def private_cluster(run_directory: shared_cluster.Run) -> Iterator[Callable[..., ControlPlane]]:
    """Starts control planes that the test may break: `private_cluster(programs=..., controllers=...)`.

    The calls block: from a coroutine, use `await asyncio.to_thread(private_cluster)`.
    """
    started: list[ControlPlane] = []

    def start(**settings: Any) -> ControlPlane:
        started.append(run_directory.private(**settings))
        return started[-1]

    yield start
    for plane in started:
        run_directory.remove(plane)


@pytest.fixture(scope="session")
def ceph_cluster(run_directory: shared_cluster.Run) -> LabCeph:
    """The Ceph all tests share. Tests must not break it, and use names of their own in it."""
    return run_directory.shared_ceph()


@pytest.fixture(scope="module")
def breakable_ceph(run_directory: shared_cluster.Run) -> Iterator[LabCeph]:
    """A Ceph that the tests of a module may disturb, if each leaves it whole."""
    started = run_directory.private_ceph()
    yield started
    ceph.remove(started.directory)
