"""librbd binding: loading it, and small queries on RBD images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.backend.rbd_fast_create import ALL_FEATURES, REQUIRED_FEATURES, parse_features
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.model import VolumeLocation

if TYPE_CHECKING:
    import rbd

_RBD: Any = None
_DIRECTORY: Final = "rbd_directory"  # an object of every pool with images; whether it exists does not matter here


def library() -> Any:
    """The `rbd` module, a system package: loaded on first use, since most commands do not need it."""
    global _RBD  # noqa: PLW0603 - a module, loaded once
    if _RBD is None:
        import rbd  # noqa: PLC0415

        _RBD = rbd
    return _RBD


@contextmanager
def reading(io: Any, name: str | None = None, image_id: str | None = None) -> Iterator[rbd.Image]:
    """An image opened for reading, by name or id. Closed only after librbd has finished opening it.

    The open of a clone returns while a thread of librados is still about to lock the parent image, and a close would
    free the parent under it: the process aborts (docs/decisions/0008). That thread is in a callback, and librados
    runs one callback at a time: when one of ours has run, the thread has left. Images open for writing need no such
    wait, since they end their watch by a callback.
    """
    with library().Image(io, name, image_id=image_id, read_only=True) as image:
        io.aio_read(_DIRECTORY, 1, 0, lambda *_: None).wait_for_complete_and_cb()
        yield image


def ioctx_of(cluster: CephCluster, location: VolumeLocation) -> Any:
    """For the location's pool by id, since it may have been renamed."""
    return cluster.ioctx(location.pool_id or location.pool)


def ioctx_or_none(cluster: CephCluster, location: VolumeLocation) -> Any:
    """None if the pool does not exist any more."""
    try:
        return ioctx_of(cluster, location)
    except CsiError as error:
        if error.code is not GrpcCode.NOT_FOUND:
            raise
        return None


def image_names(io: Any) -> list[str]:
    names: list[str] = library().RBD().list(io)
    return names


def parent_of(image: rbd.Image) -> tuple[str, str, str] | None:
    """Pool, id and name of a clone's parent image."""
    try:
        spec = image.get_parent_image_spec()
        image_id = image.parent_id()
    except library().ImageNotFound:
        return None
    return spec["pool_name"], image_id, spec["image_name"]


def metadata_of(image: rbd.Image, key: str) -> str | None:
    try:
        return str(image.metadata_get(key))
    except KeyError:
        return None


def feature_bits(cluster: CephCluster, io: Any, features: tuple[str, ...]) -> int:
    """Of the StorageClass, or the default of pool or cluster with the required features."""
    rbd = library()
    if features:
        return sum(getattr(rbd, f"RBD_FEATURE_{name.upper().replace('-', '_')}") for name in set(features))
    try:
        default = rbd.RBD().config_get(io, "rbd_default_features")
    except KeyError:
        default = cluster.option("rbd_default_features")
    return (parse_features(default) or 0) & ALL_FEATURES | REQUIRED_FEATURES
