"""What `csi journal -o json` and `csi doctor -o json` print: their fields, which scripts read. Pure.

One is never renamed, only added.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from zonewise.ceph.controller.journal import JournalEntry, JournalState
from zonewise.ceph.decide.ids import ObjectType, VolumeKind


class OriginReport(msgspec.Struct, frozen=True, rename="camel"):
    """What it was copied from; `id` as CSI says it."""

    id: str
    pool: str
    image: str


class JournalEntryReport(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A volume or snapshot, as the journal in pool `journal` has it; `id` as CSI says it, `image` as Ceph does."""

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
    """`what` is the image or subvolume, `done` what was repaired, empty where nothing was; `left` why it was then left alone."""

    code: str
    what: str
    sentence: str
    done: str = ""
    left: str = ""


Journals = tuple[JournalEntryReport, ...]
Findings = tuple[FsckFindingReport, ...]


def of_entry(entry: JournalEntry, journal: str, identity: str) -> JournalEntryReport:
    origin = entry.origin
    return JournalEntryReport(
        id=identity,
        journal=journal,
        image=entry.place.image,
        name=entry.name,
        token=entry.token,
        kind=entry.kind,
        thing=entry.thing,
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
