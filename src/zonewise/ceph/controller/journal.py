"""The journal: which names were given to which volumes and snapshots. One omap key per name, in one pool for all domains.

A key is a hash of the name, and a volume's id begins with it, so that the same key answers for a name and for an id. Every change is a compare
and set on the OSD: it only happens if the value is still the one that was read. That alone decides between controllers that race;
there are no locks that a dead process could hold.

    (absent) --reserve--> reserved --record--> ready --mark--> deleting --forget--> (absent)

What is there before `reserve` is nobody's; from `reserve` to `forget` whoever comes by name or id finds where the rest is and can finish
what another began.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import msgspec

from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.decide import ids
from zonewise.ceph.decide.domains import Segments
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import ObjectType, VolumeKind
from zonewise.ceph.decide.model import VolumeLocation

NAMESPACE = "zonewise-csi"
SHARDS = 16  # objects; one omap of hundreds of thousands of keys would be slow to recover
_MARKER = "journal"
_PAGE = 1000
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
_LETTER = {ObjectType.VOLUME: "v", ObjectType.SNAPSHOT: "s"}


class JournalState(StrEnum):
    RESERVED = "reserved"
    READY = "ready"
    DELETING = "deleting"


class VolumeOrigin(msgspec.Struct, frozen=True, omit_defaults=True):
    """What something was copied from: its id as CSI says it, and where that was."""

    id: str
    pool: str
    image: str
    detached: bool = False
    pool_id: int = 0  # 0 in entries that were written without it


class JournalEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the journal knows about one name; people read it, so it is JSON with plain words."""

    name: str
    token: str
    kind: VolumeKind
    thing: ObjectType
    state: JournalState
    pool: str
    pool_id: int
    size_bytes: int
    created_seconds: int
    domain: Segments = ()
    reason: str = ""
    data_pool: str = ""
    filesystem: str = ""
    group: str = ""
    origin: VolumeOrigin | None = None
    owner: str = ""  # while it is deleted: the mark of the process that does it
    marked_seconds: int = 0  # and when it began to

    @property
    def place(self) -> VolumeLocation:
        image = ids.image_name(self.thing, self.token)
        parent = self.origin.image if self.thing is ObjectType.SNAPSHOT and self.origin is not None else ""
        return VolumeLocation(self.pool, self.pool_id, image, self.filesystem, self.group, self.data_pool, parent)

    @property
    def origin_place(self) -> VolumeLocation | None:
        if self.origin is None:
            return None
        return VolumeLocation(self.origin.pool, self.origin.pool_id, self.origin.image, self.filesystem, self.group)

    @property
    def key(self) -> str:
        return key_of(self.thing, self.token[: ids.HASH_DIGITS])


def key_of(thing: ObjectType, name_hash: str) -> str:
    return f"{_LETTER[thing]}.{name_hash}"


class Journal:
    """In one pool of one cluster. `operations` counts what was sent to the OSDs, for the comparison that counts."""

    def __init__(self, cluster: CephCluster, pool: str) -> None:
        self.cluster = cluster
        self.pool = pool
        self.pool_id = cluster.require_pool(pool, "pool")
        self.operations = 0
        self._read: dict[str, tuple[JournalEntry, bytes]] = {}

    def reserve(self, entry: JournalEntry) -> JournalEntry | None:
        """None when the name is now ours; otherwise the entry that was there first."""
        while True:
            if self._swap(entry.key, None, entry):
                return None
            there = self.by_name(entry.thing, entry.name)
            if there is not None:
                return there  # else it was forgotten between the two

    def by_name(self, thing: ObjectType, name: str) -> JournalEntry | None:
        found = self._get(key_of(thing, ids.name_hash(name)))
        if found is not None and found.name != name:
            raise CsiError(GrpcCode.INTERNAL, f"the journal has {found.name!r} where {name!r} belongs")
        return found

    def by_id(self, which: ids.VolumeId) -> JournalEntry | None:
        """None also where the name was given again since: that is another volume."""
        found = self._get(key_of(which.thing, which.token[: ids.HASH_DIGITS]))
        return found if found is not None and found.token == which.token else None

    def replace(self, before: JournalEntry, after: JournalEntry) -> bool:
        """False when somebody else changed it meanwhile."""
        return self._swap(before.key, before, after)

    def forget(self, entry: JournalEntry) -> bool:
        return self._swap(entry.key, entry, None)

    def id_of(self, entry: JournalEntry) -> str:
        return str(self.identity_of(entry))

    def identity_of(self, entry: JournalEntry) -> ids.VolumeId:
        fsid = ids.short_fsid(self.cluster.fsid)
        return ids.VolumeId(entry.kind, entry.thing, self.cluster.name, self.pool_id, entry.pool_id, entry.token, fsid)

    def entries(self, thing: ObjectType, start_after: str = "") -> Iterator[tuple[str, JournalEntry]]:
        """In the order of the keys' shards, each with the token to go on after it."""
        shard, _, last = start_after.partition("-")
        first = int(shard, 16) if shard else 0
        for number in range(first, SHARDS):
            after = last if number == first else ""
            for key, entry in self._shard(number, thing, after):
                yield f"{number:x}-{key}", entry

    def _shard(self, number: int, thing: ObjectType, after: str) -> Iterator[tuple[str, JournalEntry]]:
        import rados  # noqa: PLC0415 - a binding of the system's

        while True:
            with self.cluster.doing(f"reading the journal in pool {self.pool}"):
                try:
                    with rados.ReadOpCtx() as operation:
                        values, _ = self._io.get_omap_vals(operation, after, f"{_LETTER[thing]}.", _PAGE)
                        self.operations += 1
                        self._io.operate_read_op(operation, _object(number))
                        page = list(values)
                except rados.ObjectNotFound:
                    return
            for key, value in page:
                yield key, _decode(key, value)
            if len(page) < _PAGE:
                return
            after = page[-1][0]

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
            found = dict(values).get(key)
        if found is None:
            return None
        entry = _decode(key, found)
        self._read[key] = (entry, found)
        return entry

    def _expected(self, key: str, before: JournalEntry | None) -> str:
        """What must stand there: the very bytes that were read, since another version may write the same entry in another way."""
        if before is None:
            return ""
        entry, raw = self._read.get(key, (None, b""))
        return (raw if entry == before else _encode(before)).decode()

    def _swap(self, key: str, before: JournalEntry | None, after: JournalEntry | None) -> bool:
        """Compare and set in one operation; absent compares as empty."""
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
        """The object of a shard; before it the one that says that this pool has a journal."""
        import rados  # noqa: PLC0415

        for each in (_MARKER, name):
            with rados.WriteOpCtx() as operation:
                operation.new(rados.LIBRADOS_CREATE_IDEMPOTENT)
                self.operations += 1
                self._io.operate_write_op(operation, each)


def exists(cluster: CephCluster, pool: str) -> bool:
    """Whether a pool has a journal that this user may look at."""
    return bool(seen(cluster, pool))


def seen(cluster: CephCluster, pool: str) -> bool | None:
    """Whether a pool has a journal; None where this user may not look, or the pool was removed or renamed at this moment."""
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
    """In ASCII, other letters escaped: the binding's comparison counts letters where Ceph counts bytes."""
    text = msgspec.json.encode(entry, order="deterministic").decode()
    return _BEYOND_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text).encode()


def _decode(key: str, value: bytes) -> JournalEntry:
    try:
        return msgspec.json.decode(value, type=JournalEntry)
    except msgspec.DecodeError as error:
        raise CsiError(GrpcCode.INTERNAL, f"the journal's key {key} can't be read: {error}") from error
