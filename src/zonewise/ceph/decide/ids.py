"""Names and ids: a volume's id says by itself where the volume and its journal are. Pure.

    zw1.rbd.vol.<cluster>.<journal pool>.<pool>.<fsid>.<token>

Pools stand as Ceph's numbers in hexadecimal, since pools can be renamed. The token's first 24 digits are a hash of the name that
the orchestrator gave, so that one journal key serves for finding a volume by name and by id; its last 8 are random, so that the id
of a deleted volume never means its successor of the same name. Of Ceph's fsid there are the first 8 digits, so that an id means nothing in
another Ceph that was given the same name; an id without them is read, too. For CephFS the journal is in the pool of the file system's
metadata, and the pool is that of the files' data.
"""

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum

from zonewise.ceph.decide.errors import CsiError, GrpcCode

LONGEST = 128  # bytes, of ids and names, by the CSI specification
HASH_DIGITS = 24
_CLUSTER = re.compile(r"[A-Za-z0-9_-]{1,36}")
_IMAGE = re.compile(r"csi-(vol|snap)-([0-9a-f]{32})")
_ID = re.compile(
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
    thing: ObjectType
    cluster: str
    journal_pool_id: int
    pool_id: int
    token: str
    fsid: str = ""  # its first digits, as `short_fsid` gives them

    def __str__(self) -> str:
        where = f"{self.cluster}.{self.journal_pool_id:x}.{self.pool_id:x}" + (f".{self.fsid}" if self.fsid else "")
        return f"zw1.{self.kind}.{self.thing}.{where}.{self.token}"

    @property
    def image(self) -> str:
        """The name of the RBD image or CephFS subvolume."""
        return image_name(self.thing, self.token)


def image_name(thing: ObjectType, token: str) -> str:
    return f"csi-{thing}-{token}"


def named(image: str) -> tuple[ObjectType, str] | None:
    """What an image or subvolume of ours is, and its token; None for another driver's, whose names begin like ours."""
    found = _IMAGE.fullmatch(image)
    return (ObjectType(found[1]), found[2]) if found is not None else None


def parse(text: str) -> VolumeId | None:
    """None for what is no id of ours: nothing by that id can exist."""
    found = _ID.fullmatch(text) if len(text) <= LONGEST else None
    if found is None:
        return None
    kind, thing, cluster, journal, pool, fsid, token = found.groups()
    return VolumeId(VolumeKind(kind), ObjectType(thing), cluster, int(journal, 16), int(pool, 16), token, fsid or "")


def short_fsid(fsid: str) -> str:
    return fsid.replace("-", "")[:8].lower()


def token_of(name: str, randomness: bytes) -> str:
    """`randomness`: four bytes."""
    return name_hash(name) + randomness[:4].hex()


def name_hash(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:HASH_DIGITS]


def check_name(name: str, what: str) -> str:
    """A name of the orchestrator's, or INVALID_ARGUMENT. It only ever becomes part of a hash and of text in the journal."""
    if not name:
        raise CsiError(GrpcCode.INVALID_ARGUMENT, f"{what} has no name")
    size = len(name.encode(errors="replace"))
    if size > LONGEST:
        raise CsiError(GrpcCode.INVALID_ARGUMENT, f"{what}'s name has {size} bytes, and {LONGEST} are allowed")
    if any(not character.isprintable() for character in name):
        raise CsiError(GrpcCode.INVALID_ARGUMENT, f"{what}'s name has characters that can't be printed: {name!r}")
    return name


def is_cluster(text: str) -> bool:
    return _CLUSTER.fullmatch(text) is not None
