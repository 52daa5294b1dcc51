"""A request to create a volume or snapshot: its size, and whether an existing entry of the same name satisfies it."""

from __future__ import annotations

from dataclasses import dataclass, field

from zonewise.ceph.decide import pool_choice
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import ObjectType, VolumeId
from zonewise.ceph.decide.journal_entry import JournalEntry
from zonewise.ceph.decide.model import TopologyRequirement, VolumeBackend
from zonewise.ceph.decide.parameters import StorageClassParameters


@dataclass(frozen=True, slots=True)
class VolumeRequest:
    """`source` is the volume or snapshot to copy, or for a snapshot its volume."""

    name: str
    object_type: ObjectType
    storage_class: StorageClassParameters
    required_bytes: int
    limit_bytes: int = 0
    requirement: TopologyRequirement = field(default_factory=TopologyRequirement)
    source: VolumeId | None = None


def size_of(request: VolumeRequest, source: JournalEntry | None, backend: VolumeBackend) -> int:
    """Raises OUT_OF_RANGE if the source is larger than the request, or the limit smaller than what is needed."""
    source_bytes = source.size_bytes if source is not None else 0
    size_bytes = (
        backend.round_size(max(request.required_bytes, source_bytes))
        if request.object_type is ObjectType.VOLUME
        else source_bytes
    )
    if request.required_bytes and request.required_bytes < source_bytes and request.object_type is ObjectType.VOLUME:
        raise CsiError(
            GrpcCode.OUT_OF_RANGE,
            f"{request.required_bytes} bytes are requested, but the source has {source_bytes}: request at least that",
        )
    if request.limit_bytes and size_bytes > request.limit_bytes:
        raise CsiError(
            GrpcCode.OUT_OF_RANGE, f"{size_bytes} bytes are needed, more than the limit of {request.limit_bytes}"
        )
    return size_bytes


def check_compatible(existing: JournalEntry, request: VolumeRequest, backend: VolumeBackend) -> None:
    """Raises ALREADY_EXISTS if the entry of that name does not satisfy the request."""
    if problem := difference(existing, request, backend):
        raise CsiError(
            GrpcCode.ALREADY_EXISTS, f"{request.name!r} exists and {problem}: delete it, or use another name"
        )


def difference(existing: JournalEntry, request: VolumeRequest, backend: VolumeBackend) -> str:
    """How an existing entry differs from the request; empty if it satisfies it."""
    if existing.kind is not backend.kind:
        return f"is of another kind: {existing.kind}"
    actual_source = existing.origin.id if existing.origin is not None else ""
    requested_source = str(request.source) if request.source is not None else ""
    if actual_source != requested_source:
        return f"comes from {actual_source or 'nothing'}, not from {requested_source or 'nothing'}"
    if request.object_type is ObjectType.SNAPSHOT:
        return ""
    if existing.size_bytes < request.required_bytes:
        return f"has {existing.size_bytes} bytes, fewer than the {request.required_bytes} required"
    if request.limit_bytes and existing.size_bytes > request.limit_bytes:
        return f"has {existing.size_bytes} bytes, more than the limit of {request.limit_bytes}"
    if not pool_choice.satisfies(existing.domain, request.requirement):
        return "is not in the required domains"
    return ""
