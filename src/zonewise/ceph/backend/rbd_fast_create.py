"""Fast creation of plain RBD images, with the methods of the OSDs' `rbd` object class: one operation per object.

librbd creates the same objects with the same calls, but looks up much more: it copies its whole configuration for each
image, and queries pool settings that rarely change, which costs more than creating the image. Here these are read every
few seconds per pool. Images that are not plain (other features, a data pool, settings of the pool, a pool that was
never used for RBD) are left to librbd.

    rbd_directory - rbd_id.NAME - rbd_object_map.ID - rbd_header.ID

The first object decides which process creates an image: a name can be added once. With the last one the image can be
opened, and another controller may use it from then on. librbd creates the object map last: a crash before that leaves
an image without one.
"""

from __future__ import annotations

import errno
import secrets
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from zonewise.ceph.backend.cluster import CephCluster

LAYERING, EXCLUSIVE_LOCK, OBJECT_MAP, FAST_DIFF, DEEP_FLATTEN, JOURNALING = 1, 4, 8, 16, 32, 64
REQUIRED_FEATURES: Final = LAYERING | EXCLUSIVE_LOCK
"""Of every image, whatever the cluster's default: without the lock Ceph can't fence a disconnected node."""
_PLAIN: Final = LAYERING | EXCLUSIVE_LOCK | OBJECT_MAP | FAST_DIFF | DEEP_FLATTEN
_FEATURES: Final = {
    "layering": LAYERING,
    "exclusive-lock": EXCLUSIVE_LOCK,
    "object-map": OBJECT_MAP,
    "fast-diff": FAST_DIFF,
    "deep-flatten": DEEP_FLATTEN,
    "journaling": JOURNALING,
}
ALL_FEATURES: Final = sum(_FEATURES.values())
_MAX_OBJECTS: Final = (
    1 << 22
)  # 16 TiB of 4 MiB each; larger images are left to librbd, which knows the limits of object maps
_DEFAULTS_SECONDS: Final = 5.0  # maximum age of a pool's defaults
_NO_DATA_POOL: Final = -1
_NONEXISTENT: Final = 0  # state of an object in an object map
_ID_BYTES: Final = 7  # the length of librbd's ids
_INFO, _DIRECTORY = "rbd_info", "rbd_directory"
_VALIDATED: Final = b"overwrite validated"  # written by librbd after it has tested a pool


@dataclass(frozen=True, slots=True)
class RbdImageDefaults:
    """Defaults of a pool in which plain images can be created."""

    features: int
    order: int


@dataclass(frozen=True, slots=True)
class ClassCall:
    """A method call on one object; `exclusive` creates the object, which must not exist."""

    target: str
    method: str
    data: bytes
    exclusive: bool = False


class FastImageCreator:
    def __init__(self) -> None:
        self._cache: dict[tuple[str, str, int], tuple[float, RbdImageDefaults | None]] = {}

    def create(self, cluster: CephCluster, io: Any, name: str, size: int, features: int | None) -> bool:
        """False if librbd has to create it. Raises ObjectExists if the name is taken."""
        defaults = self._defaults(cluster, io)
        if defaults is None:
            return False
        bits = defaults.features | REQUIRED_FEATURES if features is None else features
        if bits & OBJECT_MAP:
            bits |= FAST_DIFF  # librbd enables both together
        if not is_plain(bits) or size >> defaults.order > _MAX_OBJECTS:
            return False
        _perform(io, class_calls(name, secrets.token_hex(_ID_BYTES), size, defaults.order, bits))
        return True

    def _defaults(self, cluster: CephCluster, io: Any) -> RbdImageDefaults | None:
        key = (cluster.name, cluster.user, int(io.get_pool_id()))
        read_at, defaults = self._cache.get(key, (float("-inf"), None))
        if time.monotonic() - read_at > _DEFAULTS_SECONDS:
            defaults = _read(cluster, io)
            self._cache[key] = (time.monotonic(), defaults)
        return defaults


def is_plain(features: int) -> bool:
    """Whether only features are set that are supported here, each with those it depends on."""
    return (
        not features & ~_PLAIN
        and bool(features & LAYERING)
        and (not features & OBJECT_MAP or bool(features & EXCLUSIVE_LOCK))
        and (not features & FAST_DIFF or bool(features & OBJECT_MAP))
    )


def class_calls(name: str, image_id: str, size: int, order: int, features: int) -> list[ClassCall]:
    """`image_id` is RBD's internal id of the image."""
    header = (
        struct.pack("<QBQ", size, order, features) + _text(f"rbd_data.{image_id}") + struct.pack("<q", _NO_DATA_POOL)
    )
    calls = [
        ClassCall(_DIRECTORY, "dir_add_image", _text(name) + _text(image_id)),
        ClassCall(f"rbd_id.{name}", "set_id", _text(image_id), exclusive=True),
    ]
    if features & OBJECT_MAP:
        objects = -(-size >> order)
        calls.append(
            ClassCall(f"rbd_object_map.{image_id}", "object_map_resize", struct.pack("<QB", objects, _NONEXISTENT))
        )
    return [*calls, ClassCall(f"rbd_header.{image_id}", "create", header, exclusive=True)]


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<I", len(encoded)) + encoded


def _perform(io: Any, calls: list[ClassCall]) -> None:
    import rados  # noqa: PLC0415 - a system package

    for position, call in enumerate(calls):
        try:
            with rados.WriteOpCtx() as operation:
                if call.exclusive:
                    operation.new(rados.LIBRADOS_CREATE_EXCLUSIVE)
                operation.execute("rbd", call.method, call.data)
                io.operate_write_op(operation, call.target)
        except rados.Error as error:
            if call is calls[-1] and error.errno == errno.ETIMEDOUT:
                raise  # it may exist, and another controller may use it: a retry finds it, or continues the half-created image
            if position or error.errno != errno.EEXIST:
                _undo(io, calls[: position + 1], error)
            raise


def _undo(io: Any, begun: list[ClassCall], error: Any) -> None:
    """Sent also after a timeout, without waiting: an OSD that recovers processes requests in order.

    It may arrive late, when the image was created again: objects with the image's name are only removed if they contain
    our id.
    """
    import rados  # noqa: PLC0415

    completions = []
    for call in reversed(begun):
        if call is begun[-1] and error.errno == errno.EEXIST:
            continue  # it belongs to another process
        with suppress(rados.Error), rados.WriteOpCtx() as operation:
            match call.method:
                case "dir_add_image":
                    operation.execute("rbd", "dir_remove_image", call.data)
                case "set_id":
                    operation.cmpext(call.data, 0)
                    operation.remove()
                case _:
                    operation.remove()
            completions.append(io.operate_aio_write_op(operation, call.target))
    if error.errno != errno.ETIMEDOUT:
        for completion in completions:
            completion.wait_for_complete()


def _read(cluster: CephCluster, io: Any) -> RbdImageDefaults | None:
    import rados  # noqa: PLC0415
    import rbd  # noqa: PLC0415

    options = {
        name: cluster.option(f"rbd_default_{name}") for name in ("format", "stripe_unit", "stripe_count", "order")
    }
    features = parse_features(cluster.option("rbd_default_features"))
    if options["format"] != "2" or {options["stripe_unit"], options["stripe_count"]} != {"0"} or features is None:
        return None
    if cluster.option("rbd_default_data_pool") or not 12 <= int(options["order"]) <= 25:
        return None
    try:
        validated = io.read(_INFO, 64)
    except rados.ObjectNotFound:
        return None
    if validated != _VALIDATED or any(rbd.RBD().pool_metadata_list(io)):
        return None
    return RbdImageDefaults(features, int(options["order"]))


def parse_features(value: str) -> int | None:
    """An option value in digits or names; None if a name is unknown."""
    if value.isdigit():
        return int(value)
    words = [word.strip() for word in value.split(",")]
    return sum({_FEATURES[word] for word in words}) if all(word in _FEATURES for word in words) else None
