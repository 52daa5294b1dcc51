"""What does not fit together: the journals of a cluster against the images and subvolumes that are there.

Calls that were killed leave their journal entry, and a retry finishes them; nothing is wrong until nobody retries. So what is unfinished is only
reported when it is older than a while. Images are read before journals: what is made meanwhile is in the journal first, and what is deleted
meanwhile is looked at once more before anything is said of it.

A pool that is away hides what is in it and what its journal has: the others are looked at, and nothing is removed that it may know better.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum

from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.controller.journal import Journal, JournalEntry, JournalState
from zonewise.ceph.controller.journal_pools import APPLICATIONS
from zonewise.ceph.controller.provisioner import Provisioner
from zonewise.ceph.decide.errors import CsiError
from zonewise.ceph.decide.errors import GrpcCode as Refusal
from zonewise.ceph.decide.ids import ObjectType, VolumeId, VolumeKind
from zonewise.ceph.decide.model import Discovered, VolumeBackend


class FsckCode(StrEnum):
    """Stable: people write alerts on these."""

    UNFINISHED_CREATE = "UnfinishedCreate"
    UNFINISHED_DELETE = "UnfinishedDelete"
    LOST = "Lost"
    ORPHAN = "Orphan"
    LEFTOVER_SNAPSHOT = "LeftoverSnapshot"
    KEPT_FOR_NOTHING = "KeptForNothing"


@dataclass(frozen=True, slots=True)
class FsckFinding:
    code: FsckCode
    what: str  # the image or subvolume, with its pool
    sentence: str
    kind: VolumeKind
    entry: JournalEntry | None = None
    journal_pool: str = ""
    found: Discovered | None = None
    detail: str = ""
    unseen: str = ""  # pools out of sight that may know better

    @property
    def can_be_repaired(self) -> bool:
        """Not what is lost: only a person knows whether somebody still hopes for it. Nor what a pool out of sight may know."""
        return self.code is not FsckCode.LOST and not self.unseen


@dataclass(frozen=True, slots=True)
class FsckRepair:
    """What was done about a finding; or why it was left alone."""

    done: str = ""
    left: str = ""


class Fsck:
    def __init__(
        self,
        cluster: CephCluster,
        backends: Mapping[VolumeKind, VolumeBackend],
        journal_pools: set[str],
        unseen: Mapping[VolumeKind, AbstractSet[str]] | None = None,
    ) -> None:
        """`unseen`: pools that may have a journal of a kind, too, for all that this user can see."""
        self._cluster = cluster
        self._unseen = {kind: set((unseen or {}).get(kind, ())) for kind in VolumeKind}
        self.forbidden: set[tuple[VolumeKind, str]] = set()  # what this user may not list: nothing is said of it
        self.away: dict[str, str] = {}  # pools that can't be looked at in full now, and why
        self._backends = backends
        self._journals = [Journal(cluster, pool) for pool in sorted(journal_pools)]

    def examine(self, now_seconds: float, older_than_seconds: float) -> Iterator[FsckFinding]:
        self._pass_over_what_does_not_serve()
        images = [(kind, each) for kind in self._backends for each in self._images(kind)]
        entries = [(journal, entry) for journal in list(self._journals) for entry in self._all(journal)]
        by_token = {entry.token: entry for _, entry in entries}
        for journal, entry in entries:
            if entry.kind in self._backends:
                try:
                    yield from self._entry(journal, entry, now_seconds - older_than_seconds)
                except CsiError as error:
                    self._pass_over(self._pool_of(entry), error)
        for kind, image in images:
            yield from self._leftovers(kind, image, by_token)
        unknown = [each for each in images if each[1].token not in by_token and not each[1].is_deleted]
        yield from self._orphans(unknown)
        for kind, backend in self._backends.items():
            for pool in self._pools(kind):
                if pool in self.away or (kind, pool) in self.forbidden:
                    continue
                for name in self._kept(backend, pool):
                    sentence = "was deleted and kept for copies of it, which are all gone"
                    place = f"{pool}/{name}"
                    yield FsckFinding(FsckCode.KEPT_FOR_NOTHING, place, sentence, kind, journal_pool=pool, detail=name)

    def repair(self, finding: FsckFinding) -> FsckRepair:
        backend = self._backends[finding.kind]
        provisioner = Provisioner(backend, abandoned_after_seconds=0)  # it was found to be old enough
        match finding:
            case FsckFinding(
                code=FsckCode.UNFINISHED_CREATE | FsckCode.UNFINISHED_DELETE, entry=JournalEntry() as entry
            ):
                journal = Journal(self._cluster, finding.journal_pool)
                if not provisioner.clear_away(self._cluster, journal, entry):
                    return FsckRepair(left="somebody went on with it")
                return FsckRepair("removed, and its name forgotten")
            case FsckFinding(code=FsckCode.ORPHAN, found=Discovered() as found):
                if self._known(found.token):
                    return FsckRepair(left="the journal has it now")
                backend.remove(self._cluster, found.place)
                return FsckRepair("removed")
            case FsckFinding(code=FsckCode.LEFTOVER_SNAPSHOT, found=Discovered() as found):
                if self._unfinished(finding.detail.rpartition("-")[2]):
                    return FsckRepair(left="its copy is being made")
                backend.clear(self._cluster, found, finding.detail)
                return FsckRepair("snapshot removed")
            case FsckFinding(code=FsckCode.KEPT_FOR_NOTHING):
                backend.purge(self._cluster, finding.journal_pool, finding.detail)
                return FsckRepair("removed")
            case _:
                return FsckRepair(left="restore its data, or delete the volume")

    def _pass_over_what_does_not_serve(self) -> None:
        """Asked, each of its images would take as long as Ceph is given for an answer."""
        pools = {pool for kind in self._backends for pool in (*self._pools(kind), *self._unseen[kind])}
        for pool, state in self._cluster.states(pools).items():
            if not state.is_serving:
                self.away[pool] = state.problem

    def _pass_over(self, pool: str, error: CsiError) -> None:
        """Raises the error unless it says that the pool is away, or was removed meanwhile."""
        if error.code is Refusal.UNAVAILABLE:
            self.away.setdefault(pool, str(error))
        elif error.code is not Refusal.NOT_FOUND:
            raise error

    def _lose_sight(self, journal: Journal, error: CsiError) -> None:
        """Of a journal that does not answer while all are read: it may have anything. Raises the error if it says something else."""
        if error.code is not Refusal.UNAVAILABLE:
            raise error
        self._pass_over(journal.pool, error)
        self._journals = [each for each in self._journals if each is not journal]
        for pools in self._unseen.values():
            pools.add(journal.pool)

    def _all(self, journal: Journal) -> Iterator[JournalEntry]:
        try:
            for thing in ObjectType:
                for _, entry in journal.entries(thing):
                    yield entry
        except CsiError as error:
            self._lose_sight(journal, error)

    def _images(self, kind: VolumeKind) -> Iterator[Discovered]:
        for pool in self._pools(kind):
            if pool in self.away:
                continue
            try:
                yield from self._backends[kind].found(self._cluster, pool)
            except CsiError as error:
                if error.code is Refusal.PERMISSION_DENIED:
                    self.forbidden.add((kind, pool))
                else:
                    self._pass_over(pool, error)

    def _kept(self, backend: VolumeBackend, pool: str) -> list[str]:
        try:
            return backend.kept(self._cluster, pool)
        except CsiError as error:
            self._pass_over(pool, error)
            return []

    def _pools(self, kind: VolumeKind) -> list[str]:
        """Those that Ceph says are for this kind; looking into others would take long and find nothing."""
        application = APPLICATIONS[kind]
        dump = self._cluster.mon("osd dump")
        return sorted(
            pool["pool_name"] for pool in dump["pools"] if application in pool.get("application_metadata", {})
        )

    def _pool_of(self, entry: JournalEntry) -> str:
        """As it is called now."""
        return self._cluster.pool_name(entry.pool_id) or entry.pool

    def _entry(self, journal: Journal, entry: JournalEntry, before_seconds: float) -> Iterator[FsckFinding]:
        backend = self._backends[entry.kind]
        what = f"{entry.pool}/{entry.place.image}"
        pool = self._pool_of(entry)
        unseen = pool if pool in self.away else ""
        if entry.state is not JournalState.READY:
            if max(entry.created_seconds, entry.marked_seconds) > before_seconds:
                return
            if (
                not unseen
                and entry.state is JournalState.RESERVED
                and backend.is_being_made(self._cluster, entry.place)
            ):
                return
            code = FsckCode.UNFINISHED_CREATE if entry.state is JournalState.RESERVED else FsckCode.UNFINISHED_DELETE
            did = "created" if entry.state is JournalState.RESERVED else "deleted"
            sentence = f"{entry.name!r} was never {did} to the end, and nobody tries again"
            if unseen:
                sentence += f"; it is left alone while pool {unseen} is away"
            yield FsckFinding(code, what, sentence, entry.kind, entry, journal.pool, unseen=unseen)
        elif not unseen and backend.size(self._cluster, entry.place) is None and _again(journal, entry):
            sentence = f"{entry.name!r} is in the journal, and there is nothing"
            yield FsckFinding(FsckCode.LOST, what, sentence, entry.kind, entry, journal.pool)

    def _orphans(self, suspects: list[tuple[VolumeKind, Discovered]]) -> Iterator[FsckFinding]:
        """Those that are still there when looked for again, and still in no journal."""
        there = {(kind, image.place) for kind in {kind for kind, _ in suspects} for image in self._images(kind)}
        for kind, image in suspects:
            if (kind, image.place) in there and not self._may_be_known(image.token):
                what = f"{image.place.pool}/{image.place.image}"
                sentence = "is in no journal"
                unseen = self._out_of_sight(kind)
                if unseen:
                    sentence += f" that can be read now, and is left alone: there may be one in {unseen}"
                yield FsckFinding(FsckCode.ORPHAN, what, sentence, kind, found=image, unseen=unseen)

    def _leftovers(
        self, kind: VolumeKind, image: Discovered, by_token: Mapping[str, JournalEntry]
    ) -> Iterator[FsckFinding]:
        for leftover in image.leftovers:
            copy = by_token.get(leftover.rpartition("-")[2])
            if copy is None or copy.state is JournalState.READY:
                what = f"{image.place.pool}/{image.place.image}"
                sentence = f"has the snapshot {leftover}, whose copy is {'made' if copy else 'gone'}"
                unseen = "" if copy else self._out_of_sight(kind)
                if unseen:
                    sentence += f", or in a journal that can't be read now: there may be one in {unseen}"
                yield FsckFinding(
                    FsckCode.LEFTOVER_SNAPSHOT, what, sentence, kind, found=image, detail=leftover, unseen=unseen
                )

    def _out_of_sight(self, kind: VolumeKind) -> str:
        return ", ".join(sorted(self._unseen[kind]))

    def _may_be_known(self, token: str) -> bool:
        """Also where a journal stops answering at this moment."""
        try:
            return self._known(token)
        except CsiError as error:
            if error.code is not Refusal.UNAVAILABLE:
                raise
            return True

    def _known(self, token: str) -> bool:
        return any(True for _ in self._entries(token))

    def _unfinished(self, token: str) -> bool:
        return any(entry.state is JournalState.RESERVED for entry in self._entries(token))

    def _entries(self, token: str) -> Iterator[JournalEntry]:
        """UNAVAILABLE where a journal can't be asked: what it has is not known."""
        for journal in self._journals:
            for thing in ObjectType:
                try:
                    entry = journal.by_id(VolumeId(VolumeKind.RBD, thing, self._cluster.name, 0, 0, token))
                except CsiError as error:
                    self._pass_over(journal.pool, error)
                    raise
                if entry is not None:
                    yield entry


def _again(journal: Journal, entry: JournalEntry) -> bool:
    """Whether the journal still says so: it may have been deleted while we looked."""
    now = journal.by_name(entry.thing, entry.name)
    return now == entry
