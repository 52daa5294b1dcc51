"""The binding of librbd, and the small questions that everything about RBD images asks by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.backend.rbd_fast_create import FENCED, KNOWN, bits_said
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.model import VolumeLocation

if TYPE_CHECKING:
    import rbd

_RBD: Any = None


def library() -> Any:
    """The binding of the system's, loaded when a volume is first touched: other commands do without it."""
    global _RBD  # noqa: PLW0603 - a module, loaded once
    if _RBD is None:
        import rbd  # noqa: PLC0415

        _RBD = rbd
    return _RBD


def io_of(cluster: CephCluster, place: VolumeLocation) -> Any:
    """Of the place's pool, whatever it is called now."""
    return cluster.ioctx(place.pool_id or place.pool)


def io_if_there(cluster: CephCluster, place: VolumeLocation) -> Any:
    """None where the pool was removed, with all that was in it."""
    try:
        return io_of(cluster, place)
    except CsiError as error:
        if error.code is not GrpcCode.NOT_FOUND:
            raise
        return None


def names(io: Any) -> list[str]:
    found: list[str] = library().RBD().list(io)
    return found


def parent_of(image: rbd.Image) -> tuple[str, str, str] | None:
    """Pool, id and name of the image that this one shares data with."""
    try:
        spec = image.get_parent_image_spec()
        number = image.parent_id()
    except library().ImageNotFound:
        return None
    return spec["pool_name"], number, spec["image_name"]


def metadata_of(image: rbd.Image, key: str) -> str | None:
    try:
        return str(image.metadata_get(key))
    except KeyError:
        return None


def feature_bits(cluster: CephCluster, io: Any, said: tuple[str, ...]) -> int:
    """Of a class; where it says nothing the default of the pool or the cluster, with the lock by which Ceph shuts out who was cut off."""
    rbd = library()
    if said:
        return sum(getattr(rbd, f"RBD_FEATURE_{name.upper().replace('-', '_')}") for name in set(said))
    try:
        default = rbd.RBD().config_get(io, "rbd_default_features")
    except KeyError:
        default = cluster.option("rbd_default_features")
    return (bits_said(default) or 0) & KNOWN | FENCED
