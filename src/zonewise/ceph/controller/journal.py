"""Journal: names and ids of volumes and snapshots, in RADOS omap. One key per name, in one pool for all domains.

A key is a hash of the CSI name, and an id's token begins with it, so the same key is used for a name and for an id.
Every change is a compare-and-set on the OSD: it only succeeds if the value is still the one that was read. That alone
decides between controllers that race; there are no locks that a dead process could hold.

    (absent) --reserve--> reserved --record--> ready --mark--> deleting --forget--> (absent)

From `reserve` to `forget` any call with the name or id finds the location and can finish an interrupted operation.
An entry that can't be read, torn or of a newer release, stays as it is: calls for its name or id are refused, and lists
go on without it.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from zonewise import log
from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.decide import ids
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import ObjectType
from zonewise.ceph.decide.journal_entry import JournalEntry, key_of
from zonewise.objects import stored

_log = log.get_logger(__name__)

NAMESPACE: Final = "zonewise-csi"
SHARDS: Final = 16  # objects; a single omap with hundreds of thousands of keys is slow to recover
_MARKER: Final = "journal"
_BATCH: Final = 1000
_NON_ASCII: Final = re.compile(r"[^\x00-\x7f]")


class Journal:
    """The journal in one pool. `operations` counts requests to the OSDs, for benchmarks."""

    def __init__(self, cluster: CephCluster, pool: str) -> None:
        self.cluster = cluster
        self.pool = pool
        self.pool_id = cluster.require_pool(pool, "pool")
        self.operations = 0
        self.unreadable: dict[str, str] = {}
        """By key: why entries met so far can't be read."""
        self._raw: dict[str, tuple[JournalEntry, bytes]] = {}

    def reserve(self, entry: JournalEntry) -> JournalEntry | None:
        """None if the name is reserved now; otherwise the existing entry."""
        while True:
            if self._swap(entry.key, None, entry):
                return None
            existing = self.by_name(entry.object_type, entry.name)
            if existing is not None:
                return existing  # else it was removed between the two requests

    def by_name(self, object_type: ObjectType, name: str) -> JournalEntry | None:
        entry = self._get(key_of(object_type, ids.name_hash(name)))
        if entry is not None and entry.name != name:
            raise CsiError(
                GrpcCode.INTERNAL, f"journal in pool {self.pool}: the key of {name!r} belongs to {entry.name!r}"
            )
        return entry

    def by_id(self, volume_id: ids.VolumeId) -> JournalEntry | None:
        """None also if the name was reused: that is another volume."""
        entry = self._get(key_of(volume_id.object_type, volume_id.token[: ids.HASH_DIGITS]))
        return entry if entry is not None and entry.token == volume_id.token else None

    def replace(self, before: JournalEntry, after: JournalEntry) -> bool:
        """False if the entry was changed meanwhile."""
        return self._swap(before.key, before, after)

    def forget(self, entry: JournalEntry) -> bool:
        return self._swap(entry.key, entry, None)

    def id_of(self, entry: JournalEntry) -> str:
        return str(self.volume_id_of(entry))

    def volume_id_of(self, entry: JournalEntry) -> ids.VolumeId:
        fsid = ids.short_fsid(self.cluster.fsid)
        return ids.VolumeId(
            entry.kind, entry.object_type, self.cluster.name, self.pool_id, entry.pool_id, entry.token, fsid
        )

    def entries(self, object_type: ObjectType, start_after: str = "") -> Iterator[tuple[str, JournalEntry]]:
        """In the order of shards, each with the token to continue after it. What can't be read goes to `unreadable`."""
        shard, _, last = start_after.partition("-")
        first = int(shard, 16) if shard else 0
        for number in range(first, SHARDS):
            after = last if number == first else ""
            for key, entry in self._shard(number, object_type, after):
                yield f"{number:x}-{key}", entry

    def _shard(self, number: int, object_type: ObjectType, after: str) -> Iterator[tuple[str, JournalEntry]]:
        import rados  # noqa: PLC0415 - a system package

        while True:
            with self.cluster.doing(f"reading the journal in pool {self.pool}"):
                try:
                    with rados.ReadOpCtx() as operation:
                        values, _ = self._io.get_omap_vals(operation, after, key_of(object_type, ""), _BATCH)
                        self.operations += 1
                        self._io.operate_read_op(operation, _object(number))
                        batch = list(values)
                except rados.ObjectNotFound:
                    return
            for key, value in batch:
                try:
                    yield key, self._decode(key, value)
                except CsiError as error:
                    log.warn_once(_log, "journal entry left alone", pool=self.pool, key=key, problem=str(error))
            if len(batch) < _BATCH:
                return
            after = batch[-1][0]

    @property
    def _io(self) -> Any:
        return self.cluster.ioctx(self.pool, NAMESPACE)

    def _get(self, key: str) -> JournalEntry | None:
        import rados  # noqa: PLC0415

        with self.cluster.doing(f"reading the journal in pool {self.pool}"), rados.ReadOpCtx() as operation:
            values, _ = self._io.get_omap_vals_by_keys(operation, (key,))
            self.operations += 1
            try:
                self._io.operate_read_op(operation, _object_of(key))
            except rados.ObjectNotFound:
                return None
            raw = dict(values).get(key)
        if raw is None:
            return None
        entry = self._decode(key, raw)
        self._raw[key] = (entry, raw)
        return entry

    def _decode(self, key: str, value: bytes) -> JournalEntry:
        try:
            return stored.read(value, JournalEntry, f"journal key {key} in pool {self.pool}")
        except stored.StoredError as error:
            self.unreadable[key] = str(error)
            raise CsiError(GrpcCode.FAILED_PRECONDITION, str(error)) from error

    def _expected(self, key: str, before: JournalEntry | None) -> str:
        """The value to compare with: the bytes that were read, since another version may encode differently."""
        if before is None:
            return ""
        entry, raw = self._raw.get(key, (None, b""))
        return (raw if entry == before else _encode(before)).decode()

    def _swap(self, key: str, before: JournalEntry | None, after: JournalEntry | None) -> bool:
        """Compare-and-set in one operation; an absent key compares as empty."""
        import rados  # noqa: PLC0415

        expected = self._expected(key, before)
        with self.cluster.doing(f"writing the journal in pool {self.pool}"):
            for attempt in range(2):
                try:
                    with rados.WriteOpCtx() as operation:
                        operation.omap_cmp(key, expected, rados.LIBRADOS_CMPXATTR_OP_EQ)
                        if after is None:
                            self._io.remove_omap_keys(operation, (key,))
                        else:
                            self._io.set_omap(operation, (key,), (_encode(after),))
                        self.operations += 1
                        self._io.operate_write_op(operation, _object_of(key))
                except rados.ObjectNotFound:
                    if attempt or before is not None:
                        return False
                    self._create(_object_of(key))
                except rados.OSError as error:
                    if error.errno != errno.ECANCELED:
                        raise
                    return False
                else:
                    return True
        return False

    def _create(self, name: str) -> None:
        """The object of a shard; before it the marker of a pool with a journal."""
        import rados  # noqa: PLC0415

        for target in (_MARKER, name):
            with rados.WriteOpCtx() as operation:
                operation.new(rados.LIBRADOS_CREATE_IDEMPOTENT)
                self.operations += 1
                self._io.operate_write_op(operation, target)


def has_journal(cluster: CephCluster, pool: str) -> bool | None:
    """None if this user may not read the pool, or it was just removed or renamed."""
    import rados  # noqa: PLC0415

    with cluster.doing(f"looking for a journal in pool {pool}"):
        try:
            cluster.ioctx(pool, NAMESPACE).stat(_MARKER)
        except rados.ObjectNotFound:
            return False
        except (rados.PermissionDeniedError, rados.PermissionError):
            return None
        except CsiError as error:
            if error.code is not GrpcCode.NOT_FOUND:
                raise
            return None
    return True


def _object(number: int) -> str:
    return f"journal.{number:x}"


def _object_of(key: str) -> str:
    return _object(int(key[2:4], 16) % SHARDS)


def _encode(entry: JournalEntry) -> bytes:
    """ASCII only: the binding's comparison counts characters, Ceph counts bytes."""
    text = msgspec.json.encode(entry, order="deterministic").decode()
    return _NON_ASCII.sub(lambda match: json.dumps(match[0])[1:-1], text).encode()
