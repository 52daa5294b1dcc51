"""Consistency check: the journals of a cluster against its images and subvolumes (`zonewise csi doctor`).

A killed call leaves its journal entry, and a retry finishes it, so an unfinished entry is only reported after a while.
Images are read before journals: what is created meanwhile is in a journal first, and what is deleted meanwhile is
checked again before it is reported.

A pool that is unavailable hides its images and its journal. The other pools are checked, and nothing is removed that an
unreadable journal may list. So is the image of an entry that can't be read: it is in the journal, whatever its entry says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum

from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.controller.journal import Journal
from zonewise.ceph.controller.journal_pools import APPLICATIONS
from zonewise.ceph.controller.provisioner import Provisioner
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import HASH_DIGITS, ObjectType, VolumeId, VolumeKind
from zonewise.ceph.decide.journal_entry import JournalEntry, JournalState, key_of
from zonewise.ceph.decide.model import Discovered, VolumeBackend


class FsckCode(StrEnum):
    """Stable codes, for scripts and alerts."""

    UNFINISHED_CREATE = "UnfinishedCreate"
    UNFINISHED_DELETE = "UnfinishedDelete"
    LOST = "Lost"
    ORPHAN = "Orphan"
    LEFTOVER_SNAPSHOT = "LeftoverSnapshot"
    KEPT_FOR_NOTHING = "KeptForNothing"
    UNREADABLE_ENTRY = "UnreadableEntry"


@dataclass(frozen=True, slots=True)
class FsckFinding:
    code: FsckCode
    what: str  # the image or subvolume, with its pool
    sentence: str
    kind: VolumeKind  # not known of an unreadable entry
    entry: JournalEntry | None = None
    journal_pool: str = ""
    image: Discovered | None = None
    detail: str = ""
    unreadable: str = ""  # pools whose journal may contradict the finding

    @property
    def can_be_repaired(self) -> bool:
        """Lost data needs a decision by an operator; and what can't be read may contradict the finding."""
        return self.code not in {FsckCode.LOST, FsckCode.UNREADABLE_ENTRY} and not self.unreadable


@dataclass(frozen=True, slots=True)
class FsckRepair:
    """What was done about a finding, or why it was left alone."""

    done: str = ""
    left: str = ""


class Fsck:
    def __init__(
        self,
        cluster: CephCluster,
        backends: Mapping[VolumeKind, VolumeBackend],
        journal_pools: set[str],
        unreadable: Mapping[VolumeKind, AbstractSet[str]] | None = None,
    ) -> None:
        """`unreadable`: pools that may have a journal of a kind, but can't be read."""
        self._cluster = cluster
        self._unreadable = {kind: set((unreadable or {}).get(kind, ())) for kind in VolumeKind}
        self.forbidden: set[tuple[VolumeKind, str]] = set()  # the user may not list these pools: they are not checked
        self.unavailable: dict[str, str] = {}  # pools that could not be checked in full, and why
        self._backends = backends
        self._journals = [Journal(cluster, pool) for pool in sorted(journal_pools)]

    def examine(self, now_seconds: float, older_than_seconds: float) -> Iterator[FsckFinding]:
        self._note_pools_not_serving()
        images = [(kind, image) for kind in self._backends for image in self._images(kind)]
        entries = [(journal, entry) for journal in list(self._journals) for entry in self._entries_of(journal)]
        by_token = {entry.token: entry for _, entry in entries}
        for journal, entry in entries:
            if entry.kind in self._backends:
                try:
                    yield from self._entry(journal, entry, now_seconds - older_than_seconds)
                except CsiError as error:
                    self._note_unavailable(self._pool_of(entry), error)
        for journal in self._journals:
            for key, why in sorted(journal.unreadable.items()):
                yield FsckFinding(FsckCode.UNREADABLE_ENTRY, f"{journal.pool}/{key}", why, VolumeKind.RBD)
        for kind, image in images:
            yield from self._leftovers(kind, image, by_token)
        suspects = [
            (kind, image)
            for kind, image in images
            if image.token not in by_token and not image.is_deleted and not self._is_unreadable(image.token)
        ]
        yield from self._orphans(suspects)
        for kind, backend in self._backends.items():
            for pool in self._pools(kind):
                if pool in self.unavailable or (kind, pool) in self.forbidden:
                    continue
                for name in self._unused_trash(backend, pool):
                    sentence = "was deleted and kept for its copies, which are all gone"
                    what = f"{pool}/{name}"
                    yield FsckFinding(FsckCode.KEPT_FOR_NOTHING, what, sentence, kind, journal_pool=pool, detail=name)

    def repair(self, finding: FsckFinding) -> FsckRepair:
        backend = self._backends[finding.kind]
        provisioner = Provisioner(backend, abandoned_after_seconds=0)  # `examine` has checked its age
        match finding:
            case FsckFinding(
                code=FsckCode.UNFINISHED_CREATE | FsckCode.UNFINISHED_DELETE, entry=JournalEntry() as entry
            ):
                journal = Journal(self._cluster, finding.journal_pool)
                if not provisioner.remove_abandoned(self._cluster, journal, entry):
                    return FsckRepair(left="another call continued it")
                return FsckRepair("removed, with its journal entry")
            case FsckFinding(code=FsckCode.ORPHAN, image=Discovered() as image):
                if self._is_in_journal(image.token):
                    return FsckRepair(left="the journal has it now")
                backend.remove(self._cluster, image.location)
                return FsckRepair("removed")
            case FsckFinding(code=FsckCode.LEFTOVER_SNAPSHOT, image=Discovered() as image):
                if self._is_reserved(finding.detail.rpartition("-")[2]):
                    return FsckRepair(left="its copy is being created")
                backend.remove_leftover(self._cluster, image, finding.detail)
                return FsckRepair("snapshot removed")
            case FsckFinding(code=FsckCode.KEPT_FOR_NOTHING):
                backend.purge(self._cluster, finding.journal_pool, finding.detail)
                return FsckRepair("removed")
            case _:
                return FsckRepair(left="restore its data, or delete the volume")

    def _note_pools_not_serving(self) -> None:
        """In a pool that does not serve every image would take a full timeout."""
        pools = {pool for kind in self._backends for pool in (*self._pools(kind), *self._unreadable[kind])}
        for pool, state in self._cluster.states(pools).items():
            if not state.is_serving:
                self.unavailable[pool] = state.problem

    def _note_unavailable(self, pool: str, error: CsiError) -> None:
        """Notes that the pool is unavailable; ignores one that was removed meanwhile; raises any other error."""
        if error.code is GrpcCode.UNAVAILABLE:
            self.unavailable.setdefault(pool, str(error))
        elif error.code is not GrpcCode.NOT_FOUND:
            raise error

    def _drop_journal(self, journal: Journal, error: CsiError) -> None:
        """The journal stopped answering and may list anything: treat its pool as unreadable. Raises any other error."""
        if error.code is not GrpcCode.UNAVAILABLE:
            raise error
        self._note_unavailable(journal.pool, error)
        self._journals = [other for other in self._journals if other is not journal]
        for pools in self._unreadable.values():
            pools.add(journal.pool)

    def _entries_of(self, journal: Journal) -> Iterator[JournalEntry]:
        try:
            for object_type in ObjectType:
                for _, entry in journal.entries(object_type):
                    yield entry
        except CsiError as error:
            self._drop_journal(journal, error)

    def _images(self, kind: VolumeKind) -> Iterator[Discovered]:
        for pool in self._pools(kind):
            if pool in self.unavailable:
                continue
            try:
                yield from self._backends[kind].discover(self._cluster, pool)
            except CsiError as error:
                if error.code is GrpcCode.PERMISSION_DENIED:
                    self.forbidden.add((kind, pool))
                else:
                    self._note_unavailable(pool, error)

    def _unused_trash(self, backend: VolumeBackend, pool: str) -> list[str]:
        try:
            return backend.unused_trash(self._cluster, pool)
        except CsiError as error:
            self._note_unavailable(pool, error)
            return []

    def _pools(self, kind: VolumeKind) -> list[str]:
        """Pools with the application of this kind; checking others would take long and find nothing."""
        application = APPLICATIONS[kind]
        dump = self._cluster.mon("osd dump")
        return sorted(
            pool["pool_name"] for pool in dump["pools"] if application in pool.get("application_metadata", {})
        )

    def _pool_of(self, entry: JournalEntry) -> str:
        """The pool's current name."""
        return self._cluster.pool_name(entry.pool_id) or entry.pool

    def _entry(self, journal: Journal, entry: JournalEntry, before_seconds: float) -> Iterator[FsckFinding]:
        backend = self._backends[entry.kind]
        what = f"{entry.pool}/{entry.location.image}"
        pool = self._pool_of(entry)
        unreadable = pool if pool in self.unavailable else ""
        if entry.state is not JournalState.READY:
            if max(entry.created_seconds, entry.marked_seconds) > before_seconds:
                return
            if (
                not unreadable
                and entry.state is JournalState.RESERVED
                and backend.is_being_created(self._cluster, entry.location)
            ):
                return
            code = FsckCode.UNFINISHED_CREATE if entry.state is JournalState.RESERVED else FsckCode.UNFINISHED_DELETE
            verb = "created" if entry.state is JournalState.RESERVED else "deleted"
            sentence = f"{entry.name!r} was not fully {verb}, and no call retries it"
            if unreadable:
                sentence += f"; it is left alone while pool {unreadable} is unavailable"
            yield FsckFinding(code, what, sentence, entry.kind, entry, journal.pool, unreadable=unreadable)
        elif not unreadable and backend.size(self._cluster, entry.location) is None and _is_unchanged(journal, entry):
            sentence = f"{entry.name!r} is in the journal, but its image does not exist"
            yield FsckFinding(FsckCode.LOST, what, sentence, entry.kind, entry, journal.pool)

    def _orphans(self, suspects: list[tuple[VolumeKind, Discovered]]) -> Iterator[FsckFinding]:
        """Images that still exist on a second listing and are still in no journal."""
        present = {(kind, image.location) for kind in {kind for kind, _ in suspects} for image in self._images(kind)}
        for kind, image in suspects:
            if (kind, image.location) in present and not self._may_be_in_journal(image.token):
                what = f"{image.location.pool}/{image.location.image}"
                sentence = "is in no journal"
                unreadable = self._unreadable_pools(kind)
                if unreadable:
                    sentence += f" that can be read, and is left alone: pool {unreadable} may have one"
                yield FsckFinding(FsckCode.ORPHAN, what, sentence, kind, image=image, unreadable=unreadable)

    def _leftovers(
        self, kind: VolumeKind, image: Discovered, by_token: Mapping[str, JournalEntry]
    ) -> Iterator[FsckFinding]:
        for leftover in image.leftovers:
            token = leftover.rpartition("-")[2]
            copy = by_token.get(token)
            if copy.state is JournalState.READY if copy else not self._is_unreadable(token):
                what = f"{image.location.pool}/{image.location.image}"
                sentence = f"has the snapshot {leftover}, whose copy is {'complete' if copy else 'gone'}"
                unreadable = "" if copy else self._unreadable_pools(kind)
                if unreadable:
                    sentence += f", or in a journal that can't be read: pool {unreadable} may have one"
                yield FsckFinding(
                    FsckCode.LEFTOVER_SNAPSHOT,
                    what,
                    sentence,
                    kind,
                    image=image,
                    detail=leftover,
                    unreadable=unreadable,
                )

    def _is_unreadable(self, token: str) -> bool:
        """Whether an entry under its key can't be read."""
        keys = {key_of(object_type, token[:HASH_DIGITS]) for object_type in ObjectType}
        return any(keys & journal.unreadable.keys() for journal in self._journals)

    def _unreadable_pools(self, kind: VolumeKind) -> str:
        return ", ".join(sorted(self._unreadable[kind]))

    def _may_be_in_journal(self, token: str) -> bool:
        """Also true if a journal stops answering."""
        try:
            return self._is_in_journal(token)
        except CsiError as error:
            if error.code is not GrpcCode.UNAVAILABLE:
                raise
            return True

    def _is_in_journal(self, token: str) -> bool:
        return any(True for _ in self._entries_with(token))

    def _is_reserved(self, token: str) -> bool:
        return any(entry.state is JournalState.RESERVED for entry in self._entries_with(token))

    def _entries_with(self, token: str) -> Iterator[JournalEntry]:
        """Raises UNAVAILABLE if a journal can't be read."""
        for journal in self._journals:
            for object_type in ObjectType:
                try:
                    entry = journal.by_id(VolumeId(VolumeKind.RBD, object_type, self._cluster.name, 0, 0, token))
                except CsiError as error:
                    self._note_unavailable(journal.pool, error)
                    raise
                if entry is not None:
                    yield entry


def _is_unchanged(journal: Journal, entry: JournalEntry) -> bool:
    """Whether the entry is unchanged: the volume may have been deleted meanwhile."""
    now = journal.by_name(entry.object_type, entry.name)
    return now == entry
