"""The values that pass between the controller, the journal and the two backends. No Ceph and no gRPC here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from zonewise.ceph.decide.domains import Segments
from zonewise.ceph.decide.ids import ObjectType, VolumeKind

if TYPE_CHECKING:
    from zonewise.ceph.backend.cluster import CephCluster
    from zonewise.ceph.decide.parameters import StorageClassParameters


@dataclass(frozen=True, slots=True)
class VolumeLocation:
    """Where a volume or snapshot is: an RBD image, or a CephFS subvolume whose file data lies in `pool`."""

    pool: str  # RBD: the image's pool. CephFS: the data pool of the layout
    pool_id: int
    image: str
    filesystem: str = ""  # CephFS only
    group: str = ""  # CephFS only: the subvolume group
    data_pool: str = ""  # RBD only: an erasure-coded pool for the data of images in `pool`
    parent: str = ""  # of a snapshot: the image or subvolume it is of


@dataclass(frozen=True, slots=True)
class CreateSpec:
    """What to make at a place."""

    place: VolumeLocation
    thing: ObjectType
    size_bytes: int
    source: CloneSource | None = None
    features: tuple[str, ...] = ()  # RBD image features; () for the cluster's default


@dataclass(frozen=True, slots=True)
class CloneSource:
    """What a volume's content comes from (a volume or a snapshot), or what a snapshot is of."""

    place: VolumeLocation
    thing: ObjectType
    token: str
    size_bytes: int
    detached: bool  # the copy must not depend on the source: another domain, which may be lost alone


@dataclass(frozen=True, slots=True)
class Discovered:
    """One of ours as Ceph has it, whatever the journal says. For the doctor."""

    place: VolumeLocation
    thing: ObjectType
    token: str
    leftovers: tuple[
        str, ...
    ] = ()  # names of internal snapshots and the like that were made for copies and not removed
    is_deleted: bool = False  # CephFS: only its snapshots are left, of which some are somebody's


class VolumeBackend(Protocol):
    """RBD or CephFS. Every method may be called again after a crash in its middle, by another process too."""

    kind: VolumeKind

    def place(
        self, cluster: CephCluster, storage_class: StorageClassParameters, pool: str, data_pool: str, image: str
    ) -> VolumeLocation:
        """The place of a new image in a pool, checked to exist: INVALID_ARGUMENT names the parameter that is wrong."""
        ...

    def journal_pool(self, cluster: CephCluster, storage_class: StorageClassParameters) -> str:
        """RBD: the class's `pool`. CephFS: the metadata pool of its `fsName`."""
        ...

    def rounded(self, size_bytes: int) -> int:
        """The size that a volume gets for which this much is asked."""
        ...

    def make(self, cluster: CephCluster, wanted: CreateSpec) -> int:
        """Create it, or finish what an earlier call began; when it returns it is ready for use. Returns its size in bytes."""
        ...

    def remove(self, cluster: CephCluster, place: VolumeLocation, origin: VolumeLocation | None = None) -> None:
        """Fine when it is gone already. FAILED_PRECONDITION while somebody uses it.

        `origin` is what it was copied from: if that was deleted before and kept only for this copy, it can go now. What it has of
        an unfinished copy goes, too.
        """
        ...

    def is_open(self, cluster: CephCluster, place: VolumeLocation) -> bool:
        """Whether any process has it open for writing now, so that it can't be taken for abandoned."""
        ...

    def is_being_made(self, cluster: CephCluster, place: VolumeLocation) -> bool:
        """Whether somebody is at making it now, though the call that began it may be gone: a large copy takes its time."""
        ...

    def size(self, cluster: CephCluster, place: VolumeLocation) -> int | None:
        """In bytes; None when there is no such thing."""
        ...

    def grow(self, cluster: CephCluster, place: VolumeLocation, size_bytes: int) -> int:
        """Returns the size it now has; never less than before."""
        ...

    def context(self, cluster: CephCluster, place: VolumeLocation) -> Mapping[str, str]:
        """What the node needs to know besides the id: it becomes the volume_context."""
        ...

    def found(self, cluster: CephCluster, pool: str) -> Iterator[Discovered]:
        """Everything of ours in a pool (CephFS: with data in it), also what the journal does not know."""
        ...

    def clear(self, cluster: CephCluster, found: Discovered, leftover: str) -> None:
        """Remove one leftover."""
        ...

    def kept(self, cluster: CephCluster, pool: str) -> list[str]:
        """Names of what was deleted, kept for copies of it, and is needed by none any more."""
        ...

    def purge(self, cluster: CephCluster, pool: str, name: str) -> None:
        """Remove such a one."""
        ...

    def journal_named(self, cluster: CephCluster, journal_pool_id: int) -> Mapping[str, str]:
        """The parameter by which a class names the journal in this pool; its value is empty where the pool is gone."""
        ...


@dataclass(frozen=True, slots=True)
class PoolState:
    """What is known about a pool at the moment."""

    name: str
    free_bytes: int
    is_serving: bool = True  # enough of its OSDs are up
    is_full: bool = False
    volumes: int = 0
    problem: str = ""  # why it is not serving or full, in words


@dataclass(frozen=True, slots=True)
class TopologyRequirement:
    """A TopologyRequirement in plain values."""

    requisite: tuple[Segments, ...] = ()
    preferred: tuple[Segments, ...] = ()
