"""Values shared by the controller, the journal and the RBD and CephFS backends. No Ceph and no gRPC."""

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
    """An RBD image, or a CephFS subvolume with its file data in `pool`."""

    pool: str  # RBD: the image's pool. CephFS: the data pool of the layout
    pool_id: int
    image: str
    filesystem: str = ""  # CephFS only
    group: str = ""  # CephFS only: the subvolume group
    data_pool: str = ""  # RBD only: an erasure-coded pool for the data of images in `pool`
    parent: str = ""  # of a snapshot: the image or subvolume it is of


@dataclass(frozen=True, slots=True)
class CreateSpec:
    """An image or subvolume to create."""

    location: VolumeLocation
    object_type: ObjectType
    size_bytes: int
    source: CloneSource | None = None
    features: tuple[str, ...] = ()  # RBD image features; () for the cluster's default


@dataclass(frozen=True, slots=True)
class CloneSource:
    """The volume or snapshot to copy, or the volume to snapshot."""

    location: VolumeLocation
    object_type: ObjectType
    token: str
    size_bytes: int
    detached: bool  # the copy must not depend on the source: it is in another domain, which can fail alone


@dataclass(frozen=True, slots=True)
class Discovered:
    """An image or subvolume of this driver in Ceph, whether or not it is in the journal. For fsck."""

    location: VolumeLocation
    object_type: ObjectType
    token: str
    leftovers: tuple[str, ...] = ()  # internal snapshots that were made for copies and not removed
    is_deleted: bool = False  # CephFS: only its snapshots are left


class VolumeBackend(Protocol):
    """RBD or CephFS. Every method can be repeated after a crash halfway, also by another process."""

    kind: VolumeKind

    def location(
        self, cluster: CephCluster, storage_class: StorageClassParameters, pool: str, data_pool: str, image: str
    ) -> VolumeLocation:
        """The location of a new image. Raises INVALID_ARGUMENT with the parameter if a pool does not exist."""
        ...

    def journal_pool(self, cluster: CephCluster, storage_class: StorageClassParameters) -> str:
        """RBD: `pool` of the class. CephFS: the metadata pool of its `fsName`."""
        ...

    def round_size(self, size_bytes: int) -> int:
        """The size of a volume for which this many bytes are required."""
        ...

    def create(self, cluster: CephCluster, spec: CreateSpec) -> int:
        """Create it, or finish an interrupted creation. Returns the size in bytes, once it is ready for use."""
        ...

    def remove(self, cluster: CephCluster, location: VolumeLocation, origin: VolumeLocation | None = None) -> None:
        """No error if it does not exist; FAILED_PRECONDITION while it is in use. Removes leftovers of unfinished copies, too.

        `origin` is the source of the copy: if it was deleted and kept only for this copy, it is removed as well.
        """
        ...

    def is_open(self, cluster: CephCluster, location: VolumeLocation) -> bool:
        """Whether any process has it open for writing, so it is not abandoned."""
        ...

    def is_being_created(self, cluster: CephCluster, location: VolumeLocation) -> bool:
        """Whether its creation is in progress, also after the call that started it has ended: a large copy takes long."""
        ...

    def size(self, cluster: CephCluster, location: VolumeLocation) -> int | None:
        """In bytes; None if it does not exist."""
        ...

    def expand(self, cluster: CephCluster, location: VolumeLocation, size_bytes: int) -> int:
        """Returns the new size. Never shrinks."""
        ...

    def volume_context(self, cluster: CephCluster, location: VolumeLocation) -> Mapping[str, str]:
        """The volume_context: what the node needs besides the id."""
        ...

    def discover(self, cluster: CephCluster, pool: str) -> Iterator[Discovered]:
        """All images or subvolumes of this driver with data in a pool, also those that are not in the journal."""
        ...

    def remove_leftover(self, cluster: CephCluster, image: Discovered, leftover: str) -> None:
        """Remove one of its `leftovers`."""
        ...

    def unused_trash(self, cluster: CephCluster, pool: str) -> list[str]:
        """Names of deleted images that were kept for their copies and that no copy needs any more."""
        ...

    def purge(self, cluster: CephCluster, pool: str, name: str) -> None:
        """Remove an image of `unused_trash`."""
        ...

    def journal_parameter(self, cluster: CephCluster, journal_pool_id: int) -> Mapping[str, str]:
        """The class parameter that selects the journal in this pool; its value is empty if the pool does not exist."""
        ...


@dataclass(frozen=True, slots=True)
class PoolState:
    """The current state of a pool."""

    name: str
    free_bytes: int
    is_serving: bool = True  # enough of its OSDs are up
    is_full: bool = False
    volumes: int = 0
    problem: str = ""  # why it is not serving, or full


@dataclass(frozen=True, slots=True)
class TopologyRequirement:
    """CSI's TopologyRequirement in plain values."""

    requisite: tuple[Segments, ...] = ()
    preferred: tuple[Segments, ...] = ()
