"""Volumes and snapshots as RBD images.

A snapshot is an image of its own, cloned from its volume, so that it outlives it; a volume from a snapshot and a volume from a volume are then
the same thing: a copy of an image. A copy shares its source's data until it is flattened. In another domain that is done before it is
ready, since a clone can't even be opened while the zone of its source is away.

An image that copies still depend on can't be removed. It goes to RBD's trash, where it has no name any more, and from there when the last
of them is removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from zonewise.ceph.backend.cluster import OP_TIMEOUT_SECONDS, CephCluster
from zonewise.ceph.backend.librbd import feature_bits, io_if_there, io_of, library, metadata_of, names, parent_of
from zonewise.ceph.backend.rbd_fast_create import FastImageCreator
from zonewise.ceph.backend.trash import RbdTrash
from zonewise.ceph.controller.locks import Unfinished
from zonewise.ceph.crash_points import CrashPoint, reach
from zonewise.ceph.decide import ids
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import VolumeKind
from zonewise.ceph.decide.model import CloneSource, CreateSpec, Discovered, VolumeLocation
from zonewise.ceph.decide.parameters import StorageClassParameters

_MIB = 1 << 20
_DEEPEST = 8  # clones of clones; each level is asked for data that it does not have
_COMPLETE = "zonewise.complete"  # metadata of an image whose parent is attached: a clone killed half way lacks it
_COPY_PREFIX = "copy-"


class RbdBackend:
    kind = VolumeKind.RBD

    def __init__(self, patience_seconds: float = 3 * OP_TIMEOUT_SECONDS) -> None:
        """`patience_seconds`: for how long an image that another seems to be at is left alone; by default the three calls of making one."""
        self._unfinished = Unfinished(patience_seconds)
        self._trash = RbdTrash(patience_seconds)
        self._plain = FastImageCreator()

    def place(
        self, cluster: CephCluster, storage_class: StorageClassParameters, pool: str, data_pool: str, image: str
    ) -> VolumeLocation:
        parameter = "pool" if pool == storage_class.pool else "topologyConstrainedPools"
        if data_pool:
            cluster.require_pool(data_pool, "dataPool")
        return VolumeLocation(pool, cluster.require_pool(pool, parameter), image, data_pool=data_pool)

    def journal_pool(self, cluster: CephCluster, storage_class: StorageClassParameters) -> str:  # noqa: ARG002 - CephFS has to ask
        return storage_class.pool

    def rounded(self, size_bytes: int) -> int:
        return rounded(size_bytes)

    def make(self, cluster: CephCluster, wanted: CreateSpec) -> int:
        with cluster.doing(f"creating image {wanted.place.pool}/{wanted.place.image}"):
            if wanted.source is not None:
                return self._copy(cluster, wanted, wanted.source)
            return self._create(cluster, wanted)

    def _create(self, cluster: CephCluster, wanted: CreateSpec) -> int:
        import rados  # noqa: PLC0415 - of the system's, as `rbd` is

        rbd = library()
        io, name = io_of(cluster, wanted.place), wanted.place.image
        size = rounded(wanted.size_bytes)
        features = feature_bits(cluster, io, wanted.features) if wanted.features else None
        try:
            if wanted.place.data_pool or not self._plain.create(cluster, io, name, size, features):
                rbd.RBD().create(io, name, size, old_format=False, **_options(cluster, io, wanted))
        except (rbd.ImageExists, rados.ObjectExists):
            return self._existing(cluster, wanted, size)
        except rbd.InvalidArgument as error:
            where = wanted.place.data_pool or wanted.place.pool
            raise CsiError(
                GrpcCode.INVALID_ARGUMENT,
                f"RBD can't make an image of {size} bytes with its data in pool {where}: an erasure-coded pool has to allow "
                "overwrites and to be a dataPool, and imageFeatures have to fit together",
            ) from error
        return size

    def _existing(self, cluster: CephCluster, wanted: CreateSpec, size: int) -> int:
        """An earlier call, or one at this moment in another process, came this far or only half of it."""
        rbd = library()
        io, name = io_of(cluster, wanted.place), wanted.place.image
        found = self.size(cluster, wanted.place)
        if found is not None:
            self._unfinished.done(name)
            return found
        self._unfinished.wait_for(name)
        with suppress(rbd.ImageNotFound):  # whoever made it took it back at this moment
            rbd.RBD().remove(io, name)
        try:
            rbd.RBD().create(io, name, size, old_format=False, **_options(cluster, io, wanted))
        except rbd.ImageExists:
            raise _being_made(wanted.place) from None
        return size

    def _copy(self, cluster: CephCluster, wanted: CreateSpec, source: CloneSource) -> int:
        io, name = io_of(cluster, wanted.place), wanted.place.image
        snapshot = f"{_COPY_PREFIX}{name}"
        if not self._is_complete(cluster, wanted.place):
            self._snap(cluster, source.place, snapshot)
            reach(CrashPoint.COPY_SNAPPED)
            self._clone(cluster, wanted, source.place, snapshot)
        reach(CrashPoint.COPY_CLONED)
        if source.detached or self._depth(cluster, wanted.place) > _DEEPEST:
            _detach(io, name)
        reach(CrashPoint.COPY_DETACHED)
        size = self.grow(cluster, wanted.place, wanted.size_bytes)
        reach(CrashPoint.COPY_GROWN)
        self._unsnap(cluster, source.place, snapshot)
        reach(CrashPoint.COPY_CLEARED)
        return size

    def _is_complete(self, cluster: CephCluster, place: VolumeLocation) -> bool:
        """Whether a copy is there with all that belongs to it. Half of one is removed, once nobody else can be at it."""
        rbd = library()
        io, name = io_of(cluster, place), place.image
        try:
            with rbd.Image(io, name, read_only=True) as image:
                is_complete = metadata_of(image, _COMPLETE) is not None
        except rbd.ImageNotFound:
            if name not in names(io):
                return False
            is_complete = False
        if is_complete:
            self._unfinished.done(name)
            return True
        self._unfinished.wait_for(name)
        with suppress(rbd.ImageNotFound):
            rbd.RBD().remove(io, name)
        return False

    def _snap(self, cluster: CephCluster, place: VolumeLocation, snapshot: str) -> None:
        rbd = library()
        try:
            with rbd.Image(io_of(cluster, place), place.image) as image, suppress(rbd.ImageExists):
                image.create_snap(snapshot)
        except rbd.ImageNotFound as error:
            raise CsiError(GrpcCode.NOT_FOUND, f"the source {place.pool}/{place.image} is gone") from error

    def _clone(self, cluster: CephCluster, wanted: CreateSpec, source: VolumeLocation, snapshot: str) -> None:
        rbd = library()
        io, name = io_of(cluster, wanted.place), wanted.place.image
        try:
            rbd.RBD().clone(io_of(cluster, source), source.image, snapshot, io, name, **_options(cluster, io, wanted))
        except rbd.ImageExists:
            raise _being_made(wanted.place) from None
        with rbd.Image(io, name) as image:
            image.metadata_set(_COMPLETE, source.image)

    def _unsnap(self, cluster: CephCluster, place: VolumeLocation, snapshot: str) -> None:
        """A snapshot that clones use stays hidden in its image until they are gone."""
        rbd = library()
        io = io_of(cluster, place)
        with suppress(rbd.ImageNotFound):
            with rbd.Image(io, place.image, read_only=True) as image:
                is_there = any(each["name"] == snapshot for each in image.list_snaps())
            if is_there:
                with rbd.Image(io, place.image) as image:
                    image.remove_snap(snapshot)

    def _depth(self, cluster: CephCluster, place: VolumeLocation) -> int:
        rbd = library()
        io, name, depth = io_of(cluster, place), {"name": place.image}, 0
        while depth <= _DEEPEST:
            with rbd.Image(io, **name, read_only=True) as image:
                parent = parent_of(image)
            if parent is None:
                break
            depth += 1
            io, name = cluster.ioctx(parent[0]), {"image_id": parent[1]}
        return depth

    def remove(self, cluster: CephCluster, place: VolumeLocation, origin: VolumeLocation | None = None) -> None:
        """With the snapshot of its origin that it was to be copied from, where it was never copied to the end."""
        with cluster.doing(f"removing image {place.pool}/{place.image}"):
            if origin is None or io_if_there(cluster, origin) is None:
                self._remove_image(cluster, place)
                return
            self._unsnap(cluster, origin, _COPY_PREFIX + place.image)
            self._remove_image(cluster, place)
            self._trash.purge(cluster, origin.pool_id or origin.pool, origin.image)

    def _remove_image(self, cluster: CephCluster, place: VolumeLocation) -> None:
        rbd = library()
        if (io := io_if_there(cluster, place)) is None:
            return
        try:
            rbd.RBD().remove(io, place.image)
        except rbd.ImageNotFound:
            if self.size(cluster, place) is not None:  # librbd's word where a full pool has no trash yet
                where = f"{place.pool}/{place.image}"
                raise CsiError(GrpcCode.UNAVAILABLE, f"image {where} could not be removed: its pool is full") from None
        except rbd.ImageBusy as error:
            where = f"{place.pool}/{place.image}"
            raise CsiError(
                GrpcCode.FAILED_PRECONDITION, f"image {where} is in use: it is mapped or mounted somewhere"
            ) from error
        except rbd.ImageHasSnapshots:
            self._remove_with_copies(io, place.image)

    def _remove_with_copies(self, io: Any, name: str) -> None:
        rbd = library()
        with rbd.Image(io, name) as image:
            for each in list(image.list_snaps()):
                if each["name"].startswith(_COPY_PREFIX):  # of a copy that nobody finished
                    image.remove_snap(each["name"])
        try:
            rbd.RBD().remove(io, name)
        except rbd.ImageHasSnapshots:
            self._trash.keep(io, name)

    def is_open(self, cluster: CephCluster, place: VolumeLocation) -> bool:
        """Who opens an image for writing watches it; a dead process's watch ends after half a minute."""
        rbd = library()
        with cluster.doing(f"looking at image {place.pool}/{place.image}"):
            if (io := io_if_there(cluster, place)) is None:
                return False
            try:
                with rbd.Image(io, place.image, read_only=True) as image:
                    return bool(list(image.watchers_list()))
            except rbd.ImageNotFound:
                return False

    def is_being_made(self, cluster: CephCluster, place: VolumeLocation) -> bool:
        return self.is_open(cluster, place)

    def size(self, cluster: CephCluster, place: VolumeLocation) -> int | None:
        rbd = library()
        with cluster.doing(f"opening image {place.pool}/{place.image}"):
            if (io := io_if_there(cluster, place)) is None:
                return None
            try:
                with rbd.Image(io, place.image, read_only=True) as image:
                    return int(image.size())
            except rbd.ImageNotFound:
                return None

    def grow(self, cluster: CephCluster, place: VolumeLocation, size_bytes: int) -> int:
        rbd = library()
        with cluster.doing(f"growing image {place.pool}/{place.image}"):
            found = self.size(cluster, place)
            wanted = rounded(size_bytes)
            if found is None:
                raise CsiError(GrpcCode.NOT_FOUND, f"there is no image {place.pool}/{place.image}")
            if found >= wanted:
                return found
            with rbd.Image(io_of(cluster, place), place.image) as image:
                image.resize(wanted)
            return wanted

    def context(self, cluster: CephCluster, place: VolumeLocation) -> Mapping[str, str]:  # noqa: ARG002 - CephFS has to ask
        return {"pool": place.pool, "image": place.image}

    def found(self, cluster: CephCluster, pool: str) -> Iterator[Discovered]:
        rbd = library()
        with cluster.doing(f"listing images of pool {pool}"):
            io, pool_id = cluster.ioctx(pool), cluster.require_pool(pool, "pool")
            for name in names(io):
                ours = ids.named(name)
                if ours is None:
                    continue
                try:
                    with rbd.Image(io, name, read_only=True) as image:
                        snaps = tuple(each["name"] for each in image.list_snaps())
                except rbd.ImageNotFound:
                    snaps = ()
                leftovers = tuple(snap for snap in snaps if snap.startswith(_COPY_PREFIX))
                yield Discovered(VolumeLocation(pool, pool_id, name), *ours, leftovers)

    def clear(self, cluster: CephCluster, found: Discovered, leftover: str) -> None:
        with cluster.doing(f"removing snapshot {leftover} of {found.place.image}"):
            self._unsnap(cluster, found.place, leftover)

    def kept(self, cluster: CephCluster, pool: str) -> list[str]:
        with cluster.doing(f"looking into the trash of pool {pool}"):
            return self._trash.unneeded(cluster.ioctx(pool))

    def purge(self, cluster: CephCluster, pool: str, name: str) -> None:
        with cluster.doing(f"removing {name} from the trash of pool {pool}"):
            self._trash.purge(cluster, pool, name, patiently=False)

    def journal_named(self, cluster: CephCluster, journal_pool_id: int) -> Mapping[str, str]:
        return {"pool": cluster.pool_name(journal_pool_id) or ""}


def rounded(size_bytes: int) -> int:
    """Up to whole MiB: what mappers and file systems expect."""
    return max(_MIB, -(-size_bytes // _MIB) * _MIB)


def _being_made(place: VolumeLocation) -> CsiError:
    return CsiError(GrpcCode.ABORTED, f"image {place.pool}/{place.image} is being made by another call")


def _detach(io: Any, name: str) -> None:
    rbd = library()
    with rbd.Image(io, name) as image:
        if parent_of(image) is not None:
            image.flatten()


def _options(cluster: CephCluster, io: Any, wanted: CreateSpec) -> dict[str, Any]:
    """Of a new image, for librbd."""
    options: dict[str, Any] = {"features": feature_bits(cluster, io, wanted.features)}
    return options | ({"data_pool": wanted.place.data_pool} if wanted.place.data_pool else {})
