"""Making and removing volumes and snapshots, step by step, so that every step can be the last before a crash.

    create: choose a pool - reserve the name - make the image - record that it is ready
    delete: mark the entry - remove the image - forget the name

Whoever reserved a name first decides where it goes, whatever later calls prefer. A call that finds a name reserved and not ready goes on from
there, in the place that the journal says.
"""

from __future__ import annotations

import random
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import msgspec

from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.controller.journal import Journal, JournalEntry, JournalState, VolumeOrigin
from zonewise.ceph.controller.locks import ABANDONED_AFTER_SECONDS, OperationPending, VolumeLocks
from zonewise.ceph.crash_points import CrashPoint, reach
from zonewise.ceph.decide import ids, pool_choice
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import ObjectType, VolumeId
from zonewise.ceph.decide.model import CloneSource, CreateSpec, PoolState, VolumeBackend
from zonewise.ceph.decide.parameters import PoolBalance, PoolRule, StorageClassParameters
from zonewise.ceph.decide.pool_choice import PoolChoice
from zonewise.ceph.decide.request import VolumeRequest, check_same, difference, size_of
from zonewise.log import get_logger

log = get_logger(__name__)

_COUNTS_SECONDS = 5.0
_NOT_FINAL = frozenset({GrpcCode.UNAVAILABLE, GrpcCode.ABORTED})
"""Who is answered so comes again. Whatever else is said may be the last call for a name: then nobody deletes what it has."""


class Provisioner:
    """For one backend. All state is in the journal; what is kept here only keeps calls of this process apart."""

    def __init__(self, backend: VolumeBackend, abandoned_after_seconds: float = ABANDONED_AFTER_SECONDS) -> None:
        self.backend = backend
        self._busy = OperationPending()
        self._claims = VolumeLocks(abandoned_after_seconds)
        self._counts: dict[tuple[str, str], tuple[float, Counter[str]]] = {}
        self._random = random.SystemRandom()

    def create(self, cluster: CephCluster, order: VolumeRequest) -> tuple[Journal, JournalEntry, PoolChoice | None]:
        """The entry, ready; and the choice that was made, or None when an earlier call had made it."""
        with self._busy.alone(cluster.name, order.thing, ids.name_hash(order.name)):
            journal = Journal(cluster, self.backend.journal_pool(cluster, order.storage_class))
            if order.source is not None and (done := self._done(journal, order)) is not None:
                return journal, done, None
            try:
                source = self._source(cluster, order)
                size = size_of(order, source[1] if source is not None else None, self.backend)
            except CsiError as error:
                raise self._sourceless(cluster, journal, order, error) from error
            choice = self._choice(cluster, journal, order, source, size)
            entry = None if choice is None else self._planned(cluster, order, choice, source, size)
            there = journal.reserve(entry) if entry is not None else journal.by_name(order.thing, order.name)
            if there is not None:
                there = self._joined(journal, there, entry, order)
            elif entry is None:
                raise CsiError(GrpcCode.ABORTED, f"{order.name!r} was deleted by another call at this moment")
            reach(CrashPoint.CREATE_RESERVED)
            if there is not None and there.state is JournalState.READY:
                return journal, there, None
            made = self._made(cluster, journal, there or entry_or_bug(entry), order, source, is_new=there is None)
            return journal, made, choice if there is None else None

    def _done(self, journal: Journal, order: VolumeRequest) -> JournalEntry | None:
        """A copy that is ready: its source may have grown since, or be gone."""
        there = journal.by_name(order.thing, order.name)
        if there is None or there.state is not JournalState.READY:
            return None
        check_same(there, order, self.backend)
        return there

    def _sourceless(self, cluster: CephCluster, journal: Journal, order: VolumeRequest, error: CsiError) -> CsiError:
        """What to raise where a source can't be copied from; what was begun when it could is given up."""
        if order.source is None or error.code in _NOT_FINAL:
            return error
        there = journal.by_name(order.thing, order.name)
        if there is None or there.state is not JournalState.RESERVED or difference(there, order, self.backend):
            return error
        return self._undone(cluster, journal, there, error)

    def _source(self, cluster: CephCluster, order: VolumeRequest) -> tuple[Journal, JournalEntry] | None:
        if order.source is None:
            return None
        found = self.find(cluster, order.source)
        if found is None or found[1].state is not JournalState.READY:
            raise CsiError(GrpcCode.NOT_FOUND, f"the source {order.source} does not exist")
        return found

    def _choice(
        self,
        cluster: CephCluster,
        journal: Journal,
        order: VolumeRequest,
        source: tuple[Journal, JournalEntry] | None,
        size: int,
    ) -> PoolChoice | None:
        """None where no pool can be chosen now but the name was given a place before: that place stays."""
        try:
            if source is not None:
                entry = source[1]
                of = PoolRule(_pool_now(cluster, entry), entry.data_pool, entry.domain)
                copied = pool_choice.choose_for_copy(order.storage_class, order.requirement, of)
                if copied is not None:
                    return copied
            states = self._states(cluster, journal, order.storage_class)
            return pool_choice.choose(order.storage_class, order.requirement, states, size, self._random.random())
        except CsiError as error:
            if error.code is not GrpcCode.RESOURCE_EXHAUSTED or journal.by_name(order.thing, order.name) is None:
                raise
            return None

    def _planned(
        self,
        cluster: CephCluster,
        order: VolumeRequest,
        choice: PoolChoice,
        source: tuple[Journal, JournalEntry] | None,
        size: int,
    ) -> JournalEntry:
        token = ids.token_of(order.name, secrets.token_bytes(4))
        image = ids.image_name(order.thing, token)
        place = self.backend.place(cluster, order.storage_class, choice.rule.pool, choice.rule.data_pool, image)
        origin = None
        if source is not None:
            entry = source[1]
            elsewhere = (place.pool_id, place.data_pool) != (entry.pool_id, entry.data_pool)
            origin = VolumeOrigin(str(order.source), entry.pool, entry.place.image, elsewhere, entry.pool_id)
        return JournalEntry(
            name=order.name,
            token=token,
            kind=self.backend.kind,
            thing=order.thing,
            state=JournalState.RESERVED,
            pool=place.pool,
            pool_id=place.pool_id,
            size_bytes=size,
            created_seconds=int(time.time()),
            domain=choice.domain,
            reason=choice.reason.code,
            data_pool=place.data_pool,
            filesystem=place.filesystem,
            group=place.group,
            origin=origin,
        )

    def _joined(
        self, journal: Journal, there: JournalEntry, planned: JournalEntry | None, order: VolumeRequest
    ) -> JournalEntry | None:
        """The entry to go on with where the name was taken; None when it was handed over to the plan of this call."""
        if there.state is JournalState.DELETING:
            if there.kind is self.backend.kind:
                # Nobody may come again with its id: who wants the name finishes what was left unfinished.
                with suppress(CsiError):
                    self._finish_delete(journal.cluster, journal, self._marked(journal.cluster, journal, there))
            raise CsiError(GrpcCode.ABORTED, f"{order.name!r} is being deleted")
        check_same(there, order, self.backend)
        if there.state is JournalState.READY or planned is None or there.pool_id == planned.pool_id:
            return there
        state = _state(journal.cluster, there)
        if state is None or (state.is_serving and not state.is_full):
            return there
        if not journal.replace(there, planned):
            raise CsiError(GrpcCode.ABORTED, f"{order.name!r} is being created by another call")
        log.warning("moved an unfinished volume", name=order.name, before=there.pool, now=planned.pool)
        return None

    def _made(
        self,
        cluster: CephCluster,
        journal: Journal,
        entry: JournalEntry,
        order: VolumeRequest,
        source: tuple[Journal, JournalEntry] | None,
        *,
        is_new: bool,
    ) -> JournalEntry:
        """`is_new`: it was reserved by this call."""
        wanted = CreateSpec(entry.place, entry.thing, entry.size_bytes, features=order.storage_class.features)
        if source is not None and entry.origin is not None:
            of = source[1]
            wanted = replace(
                wanted, source=CloneSource(of.place, of.thing, of.token, of.size_bytes, detached=entry.origin.detached)
            )
        try:
            size = self.backend.make(cluster, wanted)
        except CsiError as error:
            raise self._undone(cluster, journal, entry, error, is_new=is_new) from error
        reach(CrashPoint.CREATE_MADE)
        ready = msgspec.structs.replace(entry, state=JournalState.READY, size_bytes=size)
        if not journal.replace(entry, ready):
            ready = self._overtaken(cluster, journal, entry)
        reach(CrashPoint.CREATE_RECORDED)
        return ready

    def _undone(
        self, cluster: CephCluster, journal: Journal, entry: JournalEntry, error: CsiError, *, is_new: bool = False
    ) -> CsiError:
        """What can't succeed here leaves nothing behind, so that a retry may choose another pool. Returns what to raise."""
        if error.code is GrpcCode.UNAVAILABLE:
            state = _state(cluster, entry)
            if state is not None and state.is_full:
                error = CsiError(GrpcCode.RESOURCE_EXHAUSTED, f"pool {entry.pool} is full: {state.problem}")
        if error.code not in _NOT_FINAL:
            with suppress(CsiError):  # where even that fails the entry stays, for a retry or the doctor
                if not self._given_up(cluster, journal, entry, is_new=is_new):
                    return CsiError(GrpcCode.ABORTED, f"{entry.name!r} was changed by another call meanwhile")
        return error

    def _given_up(self, cluster: CephCluster, journal: Journal, entry: JournalEntry, *, is_new: bool) -> bool:
        """Marked before anything is removed: another controller may have finished it meanwhile, and then it is somebody's volume."""
        marked = self._claimed(entry)
        if not journal.replace(entry, marked):
            return False
        try:
            self._finish_delete(cluster, journal, marked)
        except CsiError as error:
            if is_new and error.code is GrpcCode.PERMISSION_DENIED:
                return journal.forget(marked)  # who may not remove it could not make it
            journal.replace(marked, entry)  # a retry goes on from there
            raise
        return True

    def _claimed(self, entry: JournalEntry) -> JournalEntry:
        return msgspec.structs.replace(
            entry, state=JournalState.DELETING, owner=self._claims.mark, marked_seconds=int(time.time())
        )

    def _overtaken(self, cluster: CephCluster, journal: Journal, entry: JournalEntry) -> JournalEntry:
        """Another call changed the entry while we made the image: fine if it is the same volume."""
        now = journal.by_name(entry.thing, entry.name)
        if now is not None and now.token == entry.token and now.state is JournalState.READY:
            return now
        if now is None or now.token != entry.token:
            self.backend.remove(cluster, entry.place, entry.origin_place)
        raise CsiError(GrpcCode.ABORTED, f"{entry.name!r} was changed by another call meanwhile")

    def delete(self, cluster: CephCluster, which: VolumeId) -> None:
        """Fine when it is gone."""
        with self._busy.alone(cluster.name, which.thing, which.token[: ids.HASH_DIGITS]):
            found = self.find(cluster, which)
            if found is None:
                return
            journal, entry = found
            marked = self._marked(cluster, journal, entry)
            reach(CrashPoint.DELETE_MARKED)
            self._finish_delete(cluster, journal, marked)

    def _marked(self, cluster: CephCluster, journal: Journal, entry: JournalEntry) -> JournalEntry:
        """The entry, ours to delete; ABORTED while another process is at it."""
        is_claimed = entry.state is JournalState.DELETING
        if is_claimed and entry.owner == self._claims.mark:
            return entry  # an earlier call of this process did not come to the end
        if is_claimed and (
            not self._claims.is_abandoned(entry.token, entry.owner) or self.backend.is_open(cluster, entry.place)
        ):
            raise CsiError(
                GrpcCode.ABORTED, f"{entry.name!r} is being deleted by another controller, or one died at it"
            )
        ours = self._claimed(entry)
        if not journal.replace(entry, ours):
            raise CsiError(GrpcCode.ABORTED, f"{entry.name!r} is being changed by another call")
        self._claims.settled(entry.token)
        return ours

    def _finish_delete(self, cluster: CephCluster, journal: Journal, entry: JournalEntry) -> None:
        self.backend.remove(cluster, entry.place, entry.origin_place)
        reach(CrashPoint.DELETE_REMOVED)
        journal.forget(entry)
        reach(CrashPoint.DELETE_FORGOTTEN)

    def expand(self, cluster: CephCluster, which: VolumeId, required_bytes: int, limit_bytes: int) -> int:
        with self._busy.alone(cluster.name, which.thing, which.token[: ids.HASH_DIGITS]):
            journal, entry = self.require(cluster, which)
            if limit_bytes and required_bytes > limit_bytes:
                raise CsiError(
                    GrpcCode.OUT_OF_RANGE, f"{required_bytes} bytes are required, and {limit_bytes} the limit"
                )
            if limit_bytes and entry.size_bytes > limit_bytes:
                raise CsiError(
                    GrpcCode.OUT_OF_RANGE, f"the volume has {entry.size_bytes} bytes, over the limit already"
                )
            if limit_bytes and self.backend.rounded(required_bytes) > limit_bytes:
                raise CsiError(GrpcCode.OUT_OF_RANGE, f"volumes have whole MiB, and {limit_bytes} bytes are the limit")
            size = self.backend.grow(cluster, entry.place, required_bytes)
            reach(CrashPoint.EXPAND_GROWN)
            while size > entry.size_bytes and not journal.replace(
                entry, msgspec.structs.replace(entry, size_bytes=size)
            ):
                journal, entry = self.require(cluster, which)
            reach(CrashPoint.EXPAND_RECORDED)
            return size

    def clear_away(self, cluster: CephCluster, journal: Journal, entry: JournalEntry) -> bool:
        """Remove what nobody finishes; False where it is not as it was seen any more, since then somebody does."""
        with self._busy.alone(cluster.name, entry.thing, entry.token[: ids.HASH_DIGITS]):
            now = journal.by_name(entry.thing, entry.name)
            if now is None or now != entry:
                return False
            if now.state is JournalState.RESERVED and self.backend.is_being_made(cluster, now.place):
                return False
            self._finish_delete(cluster, journal, self._marked(cluster, journal, now))
            return True

    def find(self, cluster: CephCluster, which: VolumeId) -> tuple[Journal, JournalEntry] | None:
        cluster.require_own(which)
        pool = cluster.pool_name(which.journal_pool_id)
        if pool is None:
            raise CsiError(
                GrpcCode.FAILED_PRECONDITION,
                f"the journal of {which} was in pool {which.journal_pool_id}, which is gone",
            )
        journal = Journal(cluster, pool)
        entry = journal.by_id(which)
        return None if entry is None or entry.kind is not self.backend.kind else (journal, entry)

    def require(self, cluster: CephCluster, which: VolumeId) -> tuple[Journal, JournalEntry]:
        """NOT_FOUND unless it is ready."""
        found = self.find(cluster, which)
        if found is None or found[1].state is not JournalState.READY:
            raise CsiError(GrpcCode.NOT_FOUND, f"there is no {which}")
        return found

    def _states(
        self, cluster: CephCluster, journal: Journal, storage_class: StorageClassParameters
    ) -> Mapping[str, PoolState]:
        states = cluster.states(pool_choice.needed(storage_class.rules))
        if storage_class.balance is not PoolBalance.COUNT:
            return states
        counts = self._volumes(cluster, journal)
        return {name: replace(state, volumes=counts[name]) for name, state in states.items()}

    def _volumes(self, cluster: CephCluster, journal: Journal) -> Counter[str]:
        """Volumes by pool, a few seconds old."""
        key = (cluster.name, journal.pool)
        taken, counts = self._counts.get(key, (float("-inf"), Counter()))
        if time.monotonic() - taken > _COUNTS_SECONDS:
            counts = Counter(entry.pool for _, entry in journal.entries(ObjectType.VOLUME))
            self._counts[key] = (time.monotonic(), counts)
        return counts


def _pool_now(cluster: CephCluster, entry: JournalEntry) -> str:
    """What an entry's pool is called now; what it was called if it is gone."""
    return cluster.pool_name(entry.pool_id) or entry.pool


def _state(cluster: CephCluster, entry: JournalEntry) -> PoolState | None:
    """Of the pool that an entry's image is in, and that its data is in, whatever they are called now."""
    rule = PoolRule(_pool_now(cluster, entry), entry.data_pool)
    return pool_choice.state_of(rule, cluster.states(pool_choice.needed([rule])))


def entry_or_bug(entry: JournalEntry | None) -> JournalEntry:
    assert entry is not None, "a name is either taken or planned for"
    return entry
