"""Volume access: CSI's VolumeCapability as a plain value, and which access a volume kind supports. Pure.

Controller and node share these checks, so a volume that is provisioned can also be staged.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import VolumeKind

if TYPE_CHECKING:
    from zonewise.ceph.spec import csi_pb2 as csi

FILESYSTEMS: Final = ("ext4", "xfs")
"""File systems for RBD images; the first is the default."""


class AccessMode(StrEnum):
    """CSI's VolumeCapability.AccessMode, in the order of its numbers."""

    UNKNOWN = "UNKNOWN"
    SINGLE_NODE_WRITER = "SINGLE_NODE_WRITER"
    SINGLE_NODE_READER_ONLY = "SINGLE_NODE_READER_ONLY"
    MULTI_NODE_READER_ONLY = "MULTI_NODE_READER_ONLY"
    MULTI_NODE_SINGLE_WRITER = "MULTI_NODE_SINGLE_WRITER"
    MULTI_NODE_MULTI_WRITER = "MULTI_NODE_MULTI_WRITER"
    SINGLE_NODE_SINGLE_WRITER = "SINGLE_NODE_SINGLE_WRITER"
    SINGLE_NODE_MULTI_WRITER = "SINGLE_NODE_MULTI_WRITER"


_READERS: Final = frozenset({AccessMode.SINGLE_NODE_READER_ONLY, AccessMode.MULTI_NODE_READER_ONLY})
_MULTI_NODE_WRITERS: Final = frozenset({AccessMode.MULTI_NODE_SINGLE_WRITER, AccessMode.MULTI_NODE_MULTI_WRITER})


class VolumeAccess(msgspec.Struct, frozen=True):
    mode: AccessMode
    is_block: bool = False
    filesystem: str = ""
    flags: tuple[str, ...] = ()

    @property
    def is_read_only(self) -> bool:
        return self.mode in _READERS

    @property
    def is_single_node(self) -> bool:
        """No other node may have it open for writing. This includes readers on many nodes."""
        return self.mode not in _MULTI_NODE_WRITERS

    @property
    def is_single_target(self) -> bool:
        return self.mode is AccessMode.SINGLE_NODE_SINGLE_WRITER


def parse_capability(capability: csi.VolumeCapability) -> VolumeAccess:
    """Raises INVALID_ARGUMENT for an incomplete capability."""
    kind = capability.WhichOneof("access_type")
    if kind is None:
        raise CsiError(GrpcCode.INVALID_ARGUMENT, "the volume capability has no access type: set mount or block")
    modes = list(AccessMode)
    number = capability.access_mode.mode
    mode = modes[number] if 0 <= number < len(modes) else AccessMode.UNKNOWN
    if mode is AccessMode.UNKNOWN:
        raise CsiError(GrpcCode.INVALID_ARGUMENT, "the volume capability has no supported access mode")
    if kind == "block":
        return VolumeAccess(mode, is_block=True)
    flags = tuple(capability.mount.mount_flags)
    if any("\0" in flag or "\n" in flag for flag in (capability.mount.fs_type, *flags)):
        raise CsiError(GrpcCode.INVALID_ARGUMENT, "a mount flag or fs_type contains a NUL or a line break")
    return VolumeAccess(mode, is_block=False, filesystem=capability.mount.fs_type, flags=flags)


def refusal(kind: VolumeKind, access: VolumeAccess) -> str:
    """Why this kind of volume does not support the access; empty if it does."""
    if kind is VolumeKind.CEPHFS:
        return "a CephFS volume is a directory and can't be a block device: use RBD" if access.is_block else ""
    if access.is_block:
        return ""
    if access.mode in _MULTI_NODE_WRITERS:
        return (
            f"{access.mode} needs a file system that several nodes can mount at once: "
            f"use CephFS, or RBD as a block device"
        )
    if access.filesystem and access.filesystem not in FILESYSTEMS:
        return f"file system {access.filesystem!r} is not supported: use {' or '.join(FILESYSTEMS)}"
    return ""
