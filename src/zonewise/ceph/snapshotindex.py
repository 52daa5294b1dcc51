"""Which subvolume a CephFS snapshot is of: one omap in the file system's metadata pool, beside the journal.

CephFS knows a snapshot only by the subvolume it lies in, and CSI asks for it by its own id. An entry is written before its snapshot is
made and removed after it is gone, so that no snapshot is ever without one.
"""

from __future__ import annotations

from collections.abc import Iterator

from zonewise.ceph.cluster import Cluster
from zonewise.ceph.journal import NAMESPACE

_OBJECT = "cephfs-snapshots"
_PAGE = 1000


class SnapshotIndex:
    def __init__(self, cluster: Cluster, metadata_pool: str) -> None:
        self._cluster = cluster
        self._io = cluster.ioctx(metadata_pool, NAMESPACE)

    def source(self, snapshot: str) -> str | None:
        import rados  # noqa: PLC0415 - a binding of the system's

        with self._cluster.doing(f"looking up snapshot {snapshot}"), rados.ReadOpCtx() as operation:
            try:
                values, _ = self._io.get_omap_vals_by_keys(operation, (snapshot,))
                self._io.operate_read_op(operation, _OBJECT)
                found = dict(values)
            except rados.ObjectNotFound:
                return None
        return found[snapshot].decode() if snapshot in found else None

    def put(self, snapshot: str, source: str) -> None:
        import rados  # noqa: PLC0415

        with self._cluster.doing(f"noting snapshot {snapshot}"), rados.WriteOpCtx() as operation:
            self._io.set_omap(operation, (snapshot,), (source.encode(),))
            self._io.operate_write_op(operation, _OBJECT)

    def drop(self, snapshot: str) -> None:
        import rados  # noqa: PLC0415

        with self._cluster.doing(f"forgetting snapshot {snapshot}"), rados.WriteOpCtx() as operation:
            self._io.remove_omap_keys(operation, (snapshot,))
            self._io.operate_write_op(operation, _OBJECT)

    def all(self) -> Iterator[tuple[str, str]]:
        import rados  # noqa: PLC0415

        after = ""
        while True:
            with self._cluster.doing("listing snapshots"), rados.ReadOpCtx() as operation:
                try:
                    values, _ = self._io.get_omap_vals(operation, after, "", _PAGE)
                    self._io.operate_read_op(operation, _OBJECT)
                    page = [(key, value.decode()) for key, value in values]
                except rados.ObjectNotFound:
                    return
            yield from page
            if len(page) < _PAGE:
                return
            after = page[-1][0]
