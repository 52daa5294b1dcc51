"""One control plane per test run, shared by its xdist workers; pytest's own process or, after a kill, a reaper stops it.

Every run has a directory under the state root, and each live worker holds a shared lock on it. The kernel drops the
locks of a killed worker, so an exclusive lock proves that no worker uses the run any more.
"""

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.lab import leftovers
from zonewise.lab import paths, state
from zonewise.lab.ceph import cluster
from zonewise.lab.controlplane import controlplane
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program

SHARED = "shared"


@dataclass(frozen=True)
class Run:
    directory: Path

    @classmethod
    @contextmanager
    def join(cls) -> Iterator["Run"]:
        run = cls(runs() / os.environ[leftovers.RUN_ID])
        with _locked(runs() / "lock"):
            _remove_abandoned()
            if not run.directory.exists():
                leftovers.start_reaper(run.directory.name)
                run.directory.mkdir(parents=True)
            users = os.open(run.directory / "users", os.O_RDWR | os.O_CREAT)
            fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield run
        finally:
            os.close(users)

    def shared(self) -> ControlPlane:
        """The run's control plane, or the running lab named by ZONEWISE_TEST_LAB, which stays for inspection."""
        if name := os.environ.get("ZONEWISE_TEST_LAB"):
            return ControlPlane.attach(state.get(name).directory)
        directory = self.directory / SHARED
        with _locked(self.directory / "start"):
            if not directory.exists():
                return ControlPlane.start(directory)
            plane = ControlPlane.attach(directory)
            plane.wait_ready()
            return plane

    def private(
        self, *, programs: tuple[Program, ...] = (Program.ETCD, Program.APISERVER), **settings: Any
    ) -> ControlPlane:
        return ControlPlane.start(self.directory / uuid.uuid4().hex[:8], programs=programs, **settings)

    def remove(self, plane: ControlPlane) -> None:
        controlplane.remove(plane.directory)

    def shared_ceph(self) -> cluster.LabCeph:
        """One Ceph cluster for all workers of the run; stopped with the run's control planes."""
        with _locked(self.directory / "start-ceph"):
            directory = self.directory / "ceph"
            return cluster.attach(directory) if directory.exists() else cluster.start(directory)

    def private_ceph(self, **settings: Any) -> cluster.LabCeph:
        return cluster.start(self.directory / f"ceph-{uuid.uuid4().hex[:6]}", **settings)


def runs() -> Path:
    return paths.state_root() / "test-runs"


def remove(run: str) -> None:
    """Control planes and Ceph clusters of a run whose workers have all ended."""
    if (runs() / run).exists():
        with _locked(runs() / "lock"):
            _remove(runs() / run)


def _remove_abandoned() -> None:
    """Control planes and Ceph clusters of runs that no worker uses any more."""
    for users in runs().glob("*/users"):
        descriptor = os.open(users, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            _remove(users.parent)
        finally:
            os.close(descriptor)


def _remove(run: Path) -> None:
    for directory in run.glob("ceph*/"):
        cluster.remove(directory)
    for directory in [*run.glob("*/"), run]:
        controlplane.remove(directory)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
