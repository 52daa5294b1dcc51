"""Ways to make a block device of an RBD image: what they have in common, and which of them this node has.

The kernel's own client is the natural one; rbd-nbd needs the kernel's nbd; where neither is there, a storage daemon in user
space shows the image as a file and the kernel's loop driver makes a device of it. What is chosen is said with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from zonewise.errors import UsageError, ZonewiseError

if TYPE_CHECKING:
    from zonewise.ceph.backend.cluster import CephCluster


class MapperError(ZonewiseError):
    pass


@dataclass(frozen=True, slots=True)
class MapperClient:
    """As whom the node speaks to a cluster. The key is never shown, nor given to a command line."""

    configuration: str
    """What a ceph.conf of this client says, without keys."""
    user: str
    key: str = field(repr=False)
    fsid: str = ""

    @classmethod
    def of(cls, cluster: CephCluster) -> MapperClient:
        return cls(cluster.configuration, cluster.user, cluster.key, cluster.fsid)


@dataclass(frozen=True, slots=True)
class MappedImage:
    pool: str
    name: str
    namespace: str = ""

    @property
    def specification(self) -> str:
        return "/".join(part for part in (self.pool, self.namespace, self.name) if part)


class Mapper(Protocol):
    """`directory` is the image's own on this node: private, and there as long as the image is mapped.

    Every method may be called again after a crash at any point of an earlier call.
    """

    @property
    def name(self) -> str: ...

    def missing(self) -> str:
        """What this node lacks for it; empty if nothing."""

    def map(self, client: MapperClient, image: MappedImage, directory: Path, *, read_only: bool) -> str:
        """The device of the image: the one it has already, or a new one."""

    def device(self, image: MappedImage, directory: Path) -> str | None: ...

    def holds(self, image: MappedImage, directory: Path) -> bool:
        """Whether this node has the image open, even if a crash came before its device."""

    def refresh(self, device: str, directory: Path) -> None:
        """Let the device have the image's size, which may have grown."""

    def unmap(self, image: MappedImage, directory: Path) -> None: ...

    def trouble(self, directory: Path) -> str:
        """What keeps a mapped image from working; empty if nothing."""


@dataclass(frozen=True, slots=True)
class MapperChoice:
    mapper: Mapper
    reason: str


def choose(mappers: Sequence[Mapper], wanted: str = "auto") -> MapperChoice:
    """The first that this node can do, or the one that was asked for by name."""
    if wanted not in {"auto", *(mapper.name for mapper in mappers)}:
        names = ", ".join(mapper.name for mapper in mappers)
        raise UsageError(f"there is no mapper {wanted!r}: choose auto or one of {names}")
    lacking: list[str] = []
    for mapper in mappers:
        if wanted not in {"auto", mapper.name}:
            continue
        missing = mapper.missing()
        if not missing:
            return MapperChoice(mapper, "; ".join([f"{mapper.name} works here", *lacking]))
        lacking.append(f"{mapper.name} does not: {missing}")
    raise MapperError(f"this node can't map RBD images: {'; '.join(lacking)}")
