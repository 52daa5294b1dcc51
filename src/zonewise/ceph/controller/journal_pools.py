"""Which pools of a cluster have a journal, and which may have one but can't be asked: one rule for all who read journals.

What is in a journal that nobody could ask is not known to be absent: who lists has to say so, who repairs has to leave things alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.controller import journal
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import VolumeKind

APPLICATIONS: Mapping[VolumeKind, str] = {VolumeKind.RBD: "rbd", VolumeKind.CEPHFS: "cephfs"}
"""What Ceph says a pool is for; one that has no word of Ceph's own may be for anything."""
_OF_CEPH = frozenset({*APPLICATIONS.values(), "rgw", "mgr", "mgr_devicehealth"})


@dataclass(frozen=True, slots=True)
class JournalPools:
    found: set[str] = field(default_factory=set)
    none: set[str] = field(default_factory=set)
    """They were asked, and have none."""
    away: dict[str, str] = field(default_factory=dict)
    """Those that can't answer now, and why."""
    unseen: dict[VolumeKind, set[str]] = field(default_factory=lambda: {kind: set() for kind in VolumeKind})
    """What is away, and what this user may not look at: which kinds a journal there could be of."""


def look(cluster: CephCluster, known: AbstractSet[str] = frozenset()) -> JournalPools:
    """`known` are pools with a journal that need not be asked again."""
    seen = JournalPools()
    dump = cluster.mon("osd dump")
    states = cluster.states(pool["pool_name"] for pool in dump["pools"])
    for pool in dump["pools"]:
        name, applications = pool["pool_name"], set(pool.get("application_metadata", {}))
        kinds = [kind for kind in VolumeKind if APPLICATIONS[kind] in applications or not applications & _OF_CEPH]
        if not kinds:
            continue
        if name in states and not states[name].is_serving:
            seen.away[name] = states[name].problem
            there = None
        else:
            there = name in known or _asked(cluster, name, seen.away)
        if there is None:
            for kind in kinds:
                seen.unseen[kind].add(name)
        else:
            (seen.found if there else seen.none).add(name)
    return seen


def missing(cluster: CephCluster, pool: str, why: str) -> str:
    """For people: that what they see may not be all."""
    return f"pool {pool} of cluster {cluster.name} may have a journal and can't be asked: {why}"


def _asked(cluster: CephCluster, pool: str, away: dict[str, str]) -> bool | None:
    """None also where the pool does not answer, though enough of it seems to be up."""
    try:
        return journal.seen(cluster, pool)
    except CsiError as error:
        if error.code is not GrpcCode.UNAVAILABLE:
            raise
        away[pool] = str(error)
        return None
