"""RBD mappers: ways to make a block device of an RBD image, and which of them this node supports.

krbd is the first choice; rbd-nbd needs the kernel's nbd. Without either, a storage daemon in user space exports the
image as a file, and the kernel's loop driver makes a device of it.
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
    """Ceph credentials of the node. The key is never logged, nor passed on a command line."""

    configuration: str
    """Content of a ceph.conf for this client, without keys."""
    user: str
    key: str = field(repr=False)
    fsid: str = ""

    @classmethod
    def of(cls, cluster: CephCluster) -> MapperClient:
        return cls(cluster.configuration, cluster.user, cluster.key, cluster.fsid)


@dataclass(frozen=True, slots=True)
class MappedImage:
    """An empty pool stands for any: the name of an image of ours is its own in all pools."""

    pool: str
    name: str
    namespace: str = ""

    @property
    def specification(self) -> str:
        return "/".join(part for part in (self.pool, self.namespace, self.name) if part)


class Mapper(Protocol):
    """`directory` belongs to the image on this node; it is private and exists as long as the image is mapped.

    Every method can be repeated after a crash at any point of an earlier call.
    """

    @property
    def name(self) -> str: ...

    def missing(self) -> str:
        """What this node lacks for this mapper; empty if nothing."""

    def map(self, client: MapperClient, image: MappedImage, directory: Path, *, read_only: bool) -> str:
        """The device of the image: its existing one, or a new one."""

    def device(self, image: MappedImage, directory: Path) -> str | None: ...

    def is_open(self, image: MappedImage, directory: Path) -> bool:
        """Whether this node has the image open, also without a device after a crash."""

    def refresh(self, device: str, directory: Path) -> None:
        """Adapt the device to the image's size, which may have grown."""

    def unmap(self, image: MappedImage, directory: Path) -> None: ...

    def problem(self, directory: Path) -> str:
        """Why a mapped image does not work; empty if it does."""


@dataclass(frozen=True, slots=True)
class MapperChoice:
    mapper: Mapper
    reason: str


def choose_mapper(mappers: Sequence[Mapper], name: str = "auto") -> MapperChoice:
    """The first mapper that this node supports, or the one of this name."""
    if name not in {"auto", *(mapper.name for mapper in mappers)}:
        names = ", ".join(mapper.name for mapper in mappers)
        raise UsageError(f"unknown mapper {name!r}: use auto or one of {names}")
    unavailable: list[str] = []
    for mapper in mappers:
        if name not in {"auto", mapper.name}:
            continue
        missing = mapper.missing()
        if not missing:
            return MapperChoice(mapper, "; ".join([f"{mapper.name} is available", *unavailable]))
        unavailable.append(f"{mapper.name} is not: {missing}")
    raise MapperError(f"this node can't map RBD images: {'; '.join(unavailable)}")
