"""Pools with a journal, and pools that may have one but can't be read.

A journal that can't be read may list anything: a listing has to report it, and a repair has to leave its images alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.controller import journal
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import VolumeKind

APPLICATIONS: Final[Mapping[VolumeKind, str]] = {VolumeKind.RBD: "rbd", VolumeKind.CEPHFS: "cephfs"}
"""Ceph's pool applications; a pool without a known one may be used for any kind."""
_KNOWN_APPLICATIONS: Final = frozenset({*APPLICATIONS.values(), "rgw", "mgr", "mgr_devicehealth"})


@dataclass(frozen=True, slots=True)
class JournalPools:
    with_journal: set[str] = field(default_factory=set)
    without_journal: set[str] = field(default_factory=set)
    unavailable: dict[str, str] = field(default_factory=dict)
    """Pools that do not answer, and why."""
    unreadable: dict[VolumeKind, set[str]] = field(default_factory=lambda: {kind: set() for kind in VolumeKind})
    """Unavailable pools and pools that this user may not read, by the kinds that a journal there could have."""


def find_journal_pools(cluster: CephCluster, known: AbstractSet[str] = frozenset()) -> JournalPools:
    """`known` are pools with a journal, which are not checked again."""
    pools = JournalPools()
    dump = cluster.mon("osd dump")
    states = cluster.states(pool["pool_name"] for pool in dump["pools"])
    for pool in dump["pools"]:
        name, applications = pool["pool_name"], set(pool.get("application_metadata", {}))
        kinds = [
            kind for kind in VolumeKind if APPLICATIONS[kind] in applications or not applications & _KNOWN_APPLICATIONS
        ]
        if not kinds:
            continue
        if name in states and not states[name].is_serving:
            pools.unavailable[name] = states[name].problem
            present = None
        else:
            present = name in known or _has_journal(cluster, name, pools.unavailable)
        if present is None:
            for kind in kinds:
                pools.unreadable[kind].add(name)
        else:
            (pools.with_journal if present else pools.without_journal).add(name)
    return pools


def unreadable_message(cluster: CephCluster, pool: str, why: str) -> str:
    """For users: a listing may be incomplete."""
    return f"pool {pool} of cluster {cluster.name} may have a journal, which can't be read: {why}"


def _has_journal(cluster: CephCluster, pool: str, unavailable: dict[str, str]) -> bool | None:
    """None also if the pool does not answer although enough of its OSDs are up."""
    try:
        return journal.has_journal(cluster, pool)
    except CsiError as error:
        if error.code is not GrpcCode.UNAVAILABLE:
            raise
        unavailable[pool] = str(error)
        return None
