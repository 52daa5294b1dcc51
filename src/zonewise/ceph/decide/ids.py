"""Volume and snapshot ids, which locate the volume and its journal. Pure.

    zw1.rbd.vol.<cluster>.<journal pool>.<pool>.<fsid>.<token>

Pools are Ceph's pool ids in hexadecimal, since pools can be renamed. The first 24 digits of the token are a hash of the
CSI name, so one journal key finds a volume by name and by id. The last 8 are random, so the id of a deleted volume
never refers to a later volume of the same name. The fsid is cut to 8 digits; it keeps an id from being used with
another Ceph cluster that was given the same name. An id without it is accepted as well. For CephFS the journal is in
the file system's metadata pool, and the pool is its data pool.
"""

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from zonewise.ceph.decide.errors import CsiError, GrpcCode

LONGEST: Final = 128  # bytes, of ids and names, by the CSI specification
HASH_DIGITS: Final = 24
_CLUSTER: Final = re.compile(r"[A-Za-z0-9_-]{1,36}")
_IMAGE: Final = re.compile(r"csi-(vol|snap)-([0-9a-f]{32})")
_ID: Final = re.compile(
    r"zw1\.(rbd|fs)\.(vol|snap)\.([A-Za-z0-9_-]{1,36})\.([0-9a-f]{1,8})\.([0-9a-f]{1,8})(?:\.([0-9a-f]{8}))?\.([0-9a-f]{32})"
)


class VolumeKind(StrEnum):
    RBD = "rbd"
    CEPHFS = "fs"


class ObjectType(StrEnum):
    VOLUME = "vol"
    SNAPSHOT = "snap"


@dataclass(frozen=True, slots=True)
class VolumeId:
    kind: VolumeKind
    object_type: ObjectType
    cluster: str
    journal_pool_id: int
    pool_id: int
    token: str
    fsid: str = ""  # from `short_fsid`

    def __str__(self) -> str:
        location = f"{self.cluster}.{self.journal_pool_id:x}.{self.pool_id:x}" + (f".{self.fsid}" if self.fsid else "")
        return f"zw1.{self.kind}.{self.object_type}.{location}.{self.token}"

    @property
    def image(self) -> str:
        """The name of the RBD image or CephFS subvolume."""
        return image_name(self.object_type, self.token)


def image_name(object_type: ObjectType, token: str) -> str:
    return f"csi-{object_type}-{token}"


def parse_image_name(image: str) -> tuple[ObjectType, str] | None:
    """Object type and token of an image or subvolume of this driver; None for others, also those with the same prefix."""
    match = _IMAGE.fullmatch(image)
    return (ObjectType(match[1]), match[2]) if match is not None else None


def parse_volume_id(text: str) -> VolumeId | None:
    """None if it is not an id of this driver: then no such volume exists."""
    match = _ID.fullmatch(text) if len(text) <= LONGEST else None
    if match is None:
        return None
    kind, object_type, cluster, journal, pool, fsid, token = match.groups()
    return VolumeId(
        VolumeKind(kind), ObjectType(object_type), cluster, int(journal, 16), int(pool, 16), token, fsid or ""
    )


def short_fsid(fsid: str) -> str:
    return fsid.replace("-", "")[:8].lower()


def token_of(name: str, randomness: bytes) -> str:
    """`randomness`: four bytes."""
    return name_hash(name) + randomness[:4].hex()


def name_hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:HASH_DIGITS]


def check_name(name: str, what: str) -> str:
    """Returns the CSI name or raises INVALID_ARGUMENT. The name is hashed, never used as a path."""
    if not name:
        raise CsiError(GrpcCode.INVALID_ARGUMENT, f"{what} has no name")
    size = len(name.encode(errors="replace"))
    if size > LONGEST:
        raise CsiError(GrpcCode.INVALID_ARGUMENT, f"the name of {what} has {size} bytes: the limit is {LONGEST}")
    if any(not character.isprintable() for character in name):
        raise CsiError(GrpcCode.INVALID_ARGUMENT, f"the name of {what} has unprintable characters: {name!r}")
    return name


def is_cluster_id(text: str) -> bool:
    return _CLUSTER.fullmatch(text) is not None
