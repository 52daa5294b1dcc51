"""How a volume is to be used: as file system or block device, by whom, writing or only reading. Pure.

Controller and node ask here, so that what one provisions the other can mount.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import VolumeKind

if TYPE_CHECKING:
    from zonewise.ceph.spec import csi_pb2 as csi

FILESYSTEMS = ("ext4", "xfs")
"""That we make on RBD images; the first is the default."""


class AccessMode(StrEnum):
    """The modes of CSI's VolumeCapability.AccessMode, in their order there."""

    UNKNOWN = "UNKNOWN"
    SINGLE_NODE_WRITER = "SINGLE_NODE_WRITER"
    SINGLE_NODE_READER_ONLY = "SINGLE_NODE_READER_ONLY"
    MULTI_NODE_READER_ONLY = "MULTI_NODE_READER_ONLY"
    MULTI_NODE_SINGLE_WRITER = "MULTI_NODE_SINGLE_WRITER"
    MULTI_NODE_MULTI_WRITER = "MULTI_NODE_MULTI_WRITER"
    SINGLE_NODE_SINGLE_WRITER = "SINGLE_NODE_SINGLE_WRITER"
    SINGLE_NODE_MULTI_WRITER = "SINGLE_NODE_MULTI_WRITER"


_READERS = frozenset({AccessMode.SINGLE_NODE_READER_ONLY, AccessMode.MULTI_NODE_READER_ONLY})
_WRITERS_ON_NODES = frozenset({AccessMode.MULTI_NODE_SINGLE_WRITER, AccessMode.MULTI_NODE_MULTI_WRITER})


class VolumeAccess(msgspec.Struct, frozen=True):
    mode: AccessMode
    is_block: bool = False
    filesystem: str = ""
    flags: tuple[str, ...] = ()

    @property
    def is_read_only(self) -> bool:
        return self.mode in _READERS

    @property
    def is_one_node(self) -> bool:
        """Nobody else may have it open for writing meanwhile. For readers on many nodes that holds, too."""
        return self.mode not in _WRITERS_ON_NODES

    @property
    def is_one_target(self) -> bool:
        return self.mode is AccessMode.SINGLE_NODE_SINGLE_WRITER


def read(capability: csi.VolumeCapability) -> VolumeAccess:
    """Of a request, or INVALID_ARGUMENT."""
    kind = capability.WhichOneof("access_type")
    if kind is None:
        raise CsiError(GrpcCode.INVALID_ARGUMENT, "the volume capability has no access type: it must be mount or block")
    modes = list(AccessMode)
    number = capability.access_mode.mode
    mode = modes[number] if 0 <= number < len(modes) else AccessMode.UNKNOWN
    if mode is AccessMode.UNKNOWN:
        raise CsiError(GrpcCode.INVALID_ARGUMENT, "the volume capability has no access mode that we know")
    if kind == "block":
        return VolumeAccess(mode, is_block=True)
    flags = tuple(capability.mount.mount_flags)
    if any("\0" in flag or "\n" in flag for flag in (capability.mount.fs_type, *flags)):
        raise CsiError(GrpcCode.INVALID_ARGUMENT, "a mount flag or file system has a character that is none of a word")
    return VolumeAccess(mode, is_block=False, filesystem=capability.mount.fs_type, flags=flags)


def refusal(kind: VolumeKind, access: VolumeAccess) -> str:
    """Why such a volume can't be used like that; empty if it can."""
    if kind is VolumeKind.CEPHFS:
        return "a CephFS volume is a directory and can't be a block device" if access.is_block else ""
    if access.is_block:
        return ""
    if access.mode in _WRITERS_ON_NODES:
        return (
            f"{access.mode} needs a file system that several nodes can mount at once: "
            f"use CephFS, or RBD as a block device"
        )
    if access.filesystem and access.filesystem not in FILESYSTEMS:
        return f"file system {access.filesystem!r} is none of {', '.join(FILESYSTEMS)}"
    return ""
