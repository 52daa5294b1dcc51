"""Images that were deleted while copies depended on them: in RBD's trash they have no name any more, and go with the last of the copies.

Two processes that remove one image at the same time can hang in librbd 16, as `exclusion` tells. The deletions of two copies have entries of
their own in the journal, so who removes what both came from says so in that image itself: by a compare and set in its header, which
goes with it.
"""

from __future__ import annotations

import errno
from typing import Any

from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.backend.librbd import library, metadata_of, parent_of
from zonewise.ceph.controller.locks import OperationPending, VolumeLocks
from zonewise.ceph.crash_points import CrashPoint, reach
from zonewise.ceph.decide import ids
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import ObjectType

_KEPT = "zonewise.kept"  # metadata of an image that we put into the trash: what a person put there is that person's
_REMOVER = "zonewise.remover"  # metadata of one that is being removed from there: the mark of the process that does it
_IN_HEADER = "metadata_"  # how RBD's class names metadata in the omap of a header


class RbdTrash:
    def __init__(self, patience_seconds: float) -> None:
        """`patience_seconds`: for how long a removal that another process has begun is left to it."""
        self._claims = VolumeLocks(patience_seconds)
        self._busy = OperationPending()

    def keep(self, io: Any, name: str) -> None:
        """Fine where it is gone meanwhile."""
        rbd = library()
        try:
            with rbd.Image(io, name) as image:
                image.metadata_set(_KEPT, "for copies")
            rbd.RBD().trash_move(io, name, 0)
        except rbd.ImageNotFound:
            pass

    def purge(self, cluster: CephCluster, pool: str | int, name: str, *, patiently: bool = True) -> None:
        """Remove an image if it was kept for copies and there are none left; then what it was a copy of.

        ABORTED while another is at it; who does not wait `patiently` only asks whether anybody has the image open.
        """
        origin: tuple[str | int, str] | None = (pool, name)
        while origin is not None:
            origin = self._purged(cluster, *origin, patiently=patiently)

    def unneeded(self, io: Any) -> list[str]:
        """Names of images of ours that no copy needs any more."""
        rbd = library()
        found = []
        for each in rbd.RBD().trash_list(io):
            if ids.named(each["name"]) is None:
                continue
            try:
                with rbd.Image(io, image_id=each["id"], read_only=True) as image:
                    if _is_unneeded(image):
                        found.append(each["name"])
            except rbd.ImageNotFound:
                continue
        return found

    def _purged(
        self, cluster: CephCluster, pool: str | int, name: str, *, patiently: bool
    ) -> tuple[str | int, str] | None:
        """What it was a copy of; None where there is no more to do."""
        rbd = library()
        io = cluster.ioctx(pool)
        number = next((each["id"] for each in rbd.RBD().trash_list(io) if each["name"] == name), None)
        if number is None:
            return None
        try:
            with rbd.Image(io, image_id=number, read_only=True) as image:
                if not _is_unneeded(image):
                    return None
                parent, mark = parent_of(image), metadata_of(image, _REMOVER) or ""
                is_open = bool(list(image.watchers_list()))
            with self._busy.alone(cluster.name, ObjectType.VOLUME, number):
                if not self._is_free(number, mark, patiently=patiently, is_open=is_open):
                    raise _being_removed(name)
                if not _claim(io, number, mark, self._claims.mark):
                    raise _being_removed(name)
                reach(CrashPoint.PURGE_CLAIMED)
                rbd.RBD().trash_remove(io, number)
        except rbd.ImageBusy:
            raise _being_removed(name) from None
        except (rbd.ImageHasSnapshots, rbd.ImageNotFound):
            return None
        self._claims.settled(number)
        reach(CrashPoint.PURGE_REMOVED)
        return None if parent is None else (parent[0], parent[2])

    def _is_free(self, number: str, mark: str, *, patiently: bool, is_open: bool) -> bool:
        """Whether nobody else is at it: a mark of our own is of a call that did not come to the end."""
        if mark in {"", self._claims.mark}:
            return True
        is_left = self._claims.is_abandoned(number, mark) or not patiently
        return is_left and not is_open


def _is_unneeded(image: Any) -> bool:
    return metadata_of(image, _KEPT) is not None and not list(image.list_snaps())


def _being_removed(name: str) -> CsiError:
    return CsiError(
        GrpcCode.ABORTED, f"{name}, of which this was a copy, is being removed by another call, or one died at it"
    )


def _claim(io: Any, number: str, before: str, mark: str) -> bool:
    """False where somebody else was quicker, or the image is gone."""
    import rados  # noqa: PLC0415 - a binding of the system's

    key = f"{_IN_HEADER}{_REMOVER}"
    try:
        with rados.WriteOpCtx() as operation:
            operation.omap_cmp(key, before, rados.LIBRADOS_CMPXATTR_OP_EQ)
            io.set_omap(operation, (key,), (mark.encode(),))
            io.operate_write_op(operation, f"rbd_header.{number}")
    except rados.ObjectNotFound:
        return False
    except rados.OSError as error:
        if error.errno != errno.ECANCELED:
            raise
        return False
    return True
