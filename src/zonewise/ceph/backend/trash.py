"""RBD trash: deleted images that still have clones. They are removed with the last clone.

Two processes that remove one image at the same time can hang in librbd 16, see `controller.locks`. Two clones have
journal entries of their own, so their common parent needs a lock, too: an owner id in the parent's header, set by
compare-and-set and removed with it.
"""

from __future__ import annotations

import errno
from typing import Any, Final

from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.backend.librbd import library, metadata_of, parent_of, reading
from zonewise.ceph.controller.locks import OperationPending, VolumeLocks
from zonewise.ceph.crash_points import CrashPoint, crash_if_armed
from zonewise.ceph.decide import ids
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import ObjectType

_KEPT: Final = "zonewise.kept"  # image metadata: moved to the trash by this driver, not by a user
_REMOVER: Final = "zonewise.remover"  # image metadata: the owner id of the process that removes it
_METADATA_PREFIX: Final = "metadata_"  # of image metadata in the omap of a header


class RbdTrash:
    def __init__(self, patience_seconds: float) -> None:
        """`patience_seconds`: how long a removal is left to the process that started it."""
        self._locks = VolumeLocks(patience_seconds)
        self._pending = OperationPending()

    def move_in(self, io: Any, name: str) -> None:
        """No error if the image does not exist any more."""
        rbd = library()
        try:
            with rbd.Image(io, name) as image:
                image.metadata_set(_KEPT, "for copies")
            rbd.RBD().trash_move(io, name, 0)
        except rbd.ImageNotFound:
            pass

    def purge(self, cluster: CephCluster, pool: str | int, name: str, *, wait: bool = True) -> None:
        """Remove an image if it was kept for its clones and has none left; then its own parent likewise.

        Raises ABORTED while another process removes it. Without `wait` that only counts while the image is open.
        """
        origin: tuple[str | int, str] | None = (pool, name)
        while origin is not None:
            origin = self._purge_one(cluster, *origin, wait=wait)

    def unused(self, io: Any) -> list[str]:
        """Names of this driver's images without clones."""
        rbd = library()
        unused = []
        for entry in rbd.RBD().trash_list(io):
            if ids.parse_image_name(entry["name"]) is None:
                continue
            try:
                with reading(io, image_id=entry["id"]) as image:
                    if _is_unused(image):
                        unused.append(entry["name"])
            except rbd.ImageNotFound:
                continue
        return unused

    def _purge_one(
        self, cluster: CephCluster, pool: str | int, name: str, *, wait: bool
    ) -> tuple[str | int, str] | None:
        """Pool and name of its parent; None if there is nothing more to do."""
        rbd = library()
        io = cluster.ioctx(pool)
        image_id = next((entry["id"] for entry in rbd.RBD().trash_list(io) if entry["name"] == name), None)
        if image_id is None:
            return None
        try:
            with reading(io, image_id=image_id) as image:
                if not _is_unused(image):
                    return None
                parent, owner = parent_of(image), metadata_of(image, _REMOVER) or ""
                is_open = bool(list(image.watchers_list()))
            with self._pending.exclusive(cluster.name, ObjectType.VOLUME, image_id):
                if not self._is_free(image_id, owner, wait=wait, is_open=is_open):
                    raise _removal_pending(name)
                if not _claim(io, image_id, owner, self._locks.owner):
                    raise _removal_pending(name)
                crash_if_armed(CrashPoint.PURGE_CLAIMED)
                rbd.RBD().trash_remove(io, image_id)
        except rbd.ImageBusy:
            raise _removal_pending(name) from None
        except (rbd.ImageHasSnapshots, rbd.ImageNotFound):
            return None
        self._locks.forget(image_id)
        crash_if_armed(CrashPoint.PURGE_REMOVED)
        return None if parent is None else (parent[0], parent[2])

    def _is_free(self, image_id: str, owner: str, *, wait: bool, is_open: bool) -> bool:
        """Whether no other process removes it. Our own id is that of an interrupted call."""
        if owner in {"", self._locks.owner}:
            return True
        is_abandoned = self._locks.is_abandoned(image_id, owner) or not wait
        return is_abandoned and not is_open


def _is_unused(image: Any) -> bool:
    return metadata_of(image, _KEPT) is not None and not list(image.list_snaps())


def _removal_pending(name: str) -> CsiError:
    return CsiError(
        GrpcCode.ABORTED,
        f"its source image {name} is being removed by another call, or its removal was interrupted: retry",
    )


def _claim(io: Any, image_id: str, before: str, owner: str) -> bool:
    """False if another process was first, or the image does not exist."""
    import rados  # noqa: PLC0415 - a system package

    key = f"{_METADATA_PREFIX}{_REMOVER}"
    try:
        with rados.WriteOpCtx() as operation:
            operation.omap_cmp(key, before, rados.LIBRADOS_CMPXATTR_OP_EQ)
            io.set_omap(operation, (key,), (owner.encode(),))
            io.operate_write_op(operation, f"rbd_header.{image_id}")
    except rados.ObjectNotFound:
        return False
    except rados.OSError as error:
        if error.errno != errno.ECANCELED:
            raise
        return False
    return True
