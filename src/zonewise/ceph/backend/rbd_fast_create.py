"""Plain RBD images made by the calls of the OSDs' own class `rbd`, one operation for each object of an image.

librbd makes the same objects by the same calls, and looks much up before: it copies its whole configuration for each image, and asks the
pool for what rarely changes. That costs more than making the image. What it looks up is asked here every few seconds for a pool, and whatever
is not plain (features beyond these, an erasure-coded data pool, settings of the pool's own, a pool that was never used for RBD) is left
to librbd.

    rbd_directory - rbd_id.NAME - rbd_object_map.ID - rbd_header.ID

The first decides who makes an image: a name can be added once. With the last it can be opened, and another controller may take it for its
own from then on. librbd makes the object map last: a death before that leaves an image that can be opened and lacks it.
"""

from __future__ import annotations

import errno
import secrets
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from zonewise.ceph.backend.cluster import CephCluster

LAYERING, EXCLUSIVE_LOCK, OBJECT_MAP, FAST_DIFF, DEEP_FLATTEN, JOURNALING = 1, 4, 8, 16, 32, 64
FENCED = LAYERING | EXCLUSIVE_LOCK
"""What every image has, whatever the cluster's default is: without the lock Ceph would not shut out a node that was cut off."""
_PLAIN = LAYERING | EXCLUSIVE_LOCK | OBJECT_MAP | FAST_DIFF | DEEP_FLATTEN
_NAMES = {
    "layering": LAYERING,
    "exclusive-lock": EXCLUSIVE_LOCK,
    "object-map": OBJECT_MAP,
    "fast-diff": FAST_DIFF,
    "deep-flatten": DEEP_FLATTEN,
    "journaling": JOURNALING,
}
KNOWN = sum(_NAMES.values())
_MOST_OBJECTS = 1 << 22  # 16 TiB of 4 MiB each; librbd knows the limits of object maps
_KNOWN_SECONDS = 5.0  # how old what is known about a pool may be
_NO_DATA_POOL = -1
_NONEXISTENT = 0  # the state of an object, in an object map
_ID_BYTES = 7  # with its prefix as long as librbd's own ids may be
_INFO, _DIRECTORY = "rbd_info", "rbd_directory"
_VALIDATED = b"overwrite validated"  # what librbd writes when it has tried whether a pool is fit for images


@dataclass(frozen=True, slots=True)
class RbdImageDefaults:
    """Of a pool where images may be made this way."""

    features: int
    order: int


@dataclass(frozen=True, slots=True)
class ClassCall:
    """A method of the class on one object; `exclusive` makes the object, which must not be there."""

    target: str
    method: str
    data: bytes
    exclusive: bool = False


class FastImageCreator:
    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], tuple[float, RbdImageDefaults | None]] = {}

    def create(self, cluster: CephCluster, io: Any, name: str, size: int, features: int | None) -> bool:
        """False where librbd must do it. ObjectExists where the name is taken."""
        defaults = self._defaults(cluster, io)
        if defaults is None:
            return False
        bits = defaults.features | FENCED if features is None else features
        if bits & OBJECT_MAP:
            bits |= FAST_DIFF  # one is not made without the other
        if not is_plain(bits) or size >> defaults.order > _MOST_OBJECTS:
            return False
        _perform(io, calls(name, secrets.token_hex(_ID_BYTES), size, defaults.order, bits))
        return True

    def _defaults(self, cluster: CephCluster, io: Any) -> RbdImageDefaults | None:
        key = (cluster.name, cluster.user, int(io.get_pool_id()))
        taken, known = self._known.get(key, (float("-inf"), None))
        if time.monotonic() - taken > _KNOWN_SECONDS:
            known = _read(cluster, io)
            self._known[key] = (time.monotonic(), known)
        return known


def is_plain(features: int) -> bool:
    """Only features that are made by the calls here, each with those that it needs."""
    return (
        not features & ~_PLAIN
        and bool(features & LAYERING)
        and (not features & OBJECT_MAP or bool(features & EXCLUSIVE_LOCK))
        and (not features & FAST_DIFF or bool(features & OBJECT_MAP))
    )


def calls(name: str, number: str, size: int, order: int, features: int) -> list[ClassCall]:
    """`number` is the id that RBD knows an image by."""
    header = struct.pack("<QBQ", size, order, features) + _text(f"rbd_data.{number}") + struct.pack("<q", _NO_DATA_POOL)
    found = [
        ClassCall(_DIRECTORY, "dir_add_image", _text(name) + _text(number)),
        ClassCall(f"rbd_id.{name}", "set_id", _text(number), exclusive=True),
    ]
    if features & OBJECT_MAP:
        objects = -(-size >> order)
        found.append(
            ClassCall(f"rbd_object_map.{number}", "object_map_resize", struct.pack("<QB", objects, _NONEXISTENT))
        )
    return [*found, ClassCall(f"rbd_header.{number}", "create", header, exclusive=True)]


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<I", len(encoded)) + encoded


def _perform(io: Any, planned: list[ClassCall]) -> None:
    import rados  # noqa: PLC0415 - a binding of the system's

    for position, call in enumerate(planned):
        try:
            with rados.WriteOpCtx() as operation:
                if call.exclusive:
                    operation.new(rados.LIBRADOS_CREATE_EXCLUSIVE)
                operation.execute("rbd", call.method, call.data)
                io.operate_write_op(operation, call.target)
        except rados.Error as error:
            if call is planned[-1] and error.errno == errno.ETIMEDOUT:
                raise  # it may be made, and another controller may have answered with it: a retry takes it, or half of it, from there
            if position or error.errno != errno.EEXIST:
                _undo(io, planned[: position + 1], error)
            raise


def _undo(io: Any, begun: list[ClassCall], error: Any) -> None:
    """Sent even where nobody answers: an OSD that comes to itself does first what it was sent first. Only not waited for, then.

    It may come late, when somebody has made the image anew: of what has the image's name only that goes which has our id in it.
    """
    import rados  # noqa: PLC0415

    waiting = []
    for call in reversed(begun):
        if call is begun[-1] and error.errno == errno.EEXIST:
            continue  # it is somebody else's
        with suppress(rados.Error), rados.WriteOpCtx() as operation:
            match call.method:
                case "dir_add_image":
                    operation.execute("rbd", "dir_remove_image", call.data)
                case "set_id":
                    operation.cmpext(call.data, 0)
                    operation.remove()
                case _:
                    operation.remove()
            waiting.append(io.operate_aio_write_op(operation, call.target))
    if error.errno != errno.ETIMEDOUT:
        for each in waiting:
            each.wait_for_complete()


def _read(cluster: CephCluster, io: Any) -> RbdImageDefaults | None:
    import rados  # noqa: PLC0415
    import rbd  # noqa: PLC0415

    said = {name: cluster.option(f"rbd_default_{name}") for name in ("format", "stripe_unit", "stripe_count", "order")}
    features = bits_said(cluster.option("rbd_default_features"))
    if said["format"] != "2" or {said["stripe_unit"], said["stripe_count"]} != {"0"} or features is None:
        return None
    if cluster.option("rbd_default_data_pool") or not 12 <= int(said["order"]) <= 25:
        return None
    try:
        validated = io.read(_INFO, 64)
    except rados.ObjectNotFound:
        return None
    if validated != _VALIDATED or any(rbd.RBD().pool_metadata_list(io)):
        return None
    return RbdImageDefaults(features, int(said["order"]))


def bits_said(said: str) -> int | None:
    """What an option says in digits or in words; None where it is not understood."""
    if said.isdigit():
        return int(said)
    words = [word.strip() for word in said.split(",")]
    return sum({_NAMES[word] for word in words}) if all(word in _NAMES for word in words) else None
