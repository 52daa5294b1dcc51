"""RBD volumes and snapshots, each an RBD image.

A snapshot is an image of its own, cloned from its volume, so it outlives it. A volume from a snapshot and a volume from
a volume are then the same: a copy of an image. A copy shares its source's data until it is flattened. In another domain
it is flattened before it is ready, since a clone can't even be opened while the zone of its parent is unavailable.

An image with clones can't be removed. It is moved to RBD's trash, and removed from there with the last of its clones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from zonewise.ceph.backend.cluster import OP_TIMEOUT_SECONDS, CephCluster
from zonewise.ceph.backend.librbd import (
    feature_bits,
    image_names,
    ioctx_of,
    ioctx_or_none,
    library,
    metadata_of,
    parent_of,
    reading,
)
from zonewise.ceph.backend.rbd_fast_create import FastImageCreator
from zonewise.ceph.backend.trash import RbdTrash
from zonewise.ceph.controller.locks import Unfinished
from zonewise.ceph.crash_points import CrashPoint, crash_if_armed
from zonewise.ceph.decide import ids
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import VolumeKind
from zonewise.ceph.decide.model import CloneSource, CreateSpec, Discovered, VolumeLocation
from zonewise.ceph.decide.parameters import StorageClassParameters

_MIB: Final = 1 << 20
_MAX_CLONE_DEPTH: Final = 8  # a read of missing data is passed on through every level
_COMPLETE: Final = "zonewise.complete"  # image metadata of a finished clone; an interrupted one lacks it
_COPY_PREFIX: Final = "copy-"


class RbdBackend:
    kind = VolumeKind.RBD

    def __init__(self, patience_seconds: float = 3 * OP_TIMEOUT_SECONDS) -> None:
        """`patience_seconds`: how long a half-created image is left to its creator; by default three timeouts."""
        self._unfinished = Unfinished(patience_seconds)
        self._trash = RbdTrash(patience_seconds)
        self._fast = FastImageCreator()

    def location(
        self, cluster: CephCluster, storage_class: StorageClassParameters, pool: str, data_pool: str, image: str
    ) -> VolumeLocation:
        parameter = "pool" if pool == storage_class.pool else "topologyConstrainedPools"
        if data_pool:
            cluster.require_pool(data_pool, "dataPool")
        return VolumeLocation(pool, cluster.require_pool(pool, parameter), image, data_pool=data_pool)

    def journal_pool(self, cluster: CephCluster, storage_class: StorageClassParameters) -> str:  # noqa: ARG002 - for CephFS
        return storage_class.pool

    def round_size(self, size_bytes: int) -> int:
        return round_to_mib(size_bytes)

    def create(self, cluster: CephCluster, spec: CreateSpec) -> int:
        with cluster.doing(f"creating image {spec.location.pool}/{spec.location.image}"):
            if spec.source is not None:
                return self._copy(cluster, spec, spec.source)
            return self._create(cluster, spec)

    def _create(self, cluster: CephCluster, spec: CreateSpec) -> int:
        import rados  # noqa: PLC0415 - a system package

        rbd = library()
        io, name = ioctx_of(cluster, spec.location), spec.location.image
        size = round_to_mib(spec.size_bytes)
        features = feature_bits(cluster, io, spec.features) if spec.features else None
        try:
            in_one_pool = not spec.location.data_pool
            created_fast = in_one_pool and self._fast.create(cluster, io, name, size, features)
            if not created_fast:
                rbd.RBD().create(io, name, size, old_format=False, **_options(cluster, io, spec))
        except (rbd.ImageExists, rados.ObjectExists):
            return self._reuse_existing(cluster, spec, size)
        except rbd.InvalidArgument as error:
            pool = spec.location.data_pool or spec.location.pool
            raise CsiError(
                GrpcCode.INVALID_ARGUMENT,
                f"RBD can't create an image of {size} bytes with its data in pool {pool}: an erasure-coded pool must allow "
                "overwrites and be the dataPool, and imageFeatures must be compatible with each other",
            ) from error
        return size

    def _reuse_existing(self, cluster: CephCluster, spec: CreateSpec, size: int) -> int:
        """The image was created, or half created, by an earlier call or by another process."""
        rbd = library()
        io, name = ioctx_of(cluster, spec.location), spec.location.image
        current = self.size(cluster, spec.location)
        if current is not None:
            self._unfinished.forget(name)
            return current
        self._unfinished.require_abandoned(name)
        with suppress(rbd.ImageNotFound):  # its creator just removed it
            rbd.RBD().remove(io, name)
        try:
            rbd.RBD().create(io, name, size, old_format=False, **_options(cluster, io, spec))
        except rbd.ImageExists:
            raise _creation_pending(spec.location) from None
        return size

    def _copy(self, cluster: CephCluster, spec: CreateSpec, source: CloneSource) -> int:
        io, name = ioctx_of(cluster, spec.location), spec.location.image
        snapshot = f"{_COPY_PREFIX}{name}"
        if not self._is_complete(cluster, spec.location):
            self._create_snapshot(cluster, source.location, snapshot)
            crash_if_armed(CrashPoint.COPY_SNAPPED)
            self._clone(cluster, spec, source.location, snapshot)
        crash_if_armed(CrashPoint.COPY_CLONED)
        if source.detached or self._depth(cluster, spec.location) > _MAX_CLONE_DEPTH:
            _flatten(io, name)
        crash_if_armed(CrashPoint.COPY_DETACHED)
        size = self.expand(cluster, spec.location, spec.size_bytes)
        crash_if_armed(CrashPoint.COPY_GROWN)
        self._remove_snapshot(cluster, source.location, snapshot)
        crash_if_armed(CrashPoint.COPY_CLEARED)
        return size

    def _is_complete(self, cluster: CephCluster, location: VolumeLocation) -> bool:
        """Whether a copy is finished. A half-created one is removed once its creator must be dead."""
        rbd = library()
        io, name = ioctx_of(cluster, location), location.image
        try:
            with reading(io, name) as image:
                is_complete = metadata_of(image, _COMPLETE) is not None
        except rbd.ImageNotFound:
            if name not in image_names(io):
                return False
            is_complete = False
        if is_complete:
            self._unfinished.forget(name)
            return True
        self._unfinished.require_abandoned(name)
        with suppress(rbd.ImageNotFound):
            rbd.RBD().remove(io, name)
        return False

    def _create_snapshot(self, cluster: CephCluster, location: VolumeLocation, snapshot: str) -> None:
        rbd = library()
        try:
            with rbd.Image(ioctx_of(cluster, location), location.image) as image, suppress(rbd.ImageExists):
                image.create_snap(snapshot)
        except rbd.ImageNotFound as error:
            raise CsiError(
                GrpcCode.NOT_FOUND, f"the source image {location.pool}/{location.image} does not exist any more"
            ) from error

    def _clone(self, cluster: CephCluster, spec: CreateSpec, source: VolumeLocation, snapshot: str) -> None:
        rbd = library()
        io, name = ioctx_of(cluster, spec.location), spec.location.image
        try:
            rbd.RBD().clone(ioctx_of(cluster, source), source.image, snapshot, io, name, **_options(cluster, io, spec))
        except rbd.ImageExists:
            raise _creation_pending(spec.location) from None
        with rbd.Image(io, name) as image:
            image.metadata_set(_COMPLETE, source.image)

    def _remove_snapshot(self, cluster: CephCluster, location: VolumeLocation, snapshot: str) -> None:
        """A snapshot with clones stays hidden in its image until they are gone."""
        rbd = library()
        io = ioctx_of(cluster, location)
        with suppress(rbd.ImageNotFound):
            with reading(io, location.image) as image:
                exists = any(snap["name"] == snapshot for snap in image.list_snaps())
            if exists:
                with rbd.Image(io, location.image) as image:
                    image.remove_snap(snapshot)

    def _depth(self, cluster: CephCluster, location: VolumeLocation) -> int:
        io, name, depth = ioctx_of(cluster, location), {"name": location.image}, 0
        while depth <= _MAX_CLONE_DEPTH:
            with reading(io, **name) as image:
                parent = parent_of(image)
            if parent is None:
                break
            depth += 1
            io, name = cluster.ioctx(parent[0]), {"image_id": parent[1]}
        return depth

    def remove(self, cluster: CephCluster, location: VolumeLocation, origin: VolumeLocation | None = None) -> None:
        """Also removes the temporary snapshot of its origin, left by an unfinished copy."""
        with cluster.doing(f"removing image {location.pool}/{location.image}"):
            if origin is None or ioctx_or_none(cluster, origin) is None:
                self._remove_image(cluster, location)
                return
            self._remove_snapshot(cluster, origin, _COPY_PREFIX + location.image)
            self._remove_image(cluster, location)
            self._trash.purge(cluster, origin.pool_id or origin.pool, origin.image)

    def _remove_image(self, cluster: CephCluster, location: VolumeLocation) -> None:
        rbd = library()
        if (io := ioctx_or_none(cluster, location)) is None:
            return
        try:
            rbd.RBD().remove(io, location.image)
        except rbd.ImageNotFound:
            if self.size(cluster, location) is not None:  # librbd reports this if a full pool has no trash yet
                name = f"{location.pool}/{location.image}"
                raise CsiError(
                    GrpcCode.UNAVAILABLE, f"image {name} could not be removed: its pool is full; add space, then retry"
                ) from None
        except rbd.ImageBusy as error:
            name = f"{location.pool}/{location.image}"
            raise CsiError(
                GrpcCode.FAILED_PRECONDITION, f"image {name} is in use: unmap it on the node that has it mapped"
            ) from error
        except rbd.ImageHasSnapshots:
            self._remove_with_snapshots(io, location.image)

    def _remove_with_snapshots(self, io: Any, name: str) -> None:
        rbd = library()
        with rbd.Image(io, name) as image:
            for snap in list(image.list_snaps()):
                if snap["name"].startswith(_COPY_PREFIX):  # of an unfinished copy
                    image.remove_snap(snap["name"])
        try:
            rbd.RBD().remove(io, name)
        except rbd.ImageHasSnapshots:
            self._trash.move_in(io, name)

    def is_open(self, cluster: CephCluster, location: VolumeLocation) -> bool:
        """A client with the image open for writing watches it; the watch of a dead process ends after half a minute."""
        rbd = library()
        with cluster.doing(f"listing watchers of image {location.pool}/{location.image}"):
            if (io := ioctx_or_none(cluster, location)) is None:
                return False
            try:
                with reading(io, location.image) as image:
                    return bool(list(image.watchers_list()))
            except rbd.ImageNotFound:
                return False

    def is_being_created(self, cluster: CephCluster, location: VolumeLocation) -> bool:
        return self.is_open(cluster, location)

    def size(self, cluster: CephCluster, location: VolumeLocation) -> int | None:
        rbd = library()
        with cluster.doing(f"opening image {location.pool}/{location.image}"):
            if (io := ioctx_or_none(cluster, location)) is None:
                return None
            try:
                with reading(io, location.image) as image:
                    return int(image.size())
            except rbd.ImageNotFound:
                return None

    def expand(self, cluster: CephCluster, location: VolumeLocation, size_bytes: int) -> int:
        rbd = library()
        with cluster.doing(f"expanding image {location.pool}/{location.image}"):
            current = self.size(cluster, location)
            target = round_to_mib(size_bytes)
            if current is None:
                raise CsiError(GrpcCode.NOT_FOUND, f"image {location.pool}/{location.image} does not exist")
            if current >= target:
                return current
            with rbd.Image(ioctx_of(cluster, location), location.image) as image:
                image.resize(target)
            return target

    def volume_context(self, cluster: CephCluster, location: VolumeLocation) -> Mapping[str, str]:  # noqa: ARG002 - for CephFS
        return {"pool": location.pool, "image": location.image}

    def discover(self, cluster: CephCluster, pool: str) -> Iterator[Discovered]:
        rbd = library()
        with cluster.doing(f"listing images of pool {pool}"):
            io, pool_id = cluster.ioctx(pool), cluster.require_pool(pool, "pool")
            for name in image_names(io):
                parsed = ids.parse_image_name(name)
                if parsed is None:
                    continue
                try:
                    with reading(io, name) as image:
                        snaps = tuple(snap["name"] for snap in image.list_snaps())
                except rbd.ImageNotFound:
                    snaps = ()
                leftovers = tuple(snap for snap in snaps if snap.startswith(_COPY_PREFIX))
                yield Discovered(VolumeLocation(pool, pool_id, name), *parsed, leftovers)

    def remove_leftover(self, cluster: CephCluster, image: Discovered, leftover: str) -> None:
        with cluster.doing(f"removing snapshot {leftover} of {image.location.image}"):
            self._remove_snapshot(cluster, image.location, leftover)

    def unused_trash(self, cluster: CephCluster, pool: str) -> list[str]:
        with cluster.doing(f"listing the trash of pool {pool}"):
            return self._trash.unused(cluster.ioctx(pool))

    def purge(self, cluster: CephCluster, pool: str, name: str) -> None:
        with cluster.doing(f"removing {name} from the trash of pool {pool}"):
            self._trash.purge(cluster, pool, name, wait=False)

    def journal_parameter(self, cluster: CephCluster, journal_pool_id: int) -> Mapping[str, str]:
        return {"pool": cluster.pool_name(journal_pool_id) or ""}


def round_to_mib(size_bytes: int) -> int:
    """Up to whole MiB, as mappers and file systems expect."""
    return max(_MIB, -(-size_bytes // _MIB) * _MIB)


def _creation_pending(location: VolumeLocation) -> CsiError:
    return CsiError(GrpcCode.ABORTED, f"image {location.pool}/{location.image} is being created by another call: retry")


def _flatten(io: Any, name: str) -> None:
    rbd = library()
    with rbd.Image(io, name) as image:
        if parent_of(image) is not None:
            image.flatten()


def _options(cluster: CephCluster, io: Any, spec: CreateSpec) -> dict[str, Any]:
    """librbd's options for a new image."""
    options: dict[str, Any] = {"features": feature_bits(cluster, io, spec.features)}
    return options | ({"data_pool": spec.location.data_pool} if spec.location.data_pool else {})
