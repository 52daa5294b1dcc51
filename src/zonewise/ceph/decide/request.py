"""What a call asks for: how large that is, and whether what has the name already is that."""

from __future__ import annotations

from dataclasses import dataclass, field

from zonewise.ceph.controller.journal import JournalEntry
from zonewise.ceph.decide import pool_choice
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import ObjectType, VolumeId
from zonewise.ceph.decide.model import TopologyRequirement, VolumeBackend
from zonewise.ceph.decide.parameters import StorageClassParameters


@dataclass(frozen=True, slots=True)
class VolumeRequest:
    """What a call asks for. `source` is what the content comes from, or for a snapshot the volume that it is of."""

    name: str
    thing: ObjectType
    storage_class: StorageClassParameters
    required_bytes: int
    limit_bytes: int = 0
    requirement: TopologyRequirement = field(default_factory=TopologyRequirement)
    source: VolumeId | None = None


def size_of(order: VolumeRequest, source: JournalEntry | None, backend: VolumeBackend) -> int:
    """OUT_OF_RANGE where the source is larger than what is asked for, or the limit is smaller."""
    least = source.size_bytes if source is not None else 0
    wanted = backend.rounded(max(order.required_bytes, least)) if order.thing is ObjectType.VOLUME else least
    if order.required_bytes and order.required_bytes < least and order.thing is ObjectType.VOLUME:
        raise CsiError(GrpcCode.OUT_OF_RANGE, f"{order.required_bytes} bytes are asked for, and the source has {least}")
    if order.limit_bytes and wanted > order.limit_bytes:
        raise CsiError(GrpcCode.OUT_OF_RANGE, f"{wanted} bytes are needed, and {order.limit_bytes} the limit")
    return wanted


def check_same(there: JournalEntry, order: VolumeRequest, backend: VolumeBackend) -> None:
    """ALREADY_EXISTS where what has the name is not what is asked for."""
    if found := difference(there, order, backend):
        raise CsiError(GrpcCode.ALREADY_EXISTS, f"{order.name!r} exists, and {found}")


def difference(there: JournalEntry, order: VolumeRequest, backend: VolumeBackend) -> str:
    """In what an existing entry is not what is asked for; empty when it is."""
    if there.kind is not backend.kind:
        return f"is of another kind, {there.kind}"
    source = there.origin.id if there.origin is not None else ""
    asked = str(order.source) if order.source is not None else ""
    if source != asked:
        return f"comes from {source or 'nothing'}, not from {asked or 'nothing'}"
    if order.thing is ObjectType.SNAPSHOT:
        return ""
    if there.size_bytes < order.required_bytes:
        return f"has {there.size_bytes} bytes, fewer than the {order.required_bytes} required"
    if order.limit_bytes and there.size_bytes > order.limit_bytes:
        return f"has {there.size_bytes} bytes, more than the limit of {order.limit_bytes}"
    if not pool_choice.reachable(there.domain, order.requirement):
        return "is not in the domains that are required"
    return ""
