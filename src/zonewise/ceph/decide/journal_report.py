"""JSON output of `csi journal` and `csi doctor`. Pure. Fields may be added, never renamed: scripts read them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from zonewise.ceph.decide.ids import ObjectType, VolumeKind
from zonewise.ceph.decide.journal_entry import JournalEntry, JournalState


class OriginReport(msgspec.Struct, frozen=True, rename="camel"):
    """The source of a copy; `id` is the CSI id."""

    id: str
    pool: str
    image: str


class JournalEntryReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A volume or snapshot in the journal of pool `journal`; `id` is the CSI id, `image` the name in Ceph."""

    id: str
    journal: str
    image: str
    name: str
    token: str
    kind: VolumeKind
    thing: ObjectType
    state: JournalState
    pool: str
    pool_id: int
    size_bytes: int
    created_seconds: int
    domain: Mapping[str, str]
    reason: str
    data_pool: str
    filesystem: str
    group: str
    origin: OriginReport | None


class FsckFindingReport(msgspec.Struct, frozen=True, rename="camel"):
    """`what` is the image or subvolume, `done` the repair, `left` the reason why it was not repaired."""

    code: str
    what: str
    sentence: str
    done: str = ""
    left: str = ""


Journals = tuple[JournalEntryReport, ...]
Findings = tuple[FsckFindingReport, ...]


def entry_report(entry: JournalEntry, journal: str, volume_id: str) -> JournalEntryReport:
    origin = entry.origin
    return JournalEntryReport(
        id=volume_id,
        journal=journal,
        image=entry.location.image,
        name=entry.name,
        token=entry.token,
        kind=entry.kind,
        thing=entry.object_type,
        state=entry.state,
        pool=entry.pool,
        pool_id=entry.pool_id,
        size_bytes=entry.size_bytes,
        created_seconds=entry.created_seconds,
        domain=dict(entry.domain),
        reason=entry.reason,
        data_pool=entry.data_pool,
        filesystem=entry.filesystem,
        group=entry.group,
        origin=OriginReport(origin.id, origin.pool, origin.image) if origin is not None else None,
    )
