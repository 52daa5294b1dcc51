"""Creation and deletion of volumes and snapshots, in steps that can each be the last before a crash.

    create: choose a pool - reserve the name - create the image - record that it is ready
    delete: mark the entry - remove the image - forget the name

The call that reserves a name decides its location, whatever later calls prefer. A call that finds a name reserved but
not ready continues from there, at the location in the journal.
"""

from __future__ import annotations

import random
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

import msgspec

from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.controller.journal import Journal
from zonewise.ceph.controller.locks import ABANDONED_AFTER_SECONDS, OperationPending, VolumeLocks
from zonewise.ceph.crash_points import CrashPoint, crash_if_armed
from zonewise.ceph.decide import ids, pool_choice
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import ObjectType, VolumeId
from zonewise.ceph.decide.journal_entry import JournalEntry, JournalState, VolumeOrigin
from zonewise.ceph.decide.model import CloneSource, CreateSpec, PoolState, VolumeBackend
from zonewise.ceph.decide.parameters import PoolBalance, PoolRule, StorageClassParameters
from zonewise.ceph.decide.pool_choice import PoolChoice
from zonewise.ceph.decide.request import VolumeRequest, check_compatible, difference, size_of
from zonewise.log import get_logger

_log = get_logger(__name__)

_COUNTS_SECONDS: Final = 5.0
_NOT_FINAL: Final = frozenset({GrpcCode.UNAVAILABLE, GrpcCode.ABORTED})
"""The caller retries after these. Any other error may end the last call for a name: then nothing may be left behind."""


class Provisioner:
    """For one backend. All state is in the journal; the locks here only separate calls of this process."""

    def __init__(self, backend: VolumeBackend, abandoned_after_seconds: float = ABANDONED_AFTER_SECONDS) -> None:
        self.backend = backend
        self._pending = OperationPending()
        self._locks = VolumeLocks(abandoned_after_seconds)
        self._counts: dict[tuple[str, str], tuple[float, Counter[str]]] = {}
        self._random = random.SystemRandom()

    def create(self, cluster: CephCluster, request: VolumeRequest) -> tuple[Journal, JournalEntry, PoolChoice | None]:
        """The ready entry, and the pool choice; None if an earlier call made the choice."""
        with self._pending.exclusive(cluster.name, request.object_type, ids.name_hash(request.name)):
            journal = Journal(cluster, self.backend.journal_pool(cluster, request.storage_class))
            if request.source is not None and (ready := self._ready_copy(journal, request)) is not None:
                return journal, ready, None
            try:
                source = self._source(cluster, request)
                size = size_of(request, source[1] if source is not None else None, self.backend)
            except CsiError as error:
                raise self._roll_back_copy(cluster, journal, request, error) from error
            choice = self._choice(cluster, journal, request, source, size)
            planned = None if choice is None else self._plan(cluster, request, choice, source, size)
            existing = (
                journal.reserve(planned) if planned is not None else journal.by_name(request.object_type, request.name)
            )
            if existing is not None:
                existing = self._resume(journal, existing, planned, request)
            entry = existing or planned
            if entry is None:
                raise CsiError(GrpcCode.ABORTED, f"{request.name!r} was just deleted by another call: retry")
            crash_if_armed(CrashPoint.CREATE_RESERVED)
            if existing is not None and existing.state is JournalState.READY:
                return journal, existing, None
            ready = self._create_image(cluster, journal, entry, request, source, is_new=existing is None)
            return journal, ready, choice if existing is None else None

    def _ready_copy(self, journal: Journal, request: VolumeRequest) -> JournalEntry | None:
        """A copy that is ready. Checked first, since its source may have grown or been deleted."""
        existing = journal.by_name(request.object_type, request.name)
        if existing is None or existing.state is not JournalState.READY:
            return None
        check_compatible(existing, request, self.backend)
        return existing

    def _roll_back_copy(
        self, cluster: CephCluster, journal: Journal, request: VolumeRequest, error: CsiError
    ) -> CsiError:
        """The error to raise if the source can't be copied; a copy that was begun is rolled back."""
        if request.source is None or error.code in _NOT_FINAL:
            return error
        existing = journal.by_name(request.object_type, request.name)
        if (
            existing is None
            or existing.state is not JournalState.RESERVED
            or difference(existing, request, self.backend)
        ):
            return error
        return self._roll_back(cluster, journal, existing, error)

    def _source(self, cluster: CephCluster, request: VolumeRequest) -> tuple[Journal, JournalEntry] | None:
        if request.source is None:
            return None
        source = self.find(cluster, request.source)
        if source is None or source[1].state is not JournalState.READY:
            raise CsiError(GrpcCode.NOT_FOUND, f"the source {request.source} does not exist")
        return source

    def _choice(
        self,
        cluster: CephCluster,
        journal: Journal,
        request: VolumeRequest,
        source: tuple[Journal, JournalEntry] | None,
        size: int,
    ) -> PoolChoice | None:
        """None if no pool can be chosen, but the name is reserved already: its location stays."""
        try:
            if source is not None:
                entry = source[1]
                source_rule = PoolRule(_pool_now(cluster, entry), entry.data_pool, entry.domain)
                choice = pool_choice.choose_for_copy(request.storage_class, request.requirement, source_rule)
                if choice is not None:
                    return choice
            states = self._states(cluster, journal, request.storage_class)
            return pool_choice.choose(request.storage_class, request.requirement, states, size, self._random.random())
        except CsiError as error:
            if (
                error.code is not GrpcCode.RESOURCE_EXHAUSTED
                or journal.by_name(request.object_type, request.name) is None
            ):
                raise
            return None

    def _plan(
        self,
        cluster: CephCluster,
        request: VolumeRequest,
        choice: PoolChoice,
        source: tuple[Journal, JournalEntry] | None,
        size: int,
    ) -> JournalEntry:
        token = ids.token_of(request.name, secrets.token_bytes(4))
        image = ids.image_name(request.object_type, token)
        location = self.backend.location(cluster, request.storage_class, choice.rule.pool, choice.rule.data_pool, image)
        origin = None
        if source is not None:
            entry = source[1]
            is_detached = (location.pool_id, location.data_pool) != (entry.pool_id, entry.data_pool)
            origin = VolumeOrigin(str(request.source), entry.pool, entry.location.image, is_detached, entry.pool_id)
        return JournalEntry(
            name=request.name,
            token=token,
            kind=self.backend.kind,
            object_type=request.object_type,
            state=JournalState.RESERVED,
            pool=location.pool,
            pool_id=location.pool_id,
            size_bytes=size,
            created_seconds=int(time.time()),
            domain=choice.domain,
            reason=choice.reason.code,
            data_pool=location.data_pool,
            filesystem=location.filesystem,
            group=location.group,
            origin=origin,
        )

    def _resume(
        self, journal: Journal, existing: JournalEntry, planned: JournalEntry | None, request: VolumeRequest
    ) -> JournalEntry | None:
        """The existing entry to continue with; None if it was replaced by the plan of this call."""
        if existing.state is JournalState.DELETING:
            if existing.kind is self.backend.kind:
                # The delete call may never be retried: a call for the same name finishes it.
                with suppress(CsiError):
                    self._finish_delete(
                        journal.cluster, journal, self._mark_deleting(journal.cluster, journal, existing)
                    )
            raise CsiError(GrpcCode.ABORTED, f"{request.name!r} is being deleted: retry")
        check_compatible(existing, request, self.backend)
        if existing.state is JournalState.READY or planned is None or existing.pool_id == planned.pool_id:
            return existing
        state = _state(journal.cluster, existing)
        if state is None or (state.is_serving and not state.is_full):
            return existing
        if not journal.replace(existing, planned):
            raise CsiError(GrpcCode.ABORTED, f"{request.name!r} is being created by another call: retry")
        _log.warning("unfinished volume moved", name=request.name, old_pool=existing.pool, new_pool=planned.pool)
        return None

    def _create_image(
        self,
        cluster: CephCluster,
        journal: Journal,
        entry: JournalEntry,
        request: VolumeRequest,
        source: tuple[Journal, JournalEntry] | None,
        *,
        is_new: bool,
    ) -> JournalEntry:
        """`is_new`: this call reserved the name."""
        spec = CreateSpec(entry.location, entry.object_type, entry.size_bytes, features=request.storage_class.features)
        if source is not None and entry.origin is not None:
            origin = source[1]
            spec = replace(
                spec,
                source=CloneSource(
                    origin.location, origin.object_type, origin.token, origin.size_bytes, detached=entry.origin.detached
                ),
            )
        try:
            size = self.backend.create(cluster, spec)
        except CsiError as error:
            raise self._roll_back(cluster, journal, entry, error, is_new=is_new) from error
        crash_if_armed(CrashPoint.CREATE_MADE)
        ready = msgspec.structs.replace(entry, state=JournalState.READY, size_bytes=size)
        if not journal.replace(entry, ready):
            ready = self._resolve_conflict(cluster, journal, entry)
        crash_if_armed(CrashPoint.CREATE_RECORDED)
        return ready

    def _roll_back(
        self, cluster: CephCluster, journal: Journal, entry: JournalEntry, error: CsiError, *, is_new: bool = False
    ) -> CsiError:
        """After a final error, so that a retry may choose another pool. Returns the error to raise."""
        if error.code is GrpcCode.UNAVAILABLE:
            state = _state(cluster, entry)
            if state is not None and state.is_full:
                error = CsiError(GrpcCode.RESOURCE_EXHAUSTED, f"pool {entry.pool} is full: {state.problem}")
        if error.code not in _NOT_FINAL:
            with suppress(CsiError):  # then the entry stays, for a retry or `csi doctor`
                if not self._remove_reserved(cluster, journal, entry, is_new=is_new):
                    return CsiError(GrpcCode.ABORTED, f"{entry.name!r} was changed by another call: retry")
        return error

    def _remove_reserved(self, cluster: CephCluster, journal: Journal, entry: JournalEntry, *, is_new: bool) -> bool:
        """Mark the entry before removing the image: another controller may have finished it, and then it is in use."""
        marked = self._as_deleting(entry)
        if not journal.replace(entry, marked):
            return False
        try:
            self._finish_delete(cluster, journal, marked)
        except CsiError as error:
            if is_new and error.code is GrpcCode.PERMISSION_DENIED:
                return journal.forget(marked)  # without permission to remove it, it was not created either
            journal.replace(marked, entry)  # a retry continues from there
            raise
        return True

    def _as_deleting(self, entry: JournalEntry) -> JournalEntry:
        return msgspec.structs.replace(
            entry, state=JournalState.DELETING, owner=self._locks.owner, marked_seconds=int(time.time())
        )

    def _resolve_conflict(self, cluster: CephCluster, journal: Journal, entry: JournalEntry) -> JournalEntry:
        """Another call changed the entry during the creation: no error if it is the same volume and ready."""
        current = journal.by_name(entry.object_type, entry.name)
        if current is not None and current.token == entry.token and current.state is JournalState.READY:
            return current
        if current is None or current.token != entry.token:
            self.backend.remove(cluster, entry.location, entry.origin_location)
        raise CsiError(GrpcCode.ABORTED, f"{entry.name!r} was changed by another call: retry")

    def delete(self, cluster: CephCluster, volume_id: VolumeId) -> None:
        """No error if it does not exist."""
        with self._pending.exclusive(cluster.name, volume_id.object_type, volume_id.token[: ids.HASH_DIGITS]):
            located = self.find(cluster, volume_id)
            if located is None:
                return
            journal, entry = located
            marked = self._mark_deleting(cluster, journal, entry)
            crash_if_armed(CrashPoint.DELETE_MARKED)
            self._finish_delete(cluster, journal, marked)

    def _mark_deleting(self, cluster: CephCluster, journal: Journal, entry: JournalEntry) -> JournalEntry:
        """The entry, owned by this process for deletion. Raises ABORTED while another process deletes it."""
        is_claimed = entry.state is JournalState.DELETING
        if is_claimed and entry.owner == self._locks.owner:
            return entry  # an earlier call of this process was interrupted
        if is_claimed and (
            not self._locks.is_abandoned(entry.token, entry.owner) or self.backend.is_open(cluster, entry.location)
        ):
            raise CsiError(
                GrpcCode.ABORTED,
                f"{entry.name!r} is being deleted by another controller, or its deletion was interrupted: retry",
            )
        marked = self._as_deleting(entry)
        if not journal.replace(entry, marked):
            raise CsiError(GrpcCode.ABORTED, f"{entry.name!r} is being changed by another call: retry")
        self._locks.forget(entry.token)
        return marked

    def _finish_delete(self, cluster: CephCluster, journal: Journal, entry: JournalEntry) -> None:
        self.backend.remove(cluster, entry.location, entry.origin_location)
        crash_if_armed(CrashPoint.DELETE_REMOVED)
        journal.forget(entry)
        crash_if_armed(CrashPoint.DELETE_FORGOTTEN)

    def expand(self, cluster: CephCluster, volume_id: VolumeId, required_bytes: int, limit_bytes: int) -> int:
        with self._pending.exclusive(cluster.name, volume_id.object_type, volume_id.token[: ids.HASH_DIGITS]):
            journal, entry = self.require(cluster, volume_id)
            if limit_bytes and required_bytes > limit_bytes:
                raise CsiError(
                    GrpcCode.OUT_OF_RANGE, f"{required_bytes} bytes are required, more than the limit of {limit_bytes}"
                )
            if limit_bytes and entry.size_bytes > limit_bytes:
                raise CsiError(
                    GrpcCode.OUT_OF_RANGE,
                    f"the volume has {entry.size_bytes} bytes already, more than the limit of {limit_bytes}",
                )
            if limit_bytes and self.backend.round_size(required_bytes) > limit_bytes:
                raise CsiError(
                    GrpcCode.OUT_OF_RANGE,
                    f"sizes are rounded up to MiB, which exceeds the limit of {limit_bytes} bytes",
                )
            size = self.backend.expand(cluster, entry.location, required_bytes)
            crash_if_armed(CrashPoint.EXPAND_GROWN)
            while size > entry.size_bytes and not journal.replace(
                entry, msgspec.structs.replace(entry, size_bytes=size)
            ):
                journal, entry = self.require(cluster, volume_id)
            crash_if_armed(CrashPoint.EXPAND_RECORDED)
            return size

    def remove_abandoned(self, cluster: CephCluster, journal: Journal, entry: JournalEntry) -> bool:
        """Remove an unfinished volume; False if its entry has changed since, so another call continues it."""
        with self._pending.exclusive(cluster.name, entry.object_type, entry.token[: ids.HASH_DIGITS]):
            current = journal.by_name(entry.object_type, entry.name)
            if current is None or current != entry:
                return False
            if current.state is JournalState.RESERVED and self.backend.is_being_created(cluster, current.location):
                return False
            self._finish_delete(cluster, journal, self._mark_deleting(cluster, journal, current))
            return True

    def find(self, cluster: CephCluster, volume_id: VolumeId) -> tuple[Journal, JournalEntry] | None:
        cluster.require_own(volume_id)
        pool = cluster.pool_name(volume_id.journal_pool_id)
        if pool is None:
            raise CsiError(
                GrpcCode.FAILED_PRECONDITION,
                f"the journal of {volume_id} was in pool {volume_id.journal_pool_id}, which does not exist any more",
            )
        journal = Journal(cluster, pool)
        entry = journal.by_id(volume_id)
        return None if entry is None or entry.kind is not self.backend.kind else (journal, entry)

    def require(self, cluster: CephCluster, volume_id: VolumeId) -> tuple[Journal, JournalEntry]:
        """Raises NOT_FOUND unless it is ready."""
        located = self.find(cluster, volume_id)
        if located is None or located[1].state is not JournalState.READY:
            raise CsiError(GrpcCode.NOT_FOUND, f"{volume_id} does not exist")
        return located

    def _states(
        self, cluster: CephCluster, journal: Journal, storage_class: StorageClassParameters
    ) -> Mapping[str, PoolState]:
        states = cluster.states(pool_choice.pools_of(storage_class.rules))
        if storage_class.balance is not PoolBalance.COUNT:
            return states
        counts = self._volume_counts(cluster, journal)
        return {name: replace(state, volumes=counts[name]) for name, state in states.items()}

    def _volume_counts(self, cluster: CephCluster, journal: Journal) -> Counter[str]:
        """Volumes by pool, up to a few seconds old."""
        key = (cluster.name, journal.pool)
        counted_at, counts = self._counts.get(key, (float("-inf"), Counter()))
        if time.monotonic() - counted_at > _COUNTS_SECONDS:
            counts = Counter(entry.pool for _, entry in journal.entries(ObjectType.VOLUME))
            self._counts[key] = (time.monotonic(), counts)
        return counts


def _pool_now(cluster: CephCluster, entry: JournalEntry) -> str:
    """The current name of an entry's pool; its old name if the pool does not exist."""
    return cluster.pool_name(entry.pool_id) or entry.pool


def _state(cluster: CephCluster, entry: JournalEntry) -> PoolState | None:
    """The state of an entry's pool and data pool."""
    rule = PoolRule(_pool_now(cluster, entry), entry.data_pool)
    return pool_choice.state_of(rule, cluster.states(pool_choice.pools_of([rule])))
