"""CephFS volumes: subvolumes of one file system, whose file data lies in the pool of their domain.

All of it is done by the manager's `volumes` module. Its own names for things are ours: a volume is the subvolume `csi-vol-...`. A snapshot is the
snapshot `csi-snap-...` of its source's subvolume, which outlives that; only where it is wanted in another pool is it a copy. Copies are made
by the manager in the background: a call waits for one some time, and a later call finds it where it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from zonewise.ceph import crash_points
from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.crash_points import CrashPoint
from zonewise.ceph.decide import ids
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import ObjectType, VolumeKind
from zonewise.ceph.decide.model import CloneSource, CreateSpec, Discovered, VolumeLocation
from zonewise.ceph.decide.parameters import StorageClassParameters

COPY_PREFIX = "csi-copy-"
"""Of snapshots that only serve a copy."""

_COPIED_WITHIN_SECONDS = 50.0
_POLL_SECONDS = 0.05
_PLAIN = "plain"
"""The state of what is there and was never begun as a copy."""
_UNDER_WAY = frozenset({"pending", "in-progress"})
_NOT_YET = _UNDER_WAY | {"failed", "canceled"}
# A manager that dies while it begins a copy leaves a directory of which its successor makes an empty subvolume.
_BEGUN_ANEW = frozenset({"failed", "canceled", _PLAIN})


class CephFsBackend:
    kind = VolumeKind.CEPHFS

    def __init__(self, copied_within_seconds: float = _COPIED_WITHIN_SECONDS) -> None:
        self._copied_within_seconds = copied_within_seconds
        self._groups: set[tuple[str, str, str]] = set()

    def place(
        self,
        cluster: CephCluster,
        storage_class: StorageClassParameters,
        pool: str,
        data_pool: str,  # noqa: ARG002 - RBD's
        image: str,
    ) -> VolumeLocation:
        filesystem = _filesystem(cluster, storage_class.filesystem)
        pools = filesystem["data_pools"]
        chosen = pool or pools[0]
        if chosen not in pools:
            cluster.require_pool(chosen, "topologyConstrainedPools")
            raise CsiError(
                GrpcCode.INVALID_ARGUMENT,
                f"pool {chosen!r} is no data pool of file system {storage_class.filesystem}: those are {', '.join(pools)}",
            )
        number = dict(zip(pools, filesystem["data_pool_ids"], strict=True))[chosen]
        return VolumeLocation(chosen, number, image, storage_class.filesystem, storage_class.group)

    def journal_pool(self, cluster: CephCluster, storage_class: StorageClassParameters) -> str:
        return str(_filesystem(cluster, storage_class.filesystem)["metadata_pool"])

    def rounded(self, size_bytes: int) -> int:
        return size_bytes

    def make(self, cluster: CephCluster, wanted: CreateSpec) -> int:
        self._ensure_group(cluster, wanted.place)
        if wanted.source is None:
            return self._create(cluster, wanted)
        if wanted.thing is ObjectType.SNAPSHOT and wanted.source.place.pool_id == wanted.place.pool_id:
            return self._snap(cluster, wanted, wanted.source)
        return self._copy(cluster, wanted, wanted.source)

    def remove(self, cluster: CephCluster, place: VolumeLocation, origin: VolumeLocation | None = None) -> None:
        """With the snapshots that were to be copied from and never were to the end: its own, and that of its origin for it."""
        if place.parent:
            with _gone_is_fine():
                _manage(cluster, "subvolume snapshot rm", place, sub_name=place.parent, snap_name=place.image)
        with _gone_is_fine():
            self._clear_unfinished(cluster, place)
            self._remove_subvolume(cluster, place)
        if origin is not None:
            self._clear_passing(cluster, origin, COPY_PREFIX + place.image)

    def size(self, cluster: CephCluster, place: VolumeLocation) -> int | None:
        if place.parent and (snapshot := _snapshot(cluster, place)) is not None:
            return int(snapshot.get("size", 0))
        facts = _info(cluster, place)
        return _quota(facts) if facts is not None and facts.get("state", "complete") == "complete" else None

    def grow(self, cluster: CephCluster, place: VolumeLocation, size_bytes: int) -> int:
        now = self.size(cluster, place)
        if now is None:
            raise CsiError(GrpcCode.NOT_FOUND, f"there is no subvolume {place.image}")
        if now >= size_bytes:
            return now
        _manage(cluster, "subvolume resize", place, sub_name=place.image, new_size=str(size_bytes), no_shrink=True)
        crash_points.reach(CrashPoint.EXPAND_GROWN)
        return size_bytes

    def context(self, cluster: CephCluster, place: VolumeLocation) -> Mapping[str, str]:
        path = str(_manage(cluster, "subvolume getpath", place, sub_name=place.image)).strip()
        where = {"fsName": place.filesystem, "subvolumeName": place.image, "subvolumePath": path}
        return where | ({"pool": place.pool} if place.pool else {})

    def found(self, cluster: CephCluster, pool: str) -> Iterator[Discovered]:
        group = str(cluster.config.cephfs.get("subvolumeGroup", "csi"))
        for filesystem in _filesystems(cluster):
            pools = dict(zip(filesystem["data_pools"], filesystem["data_pool_ids"], strict=True))
            if pool in pools:
                where = VolumeLocation(pool, pools[pool], "", filesystem["name"], group)
                yield from _found_in(cluster, where, is_first=pool == filesystem["data_pools"][0])

    def clear(self, cluster: CephCluster, found: Discovered, leftover: str) -> None:
        with _gone_is_fine():
            _manage(cluster, "subvolume snapshot rm", found.place, sub_name=found.place.image, snap_name=leftover)

    def is_open(self, cluster: CephCluster, place: VolumeLocation) -> bool:  # noqa: ARG002 - the manager takes a repetition for what it is
        return False

    def is_being_made(self, cluster: CephCluster, place: VolumeLocation) -> bool:
        """The manager copies on without us, after its own restart too; what it gives up has another state."""
        return _clone_state(cluster, place) in _UNDER_WAY

    def kept(self, cluster: CephCluster, pool: str) -> list[str]:  # noqa: ARG002 - the manager itself removes such
        return []

    def purge(self, cluster: CephCluster, pool: str, name: str) -> None:
        """Nothing is kept."""

    def journal_named(self, cluster: CephCluster, journal_pool_id: int) -> Mapping[str, str]:
        known = (each["name"] for each in _filesystems(cluster) if each["metadata_pool_id"] == journal_pool_id)
        return {"fsName": next(known, "")}

    def _ensure_group(self, cluster: CephCluster, place: VolumeLocation) -> None:
        which = (cluster.name, place.filesystem, place.group)
        if which not in self._groups:
            _manage(cluster, "subvolumegroup create", place)
            self._groups.add(which)

    def _create(self, cluster: CephCluster, wanted: CreateSpec) -> int:
        """The manager takes a repetition for what it is."""
        place = wanted.place
        _manage(
            cluster,
            "subvolume create",
            place,
            sub_name=place.image,
            size=wanted.size_bytes,
            pool_layout=place.pool,
            namespace_isolated=True,
        )
        return wanted.size_bytes

    def _snap(self, cluster: CephCluster, wanted: CreateSpec, source: CloneSource) -> int:
        self._snap_source(cluster, source.place, source.place.image, wanted.place.image)
        return source.size_bytes

    def _copy(self, cluster: CephCluster, wanted: CreateSpec, source: CloneSource) -> int:
        place = wanted.place
        state = _clone_state(cluster, place)
        if state in _BEGUN_ANEW:
            self._remove_subvolume(cluster, place)
            state = ""
        parent = source.place.parent if _snapshot(cluster, source.place) is not None else ""
        passing = COPY_PREFIX + place.image
        if not state:
            self._begin_copy(cluster, place, source, parent, passing)
        crash_points.reach(CrashPoint.COPY_BEGUN)
        self._await_copy(cluster, place)
        crash_points.reach(CrashPoint.COPY_CLONED)
        size = self.grow(cluster, place, wanted.size_bytes)
        crash_points.reach(CrashPoint.COPY_GROWN)
        if not parent:
            self._clear_passing(cluster, source.place, passing)
        crash_points.reach(CrashPoint.COPY_CLEARED)
        return size

    def _begin_copy(
        self, cluster: CephCluster, place: VolumeLocation, source: CloneSource, parent: str, passing: str
    ) -> None:
        if not parent:
            self._snap_source(cluster, source.place, source.place.image, passing)
            crash_points.reach(CrashPoint.COPY_SNAPPED)
        try:
            _manage(
                cluster,
                "subvolume snapshot clone",
                source.place,
                sub_name=parent or source.place.image,
                snap_name=source.place.image if parent else passing,
                target_sub_name=place.image,
                target_group_name=place.group,
                pool_layout=place.pool,
            )
        except CsiError as error:
            if error.code is not GrpcCode.ALREADY_EXISTS:  # begun by somebody else meanwhile
                raise

    def _await_copy(self, cluster: CephCluster, place: VolumeLocation) -> None:
        deadline = time.monotonic() + self._copied_within_seconds
        while (state := _clone_state(cluster, place)) != "complete":
            if not state or state in _BEGUN_ANEW:
                raise CsiError(GrpcCode.INTERNAL, f"copying into {place.image} failed: its state is {state or 'gone'}")
            if time.monotonic() > deadline:
                raise CsiError(GrpcCode.ABORTED, f"the copy into {place.image} is still being made: try again")
            time.sleep(_POLL_SECONDS)

    def _clear_passing(self, cluster: CephCluster, place: VolumeLocation, passing: str) -> None:
        """The manager says that a copy is complete a moment before it lets go of the snapshot, and "try again" meanwhile."""
        deadline = time.monotonic() + self._copied_within_seconds
        while True:
            try:
                with _gone_is_fine():
                    _manage(cluster, "subvolume snapshot rm", place, sub_name=place.image, snap_name=passing)
            except CsiError as error:
                if error.code is not GrpcCode.UNAVAILABLE or time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_SECONDS)
            else:
                return

    def _clear_unfinished(self, cluster: CephCluster, place: VolumeLocation) -> None:
        """Else they would be retained with what they are of. Of a copy that the manager is still at it says "try again": its end clears it."""
        for snapshot in _passing(cluster, place):
            try:
                with _gone_is_fine():
                    _manage(cluster, "subvolume snapshot rm", place, sub_name=place.image, snap_name=snapshot)
            except CsiError as error:
                if error.code is not GrpcCode.UNAVAILABLE:
                    raise

    def _snap_source(self, cluster: CephCluster, place: VolumeLocation, subvolume: str, name: str) -> None:
        try:
            _manage(cluster, "subvolume snapshot create", place, sub_name=subvolume, snap_name=name)
        except CsiError as error:
            if error.code is not GrpcCode.ALREADY_EXISTS:
                raise

    def _remove_subvolume(self, cluster: CephCluster, place: VolumeLocation) -> None:
        """Its snapshots stay, as CSI wants it; the manager removes the rest with the last of them."""
        if _clone_state(cluster, place) in _UNDER_WAY:
            try:
                cluster.mgr(
                    "fs clone cancel", vol_name=place.filesystem, clone_name=place.image, group_name=place.group
                )
            except CsiError as error:
                if error.code not in {GrpcCode.NOT_FOUND, GrpcCode.INVALID_ARGUMENT}:  # gone, or complete meanwhile
                    raise
        force = _clone_state(cluster, place) in {"failed", "canceled"}
        how = {"force": True} if force else {"retain_snapshots": True}
        try:
            _manage(cluster, "subvolume rm", place, sub_name=place.image, **how)
        except CsiError as error:
            if error.code is not GrpcCode.INVALID_ARGUMENT:
                raise
            # What a manager that died left half made has no snapshots, and can't retain any.
            _manage(cluster, "subvolume rm", place, sub_name=place.image)


def _manage(cluster: CephCluster, command: str, place: VolumeLocation, **arguments: Any) -> Any:
    """A command of the `volumes` module, about something in the place's file system and group."""
    return cluster.mgr(f"fs {command}", vol_name=place.filesystem, group_name=place.group, **arguments)


def _filesystems(cluster: CephCluster) -> list[dict[str, Any]]:
    return list(cluster.mon("fs ls"))


def _filesystem(cluster: CephCluster, name: str) -> dict[str, Any]:
    known = {each["name"]: each for each in _filesystems(cluster)}
    if name not in known:
        there = ", ".join(sorted(known)) or "none"
        raise CsiError(
            GrpcCode.INVALID_ARGUMENT,
            f"parameter fsName: cluster {cluster.name} has no file system {name!r}; it has {there}",
        )
    return known[name]


def _info(cluster: CephCluster, place: VolumeLocation) -> dict[str, Any] | None:
    """None when there is no such subvolume, or not yet."""
    try:
        return dict(_manage(cluster, "subvolume info", place, sub_name=place.image))
    except CsiError as error:
        if error.code is GrpcCode.NOT_FOUND:
            return None
        # While a copy is being made the manager says "try again", which is also said of one that does not answer.
        if error.code is GrpcCode.UNAVAILABLE and _clone_state(cluster, place) in _NOT_YET:
            return None
        raise


def _quota(facts: Mapping[str, Any]) -> int:
    quota = facts.get("bytes_quota", 0)
    return int(quota) if isinstance(quota, int) else 0  # "infinite"


def _snapshot(cluster: CephCluster, place: VolumeLocation) -> dict[str, Any] | None:
    """What is known of a snapshot that lies in its source; None when it does not, or is no snapshot."""
    if not place.parent:
        return None
    try:
        return dict(_manage(cluster, "subvolume snapshot info", place, sub_name=place.parent, snap_name=place.image))
    except CsiError as error:
        if error.code is GrpcCode.NOT_FOUND:
            return None
        raise


def _passing(cluster: CephCluster, place: VolumeLocation) -> list[str]:
    """The snapshots of a subvolume that only serve copies; none where the manager can't open it, as when it is half made itself."""
    try:
        listed = _manage(cluster, "subvolume snapshot ls", place, sub_name=place.image)
    except CsiError as error:
        if error.code not in {GrpcCode.NOT_FOUND, GrpcCode.UNAVAILABLE, GrpcCode.INVALID_ARGUMENT}:
            raise
        return []
    return [each["name"] for each in listed if each["name"].startswith(COPY_PREFIX)]


def _clone_state(cluster: CephCluster, place: VolumeLocation) -> str:
    """pending, in-progress, complete, failed, canceled or plain; empty when there is no such subvolume."""
    try:
        facts = cluster.mgr(
            "fs clone status", vol_name=place.filesystem, clone_name=place.image, group_name=place.group
        )
    except CsiError as error:
        if error.code is GrpcCode.NOT_FOUND:
            return ""
        if error.code is GrpcCode.FAILED_PRECONDITION:
            return _PLAIN
        if error.code is GrpcCode.INVALID_ARGUMENT:  # what the manager says when it can't read its own notes just now
            raise CsiError(GrpcCode.UNAVAILABLE, str(error)) from error
        raise
    return str(facts["status"]["state"])


def _found_in(cluster: CephCluster, group: VolumeLocation, *, is_first: bool) -> Iterator[Discovered]:
    """`group`: a place without a name of its own. `is_first`: in its pool is also said what the manager tells no pool of."""
    try:
        listed = _manage(cluster, "subvolume ls", group)
    except CsiError as error:
        if error.code is GrpcCode.NOT_FOUND:
            return
        raise
    for entry in listed:
        named = ids.named(entry["name"])
        if named is None:
            continue
        place = replace(group, image=entry["name"])
        facts = _info(cluster, place)
        if facts is None:
            # A copy that is not finished: the manager tells neither its pool nor its snapshots, of which it has none.
            yield Discovered(place, *named)
            continue
        if facts.get("data_pool", group.pool) != group.pool:
            continue
        snapshots = [each["name"] for each in _manage(cluster, "subvolume snapshot ls", place, sub_name=place.image)]
        leftovers = tuple(name for name in snapshots if name.startswith(COPY_PREFIX))
        is_deleted = facts.get("state", "complete") == "snapshot-retained"
        if not is_deleted or (leftovers and is_first):
            yield Discovered(place, *named, leftovers, is_deleted)
        for name in snapshots:
            thing = ids.named(name)
            if thing is not None:
                yield Discovered(replace(place, image=name, parent=place.image), *thing)


@contextmanager
def _gone_is_fine() -> Iterator[None]:
    try:
        yield
    except CsiError as error:
        if error.code is not GrpcCode.NOT_FOUND:
            raise
