"""State of the labs on this machine: record, directory and lock of each.

A lab is a directory below the state root. Its record is written before anything is started, so a lab that crashed half
way is found, named and removed like any other.
"""

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path

import msgspec

from zonewise.errors import UsageError, ZonewiseError
from zonewise.lab import paths, records
from zonewise.lab.build.binaries import DEFAULT_VERSION
from zonewise.lab.controlplane import programs
from zonewise.objects import stored
from zonewise.objects.stored import Stored, StoredError

DEFAULT_NAME = "default"
_BRIEFLY_SECONDS = 0.2  # as long as a call of `is_held` may hold the lock
_POLL_SECONDS = 0.02
_RECORD = "lab.json"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,28}[a-z0-9])?")  # it becomes part of network namespaces' names


class LabPhase(StrEnum):
    STARTING = "starting"
    READY = "ready"


class LabOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for."""

    zones: tuple[str, ...] = ()
    nodes_per_zone: int = 0
    kwok_nodes: int = 0
    version: str = DEFAULT_VERSION
    controllers: str = "*"
    scheduler: bool = True
    kube_proxy: bool = False
    network_policies: bool = False
    """Enforced by kube-router on every node."""
    demo: bool = False
    zonewise: bool = False
    ceph: bool = False
    cluster_dns: bool = False
    """Pods' resolv.conf names the cluster's DNS address, also where the lab itself starts no server for it."""
    images: tuple[str, ...] = ()
    """Archives of images that nodes start with, beside the lab's own."""

    @property
    def has_nodes(self) -> bool:
        return bool(self.zones) and self.nodes_per_zone > 0


class LabImage(msgspec.Struct, frozen=True):
    name: str
    archive: Path


class Lab(Stored, frozen=True, kw_only=True):
    """A lab's record."""

    name: str
    directory: Path  # logs, its nodes' files, and what was shaped
    slot: int
    binaries: Path
    options: LabOptions
    runtime: Path | None = None  # containerd's directory, where there are nodes
    kube_router: Path | None = None  # its directory, where network policies are enforced
    image: LabImage | None = None  # of Zonewise and the demo, where there are some
    csi_image: LabImage | None = None
    phase: LabPhase = LabPhase.STARTING

    @property
    def zones(self) -> tuple[str, ...]:
        return self.options.zones

    @property
    def nodes_per_zone(self) -> int:
        return self.options.nodes_per_zone

    @property
    def is_outdated(self) -> bool:
        """Of an older release, whose pods were processes of this machine: it can be looked at and removed."""
        return self.options.has_nodes and self.runtime is None

    @property
    def node_kubeconfig(self) -> Path:
        """Reaches the API server from inside the nodes, too, with the rights of an admin."""
        return self.directory / "admin.kubeconfig"

    @property
    def ceph(self) -> Path:
        """Where its Ceph is, if it has one."""
        return self.directory / "ceph"

    @property
    def cluster_dns(self) -> str:
        """Where its pods find the cluster's DNS server; empty where there is none."""
        served = self.options.zonewise or self.options.cluster_dns
        return programs.CLUSTER_DNS_ADDRESS if served else ""

    @property
    def kube_proxy(self) -> Path | None:
        """The stock kube-proxy to run in every node."""
        return self.binaries / "kube-proxy" if self.options.kube_proxy else None

    @property
    def image_archives(self) -> tuple[Path, ...]:
        """Images that nodes start with, beside those that all have."""
        own = (image.archive for image in (self.image, self.csi_image) if image is not None)
        return (*own, *map(Path, self.options.images))

    def save(self) -> None:
        records.write(self.directory / _RECORD, self)


class NoLabError(ZonewiseError):
    pass


class BusyError(ZonewiseError):
    pass


class OutdatedError(ZonewiseError):
    """Only `lab down` and `lab status` know what to do with it."""


def directory_of(name: str) -> Path:
    if not _NAME.fullmatch(name):
        raise UsageError(f"a lab's name is up to 30 lower-case letters, digits and dashes, not {name!r}")
    return _labs() / name


def find(name: str) -> Lab | None:
    """The lab's record in any phase; None also for a directory without a record. Raises NewerError."""
    try:
        return records.read(directory_of(name) / _RECORD, Lab)
    except FileNotFoundError:
        return None


def may_have_nodes(directory: Path) -> bool:
    """Of a lab of anyone, whose record is only looked at; True also if it tells nothing that we understand."""
    try:
        record = (directory / _RECORD).read_bytes()
        return stored.read(record, Lab, str(directory), records.decode).options.has_nodes
    except (OSError, StoredError):
        return True


def get(name: str) -> Lab:
    lab = find(name)
    if lab is None or lab.phase is not LabPhase.READY:
        others = ", ".join(other for other in names() if other != name)
        known = f", or choose one of yours with --name: {others}" if others else ""
        raise NoLabError(f"no lab {name!r} is running: start {name!r} with `zonewise lab up --name {name}`{known}")
    require_current(lab)
    return lab


def require_current(lab: Lab) -> None:
    """Raises OutdatedError."""
    if lab.is_outdated:
        raise OutdatedError(
            f"lab {lab.name!r} is of an older release, and its nodes have no container runtime: "
            f"remove it with `zonewise lab down --name {lab.name}`, then start it again"
        )


def names() -> list[str]:
    """A place that can't hold labs is an error, not an empty list."""
    try:
        return sorted(path.name for path in _labs().iterdir() if path.is_dir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"{_labs()} can't be read ({error.strerror}): set ZONEWISE_STATE to a directory") from error


@contextmanager
def locked(name: str, patience_seconds: float = _BRIEFLY_SECONDS) -> Iterator[None]:
    """Alone with this lab. The lock lives beside the directory, and goes with it when the lab is gone."""
    path = _lock_of(name)
    descriptor = _take(path, name, time.monotonic() + patience_seconds)
    try:
        yield
    finally:
        if not directory_of(name).exists():
            path.unlink(missing_ok=True)
            _remove_empty(path.parent)
        os.close(descriptor)


def has_lock(name: str) -> bool:
    """Whether a command works on this lab, or was killed while it did."""
    return _lock_of(name).exists()


def is_held(name: str) -> bool:
    """Whether a command works on this lab now."""
    try:
        descriptor = os.open(_lock_of(name), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _lock_of(name: str) -> Path:
    return _labs() / f"{directory_of(name).name}.lock"


def _take(path: Path, name: str, deadline: float) -> int:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            if not _lock(descriptor, fcntl.LOCK_EX):
                _wait_for_holder(descriptor, name, deadline)
            elif _is_at(descriptor, path):
                os.ftruncate(descriptor, 0)
                os.write(descriptor, str(os.getpid()).encode())
                return descriptor
            os.close(descriptor)  # held, or its last holder removed the file after we had opened it


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for_holder(descriptor: int, name: str, deadline: float) -> None:
    if time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
        return
    holder = os.read(descriptor, 20).decode()
    os.close(descriptor)
    owner = f"process {holder}" if holder else "another process"
    raise BusyError(f"lab {name!r} is being started, stopped or shaped by {owner}: wait for it")


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _remove_empty(labs: Path) -> None:
    with suppress(OSError):
        labs.rmdir()
        labs.parent.rmdir()


def _labs() -> Path:
    return paths.state_root() / "labs"
