"""All RBD mappers, best first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zonewise.ceph.node.mappers import Mapper, MapperChoice, choose_mapper
from zonewise.ceph.node.mappers.krbd import KernelRbd
from zonewise.ceph.node.mappers.nbd import Nbd
from zonewise.ceph.node.mappers.storage_daemon import StorageDaemon


def all_mappers(cgroup: Sequence[Path] = ()) -> list[Mapper]:
    return [KernelRbd(), Nbd(cgroup), StorageDaemon(cgroup)]


def probe_mapper(name: str = "auto", cgroup: Sequence[Path] = ()) -> MapperChoice:
    return choose_mapper(all_mappers(cgroup), name)
