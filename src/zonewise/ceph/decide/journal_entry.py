"""Journal entry of a volume or snapshot: what the journal stores under one name. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from zonewise.ceph.decide import ids
from zonewise.ceph.decide.domains import Segments
from zonewise.ceph.decide.ids import ObjectType, VolumeKind
from zonewise.ceph.decide.model import VolumeLocation
from zonewise.objects import stored

_LETTER: Final = {ObjectType.VOLUME: "v", ObjectType.SNAPSHOT: "s"}


class JournalState(StrEnum):
    RESERVED = "reserved"
    READY = "ready"
    DELETING = "deleting"


class VolumeOrigin(msgspec.Struct, frozen=True, omit_defaults=True):
    """The source of a copy: its CSI id and its location."""

    id: str
    pool: str
    image: str
    detached: bool = False
    pool_id: int = 0  # 0 in entries of older versions


class JournalEntry(stored.Stored, frozen=True, omit_defaults=True):
    """The journal entry of one name, stored as readable JSON."""

    name: str
    token: str
    kind: VolumeKind
    object_type: ObjectType = msgspec.field(name="thing")
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
    owner: str = ""  # while it is being deleted: the id of the process that deletes it
    marked_seconds: int = 0  # and when that began

    @property
    def location(self) -> VolumeLocation:
        image = ids.image_name(self.object_type, self.token)
        parent = self.origin.image if self.object_type is ObjectType.SNAPSHOT and self.origin is not None else ""
        return VolumeLocation(self.pool, self.pool_id, image, self.filesystem, self.group, self.data_pool, parent)

    @property
    def origin_location(self) -> VolumeLocation | None:
        if self.origin is None:
            return None
        return VolumeLocation(self.origin.pool, self.origin.pool_id, self.origin.image, self.filesystem, self.group)

    @property
    def key(self) -> str:
        return key_of(self.object_type, self.token[: ids.HASH_DIGITS])


def key_of(object_type: ObjectType, name_hash: str) -> str:
    return f"{_LETTER[object_type]}.{name_hash}"
