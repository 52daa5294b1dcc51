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
from typing import TYPE_CHECKING, Any

from zonewise.ceph import ids
from zonewise.ceph.cluster import OP_TIMEOUT_SECONDS, Cluster
from zonewise.ceph.errors import Code, CsiError
from zonewise.ceph.exclusion import Unfinished
from zonewise.ceph.ids import Kind
from zonewise.ceph.model import Found, Place, Source, Wanted
from zonewise.ceph.parameters import Class
from zonewise.ceph.plainimages import PlainImages
from zonewise.ceph.steps import Step, reach

if TYPE_CHECKING:
    import rbd

_MIB = 1 << 20
_DEEPEST = 8  # clones of clones; each level is asked for data that it does not have
_COMPLETE = "zonewise.complete"  # metadata of an image whose parent is attached: a clone killed half way lacks it
_KEPT = "zonewise.kept"  # metadata of an image that we put into the trash: what a person put there is that person's
_COPY_PREFIX = "copy-"
_RBD: Any = None


def _library() -> Any:
    """The binding of the system's, loaded when a volume is first touched: other commands do without it."""
    global _RBD  # noqa: PLW0603 - a module, loaded once
    if _RBD is None:
        import rbd  # noqa: PLC0415

        _RBD = rbd
    return _RBD


class Rbd:
    kind = Kind.RBD

    def __init__(self, patience_seconds: float = 3 * OP_TIMEOUT_SECONDS) -> None:
        """`patience_seconds`: for how long an image that another seems to be making is left alone; by default its three calls."""
        self._unfinished = Unfinished(patience_seconds)
        self._plain = PlainImages()

    def place(self, cluster: Cluster, storage_class: Class, pool: str, data_pool: str, image: str) -> Place:
        parameter = "pool" if pool == storage_class.pool else "topologyConstrainedPools"
        if data_pool:
            cluster.require_pool(data_pool, "dataPool")
        return Place(pool, cluster.require_pool(pool, parameter), image, data_pool=data_pool)

    def journal_pool(self, cluster: Cluster, storage_class: Class) -> str:  # noqa: ARG002 - CephFS has to ask
        return storage_class.pool

    def rounded(self, size_bytes: int) -> int:
        return rounded(size_bytes)

    def make(self, cluster: Cluster, wanted: Wanted) -> int:
        with cluster.doing(f"creating image {wanted.place.pool}/{wanted.place.image}"):
            if wanted.source is not None:
                return self._copy(cluster, wanted, wanted.source)
            return self._create(cluster, wanted)

    def _create(self, cluster: Cluster, wanted: Wanted) -> int:
        import rados  # noqa: PLC0415 - of the system's, as `rbd` is

        rbd = _library()
        io, name = _io(cluster, wanted.place), wanted.place.image
        size = rounded(wanted.size_bytes)
        options: dict[str, Any] = {"old_format": False}
        if wanted.features:
            options["features"] = _feature_bits(wanted.features)
        if wanted.place.data_pool:
            options["data_pool"] = wanted.place.data_pool
        try:
            if wanted.place.data_pool or not self._plain.create(cluster, io, name, size, options.get("features")):
                rbd.RBD().create(io, name, size, **options)
        except (rbd.ImageExists, rados.ObjectExists):
            return self._existing(cluster, wanted, size, options)
        except rbd.InvalidArgument as error:
            where = wanted.place.data_pool or wanted.place.pool
            raise CsiError(
                Code.INVALID_ARGUMENT,
                f"RBD can't make an image of {size} bytes with its data in pool {where}: an erasure-coded pool has to allow "
                "overwrites and to be a dataPool, and imageFeatures have to fit together",
            ) from error
        return size

    def _existing(self, cluster: Cluster, wanted: Wanted, size: int, options: dict[str, Any]) -> int:
        """An earlier call, or one at this moment in another process, came this far or only half of it."""
        rbd = _library()
        io, name = _io(cluster, wanted.place), wanted.place.image
        found = self.size(cluster, wanted.place)
        if found is not None:
            self._unfinished.done(name)
            return found
        self._unfinished.wait_for(name)
        with suppress(rbd.ImageNotFound):  # whoever made it took it back at this moment
            rbd.RBD().remove(io, name)
        try:
            rbd.RBD().create(io, name, size, **options)
        except rbd.ImageExists:
            raise _being_made(wanted.place) from None
        return size

    def _copy(self, cluster: Cluster, wanted: Wanted, source: Source) -> int:
        io, name = _io(cluster, wanted.place), wanted.place.image
        snapshot = f"{_COPY_PREFIX}{name}"
        if not self._is_complete(cluster, wanted.place):
            self._snap(cluster, source.place, snapshot)
            reach(Step.COPY_SNAPPED)
            self._clone(cluster, wanted, source.place, snapshot)
        reach(Step.COPY_CLONED)
        if source.detached or self._depth(cluster, wanted.place) > _DEEPEST:
            _detach(io, name)
        reach(Step.COPY_DETACHED)
        size = self.grow(cluster, wanted.place, wanted.size_bytes)
        reach(Step.COPY_GROWN)
        self._unsnap(cluster, source.place, snapshot)
        reach(Step.COPY_CLEARED)
        return size

    def _is_complete(self, cluster: Cluster, place: Place) -> bool:
        """Whether a copy is there with all that belongs to it. Half of one is removed, once nobody else can be at it."""
        rbd = _library()
        io, name = _io(cluster, place), place.image
        try:
            with rbd.Image(io, name, read_only=True) as image:
                image.metadata_get(_COMPLETE)
        except rbd.ImageNotFound:
            if name not in _names(io):
                return False
        except KeyError:
            pass
        else:
            self._unfinished.done(name)
            return True
        self._unfinished.wait_for(name)
        with suppress(rbd.ImageNotFound):
            rbd.RBD().remove(io, name)
        return False

    def _snap(self, cluster: Cluster, place: Place, snapshot: str) -> None:
        rbd = _library()
        try:
            with rbd.Image(_io(cluster, place), place.image) as image, suppress(rbd.ImageExists):
                image.create_snap(snapshot)
        except rbd.ImageNotFound as error:
            raise CsiError(Code.NOT_FOUND, f"the source {place.pool}/{place.image} is gone") from error

    def _clone(self, cluster: Cluster, wanted: Wanted, source: Place, snapshot: str) -> None:
        rbd = _library()
        io, name = _io(cluster, wanted.place), wanted.place.image
        options: dict[str, Any] = {}
        if wanted.features:
            options["features"] = _feature_bits(wanted.features)
        if wanted.place.data_pool:
            options["data_pool"] = wanted.place.data_pool
        try:
            rbd.RBD().clone(_io(cluster, source), source.image, snapshot, io, name, **options)
        except rbd.ImageExists:
            raise _being_made(wanted.place) from None
        with rbd.Image(io, name) as image:
            image.metadata_set(_COMPLETE, source.image)

    def _unsnap(self, cluster: Cluster, place: Place, snapshot: str) -> None:
        """A snapshot that clones use stays hidden in its image until they are gone."""
        rbd = _library()
        with suppress(rbd.ImageNotFound), rbd.Image(_io(cluster, place), place.image) as image:
            if any(each["name"] == snapshot for each in image.list_snaps()):
                image.remove_snap(snapshot)

    def _depth(self, cluster: Cluster, place: Place) -> int:
        rbd = _library()
        io, name, depth = _io(cluster, place), {"name": place.image}, 0
        while depth <= _DEEPEST:
            with rbd.Image(io, **name, read_only=True) as image:
                parent = _parent(image)
            if parent is None:
                break
            depth += 1
            io, name = cluster.ioctx(parent[0]), {"image_id": parent[1]}
        return depth

    def remove(self, cluster: Cluster, place: Place, origin: Place | None = None) -> None:
        rbd = _library()
        name = place.image
        with cluster.doing(f"removing image {place.pool}/{name}"):
            if (io := _io_if_there(cluster, place)) is None:
                return
            try:
                rbd.RBD().remove(io, name)
            except rbd.ImageNotFound:
                pass
            except rbd.ImageBusy as error:
                raise CsiError(
                    Code.FAILED_PRECONDITION, f"image {place.pool}/{name} is in use: it is mapped or mounted somewhere"
                ) from error
            except rbd.ImageHasSnapshots:
                self._remove_with_copies(io, name)
            if origin is not None and _io_if_there(cluster, origin) is not None:
                self._purge(cluster, origin.pool_id or origin.pool, origin.image)

    def _remove_with_copies(self, io: Any, name: str) -> None:
        rbd = _library()
        with rbd.Image(io, name) as image:
            for each in list(image.list_snaps()):
                if each["name"].startswith(_COPY_PREFIX):  # of a copy that nobody finished
                    image.remove_snap(each["name"])
        try:
            rbd.RBD().remove(io, name)
        except rbd.ImageHasSnapshots:
            with suppress(rbd.ImageNotFound):
                with rbd.Image(io, name) as image:
                    image.metadata_set(_KEPT, "for copies")
                rbd.RBD().trash_move(io, name, 0)

    def _purge(self, cluster: Cluster, pool: str | int, name: str) -> None:
        """Remove an image from the trash if it was kept for copies and there are none left; then what it was a copy of."""
        rbd = _library()
        while True:
            io = cluster.ioctx(pool)
            number = next((each["id"] for each in rbd.RBD().trash_list(io) if each["name"] == name), None)
            if number is None:
                return
            try:
                with rbd.Image(io, image_id=number, read_only=True) as image:
                    if not _is_kept(image):
                        return
                    parent = _parent(image)
                rbd.RBD().trash_remove(io, number)
            except (rbd.ImageHasSnapshots, rbd.ImageBusy, rbd.ImageNotFound):
                return
            if parent is None:
                return
            pool, name = parent[0], parent[2]

    def is_open(self, cluster: Cluster, place: Place) -> bool:
        """Who opens an image for writing watches it; a dead process's watch ends after half a minute."""
        rbd = _library()
        with cluster.doing(f"looking at image {place.pool}/{place.image}"):
            if (io := _io_if_there(cluster, place)) is None:
                return False
            try:
                with rbd.Image(io, place.image, read_only=True) as image:
                    return bool(list(image.watchers_list()))
            except rbd.ImageNotFound:
                return False

    def is_being_made(self, cluster: Cluster, place: Place) -> bool:
        return self.is_open(cluster, place)

    def size(self, cluster: Cluster, place: Place) -> int | None:
        rbd = _library()
        with cluster.doing(f"opening image {place.pool}/{place.image}"):
            if (io := _io_if_there(cluster, place)) is None:
                return None
            try:
                with rbd.Image(io, place.image, read_only=True) as image:
                    return int(image.size())
            except rbd.ImageNotFound:
                return None

    def grow(self, cluster: Cluster, place: Place, size_bytes: int) -> int:
        rbd = _library()
        with cluster.doing(f"growing image {place.pool}/{place.image}"):
            found = self.size(cluster, place)
            wanted = rounded(size_bytes)
            if found is None:
                raise CsiError(Code.NOT_FOUND, f"there is no image {place.pool}/{place.image}")
            if found >= wanted:
                return found
            with rbd.Image(_io(cluster, place), place.image) as image:
                image.resize(wanted)
            return wanted

    def context(self, cluster: Cluster, place: Place) -> Mapping[str, str]:  # noqa: ARG002 - CephFS has to ask
        return {"pool": place.pool, "image": place.image}

    def found(self, cluster: Cluster, pool: str) -> Iterator[Found]:
        rbd = _library()
        with cluster.doing(f"listing images of pool {pool}"):
            io, pool_id = cluster.ioctx(pool), cluster.require_pool(pool, "pool")
            for name in _names(io):
                ours = ids.named(name)
                if ours is None:
                    continue
                try:
                    with rbd.Image(io, name, read_only=True) as image:
                        snaps = tuple(each["name"] for each in image.list_snaps())
                except rbd.ImageNotFound:
                    snaps = ()
                leftovers = tuple(snap for snap in snaps if snap.startswith(_COPY_PREFIX))
                yield Found(Place(pool, pool_id, name), *ours, leftovers)

    def clear(self, cluster: Cluster, found: Found, leftover: str) -> None:
        with cluster.doing(f"removing snapshot {leftover} of {found.place.image}"):
            self._unsnap(cluster, found.place, leftover)

    def kept(self, cluster: Cluster, pool: str) -> list[str]:
        """Names of images of ours in the trash that no copy needs any more."""
        rbd = _library()
        unneeded = []
        with cluster.doing(f"looking into the trash of pool {pool}"):
            io = cluster.ioctx(pool)
            for each in rbd.RBD().trash_list(io):
                if ids.named(each["name"]) is None:
                    continue
                with suppress(rbd.ImageNotFound), rbd.Image(io, image_id=each["id"], read_only=True) as image:
                    if _is_kept(image) and not list(image.list_snaps()):
                        unneeded.append(each["name"])
        return unneeded

    def purge(self, cluster: Cluster, pool: str, name: str) -> None:
        with cluster.doing(f"removing {name} from the trash of pool {pool}"):
            self._purge(cluster, pool, name)


def rounded(size_bytes: int) -> int:
    """Up to whole MiB: what mappers and file systems expect."""
    return max(_MIB, -(-size_bytes // _MIB) * _MIB)


def _being_made(place: Place) -> CsiError:
    return CsiError(Code.ABORTED, f"image {place.pool}/{place.image} is being made by another call")


def _io(cluster: Cluster, place: Place) -> Any:
    """Of the place's pool, whatever it is called now."""
    return cluster.ioctx(place.pool_id or place.pool)


def _io_if_there(cluster: Cluster, place: Place) -> Any:
    """None where the pool was removed, with all that was in it."""
    try:
        return _io(cluster, place)
    except CsiError as error:
        if error.code is not Code.NOT_FOUND:
            raise
        return None


def _names(io: Any) -> list[str]:
    names: list[str] = _library().RBD().list(io)
    return names


def _detach(io: Any, name: str) -> None:
    rbd = _library()
    with rbd.Image(io, name) as image:
        if _parent(image) is not None:
            image.flatten()


def _parent(image: rbd.Image) -> tuple[str, str, str] | None:
    """Pool, id and name of the image that this one shares data with."""
    rbd = _library()
    try:
        spec = image.get_parent_image_spec()
        number = image.parent_id()
    except rbd.ImageNotFound:
        return None
    return spec["pool_name"], number, spec["image_name"]


def _is_kept(image: rbd.Image) -> bool:
    try:
        image.metadata_get(_KEPT)
    except KeyError:
        return False
    return True


def _feature_bits(features: tuple[str, ...]) -> int:
    rbd = _library()
    return sum(getattr(rbd, f"RBD_FEATURE_{name.upper().replace('-', '_')}") for name in set(features))
