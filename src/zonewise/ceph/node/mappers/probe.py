"""All mappers that there are, best first."""

from __future__ import annotations

from pathlib import Path

from zonewise.ceph.node.mappers import Mapper, MapperChoice, choose
from zonewise.ceph.node.mappers.krbd import KernelRbd
from zonewise.ceph.node.mappers.nbd import Nbd
from zonewise.ceph.node.mappers.storage_daemon import StorageDaemon


def known(cgroup: Path | None = None) -> list[Mapper]:
    return [KernelRbd(), Nbd(cgroup), StorageDaemon(cgroup)]


def probe(wanted: str = "auto", cgroup: Path | None = None) -> MapperChoice:
    return choose(known(cgroup), wanted)
