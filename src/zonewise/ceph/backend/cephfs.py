"""CephFS volumes: subvolumes of one file system, with their file data in the pool of their domain.

Everything is done by the manager's `volumes` module. A volume is the subvolume `csi-vol-...`. A snapshot is the
snapshot `csi-snap-...` of its source's subvolume and outlives it; only in another pool is it a copy. The manager copies
in the background: a call waits for some time, and a later call finds the copy where it is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from zonewise.ceph import crash_points
from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.crash_points import CrashPoint
from zonewise.ceph.decide import ids
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import ObjectType, VolumeKind
from zonewise.ceph.decide.model import CloneSource, CreateSpec, Discovered, VolumeLocation
from zonewise.ceph.decide.parameters import StorageClassParameters

COPY_PREFIX: Final = "csi-copy-"
"""Of temporary snapshots, made for a copy."""

_COPY_TIMEOUT_SECONDS: Final = 50.0
_POLL_SECONDS: Final = 0.05
_PLAIN: Final = "plain"
"""State of a subvolume that was not created as a copy."""
_IN_PROGRESS: Final = frozenset({"pending", "in-progress"})
_INCOMPLETE: Final = _IN_PROGRESS | {"failed", "canceled"}
# A manager that dies while it starts a copy leaves a directory, which its successor turns into an empty subvolume.
_RESTARTED: Final = frozenset({"failed", "canceled", _PLAIN})


class CephFsBackend:
    kind = VolumeKind.CEPHFS

    def __init__(self, copy_timeout_seconds: float = _COPY_TIMEOUT_SECONDS) -> None:
        self._copy_timeout_seconds = copy_timeout_seconds
        self._groups: set[tuple[str, str, str]] = set()

    def location(
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
                f"pool {chosen!r} is not a data pool of file system {storage_class.filesystem}, which has {', '.join(pools)}",
            )
        pool_id = dict(zip(pools, filesystem["data_pool_ids"], strict=True))[chosen]
        return VolumeLocation(chosen, pool_id, image, storage_class.filesystem, storage_class.group)

    def journal_pool(self, cluster: CephCluster, storage_class: StorageClassParameters) -> str:
        return str(_filesystem(cluster, storage_class.filesystem)["metadata_pool"])

    def round_size(self, size_bytes: int) -> int:
        return size_bytes

    def create(self, cluster: CephCluster, spec: CreateSpec) -> int:
        self._ensure_group(cluster, spec.location)
        if spec.source is None:
            return self._create(cluster, spec)
        if spec.object_type is ObjectType.SNAPSHOT and spec.source.location.pool_id == spec.location.pool_id:
            return self._snapshot_in_place(cluster, spec, spec.source)
        return self._copy(cluster, spec, spec.source)

    def remove(self, cluster: CephCluster, location: VolumeLocation, origin: VolumeLocation | None = None) -> None:
        """Also removes temporary snapshots of unfinished copies: its own, and that of its origin."""
        if location.parent:
            with _ignore_not_found():
                _fs(cluster, "subvolume snapshot rm", location, sub_name=location.parent, snap_name=location.image)
        with _ignore_not_found():
            self._remove_own_temporaries(cluster, location)
            self._remove_subvolume(cluster, location)
        if origin is not None:
            self._remove_temporary(cluster, origin, COPY_PREFIX + location.image)

    def size(self, cluster: CephCluster, location: VolumeLocation) -> int | None:
        if location.parent and (snapshot := _snapshot(cluster, location)) is not None:
            return int(snapshot.get("size", 0))
        facts = _info(cluster, location)
        return _quota(facts) if facts is not None and facts.get("state", "complete") == "complete" else None

    def expand(self, cluster: CephCluster, location: VolumeLocation, size_bytes: int) -> int:
        now = self.size(cluster, location)
        if now is None:
            raise CsiError(GrpcCode.NOT_FOUND, f"subvolume {location.image} does not exist")
        if now >= size_bytes:
            return now
        _fs(cluster, "subvolume resize", location, sub_name=location.image, new_size=str(size_bytes), no_shrink=True)
        crash_points.crash_if_armed(CrashPoint.EXPAND_GROWN)
        return size_bytes

    def volume_context(self, cluster: CephCluster, location: VolumeLocation) -> Mapping[str, str]:
        path = str(_fs(cluster, "subvolume getpath", location, sub_name=location.image)).strip()
        context = {"fsName": location.filesystem, "subvolumeName": location.image, "subvolumePath": path}
        return context | ({"pool": location.pool} if location.pool else {})

    def discover(self, cluster: CephCluster, pool: str) -> Iterator[Discovered]:
        group = str(cluster.config.cephfs.get("subvolumeGroup", "csi"))
        for filesystem in _filesystems(cluster):
            pools = dict(zip(filesystem["data_pools"], filesystem["data_pool_ids"], strict=True))
            if pool in pools:
                group_location = VolumeLocation(pool, pools[pool], "", filesystem["name"], group)
                yield from _discover_in(cluster, group_location, is_first=pool == filesystem["data_pools"][0])

    def remove_leftover(self, cluster: CephCluster, image: Discovered, leftover: str) -> None:
        with _ignore_not_found():
            _fs(cluster, "subvolume snapshot rm", image.location, sub_name=image.location.image, snap_name=leftover)

    def is_open(self, cluster: CephCluster, location: VolumeLocation) -> bool:  # noqa: ARG002 - for RBD
        return False

    def is_being_created(self, cluster: CephCluster, location: VolumeLocation) -> bool:
        """The manager continues a copy on its own, also after its restart; a copy that it gave up has another state."""
        return _clone_state(cluster, location) in _IN_PROGRESS

    def unused_trash(self, cluster: CephCluster, pool: str) -> list[str]:  # noqa: ARG002 - for RBD
        return []

    def purge(self, cluster: CephCluster, pool: str, name: str) -> None:
        """There is no trash."""

    def journal_parameter(self, cluster: CephCluster, journal_pool_id: int) -> Mapping[str, str]:
        names = (entry["name"] for entry in _filesystems(cluster) if entry["metadata_pool_id"] == journal_pool_id)
        return {"fsName": next(names, "")}

    def _ensure_group(self, cluster: CephCluster, location: VolumeLocation) -> None:
        key = (cluster.name, location.filesystem, location.group)
        if key not in self._groups:
            _fs(cluster, "subvolumegroup create", location)
            self._groups.add(key)

    def _create(self, cluster: CephCluster, spec: CreateSpec) -> int:
        """A repeated request to the manager is harmless."""
        location = spec.location
        _fs(
            cluster,
            "subvolume create",
            location,
            sub_name=location.image,
            size=spec.size_bytes,
            pool_layout=location.pool,
            namespace_isolated=True,
        )
        return spec.size_bytes

    def _snapshot_in_place(self, cluster: CephCluster, spec: CreateSpec, source: CloneSource) -> int:
        self._take_snapshot(cluster, source.location, source.location.image, spec.location.image)
        return source.size_bytes

    def _copy(self, cluster: CephCluster, spec: CreateSpec, source: CloneSource) -> int:
        location = spec.location
        state = _clone_state(cluster, location)
        if state in _RESTARTED:
            self._remove_subvolume(cluster, location)
            state = ""
        parent = source.location.parent if _snapshot(cluster, source.location) is not None else ""
        temporary = COPY_PREFIX + location.image
        if not state:
            self._begin_copy(cluster, location, source, parent, temporary)
        crash_points.crash_if_armed(CrashPoint.COPY_BEGUN)
        self._await_copy(cluster, location)
        crash_points.crash_if_armed(CrashPoint.COPY_CLONED)
        size = self.expand(cluster, location, spec.size_bytes)
        crash_points.crash_if_armed(CrashPoint.COPY_GROWN)
        if not parent:
            self._remove_temporary(cluster, source.location, temporary)
        crash_points.crash_if_armed(CrashPoint.COPY_CLEARED)
        return size

    def _begin_copy(
        self, cluster: CephCluster, location: VolumeLocation, source: CloneSource, parent: str, temporary: str
    ) -> None:
        if not parent:
            self._take_snapshot(cluster, source.location, source.location.image, temporary)
            crash_points.crash_if_armed(CrashPoint.COPY_SNAPPED)
        try:
            _fs(
                cluster,
                "subvolume snapshot clone",
                source.location,
                sub_name=parent or source.location.image,
                snap_name=source.location.image if parent else temporary,
                target_sub_name=location.image,
                target_group_name=location.group,
                pool_layout=location.pool,
            )
        except CsiError as error:
            if error.code is not GrpcCode.ALREADY_EXISTS:  # started by another call
                raise

    def _await_copy(self, cluster: CephCluster, location: VolumeLocation) -> None:
        deadline = time.monotonic() + self._copy_timeout_seconds
        while (state := _clone_state(cluster, location)) != "complete":
            if not state or state in _RESTARTED:
                raise CsiError(
                    GrpcCode.INTERNAL, f"the copy into {location.image} failed: its state is {state or 'gone'}"
                )
            if time.monotonic() > deadline:
                raise CsiError(GrpcCode.ABORTED, f"the copy into {location.image} is in progress: retry")
            time.sleep(_POLL_SECONDS)

    def _remove_temporary(self, cluster: CephCluster, location: VolumeLocation, temporary: str) -> None:
        """The manager answers EAGAIN for a moment after it has reported a copy as complete."""
        deadline = time.monotonic() + self._copy_timeout_seconds
        while True:
            try:
                with _ignore_not_found():
                    _fs(cluster, "subvolume snapshot rm", location, sub_name=location.image, snap_name=temporary)
            except CsiError as error:
                if error.code is not GrpcCode.UNAVAILABLE or time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_SECONDS)
            else:
                return

    def _remove_own_temporaries(self, cluster: CephCluster, location: VolumeLocation) -> None:
        """They would be retained with the subvolume. EAGAIN: the manager removes them at the end of the copy."""
        for snapshot in _temporary_snapshots(cluster, location):
            try:
                with _ignore_not_found():
                    _fs(cluster, "subvolume snapshot rm", location, sub_name=location.image, snap_name=snapshot)
            except CsiError as error:
                if error.code is not GrpcCode.UNAVAILABLE:
                    raise

    def _take_snapshot(self, cluster: CephCluster, location: VolumeLocation, subvolume: str, name: str) -> None:
        try:
            _fs(cluster, "subvolume snapshot create", location, sub_name=subvolume, snap_name=name)
        except CsiError as error:
            if error.code is not GrpcCode.ALREADY_EXISTS:
                raise

    def _remove_subvolume(self, cluster: CephCluster, location: VolumeLocation) -> None:
        """Snapshots are retained, as CSI requires; the manager removes the rest with the last of them."""
        if _clone_state(cluster, location) in _IN_PROGRESS:
            try:
                cluster.mgr(
                    "fs clone cancel",
                    vol_name=location.filesystem,
                    clone_name=location.image,
                    group_name=location.group,
                )
            except CsiError as error:
                if error.code not in {GrpcCode.NOT_FOUND, GrpcCode.INVALID_ARGUMENT}:  # removed or completed meanwhile
                    raise
        force = _clone_state(cluster, location) in {"failed", "canceled"}
        options = {"force": True} if force else {"retain_snapshots": True}
        try:
            _fs(cluster, "subvolume rm", location, sub_name=location.image, **options)
        except CsiError as error:
            if error.code is not GrpcCode.INVALID_ARGUMENT:
                raise
            # A subvolume that a dead manager left half created can't retain snapshots, and has none.
            _fs(cluster, "subvolume rm", location, sub_name=location.image)


def _fs(cluster: CephCluster, command: str, location: VolumeLocation, **arguments: Any) -> Any:
    """A command of the `volumes` module, in the location's file system and group."""
    return cluster.mgr(f"fs {command}", vol_name=location.filesystem, group_name=location.group, **arguments)


def _filesystems(cluster: CephCluster) -> list[dict[str, Any]]:
    return list(cluster.mon("fs ls"))


def _filesystem(cluster: CephCluster, name: str) -> dict[str, Any]:
    filesystems = {entry["name"]: entry for entry in _filesystems(cluster)}
    if name not in filesystems:
        present = ", ".join(sorted(filesystems)) or "none"
        raise CsiError(
            GrpcCode.INVALID_ARGUMENT,
            f"parameter fsName: cluster {cluster.name} has no file system {name!r}, only {present}",
        )
    return filesystems[name]


def _info(cluster: CephCluster, location: VolumeLocation) -> dict[str, Any] | None:
    """None if the subvolume does not exist, or is incomplete."""
    try:
        return dict(_fs(cluster, "subvolume info", location, sub_name=location.image))
    except CsiError as error:
        if error.code is GrpcCode.NOT_FOUND:
            return None
        # During a copy the manager answers EAGAIN, which maps to the same code as a manager that does not answer.
        if error.code is GrpcCode.UNAVAILABLE and _clone_state(cluster, location) in _INCOMPLETE:
            return None
        raise


def _quota(facts: Mapping[str, Any]) -> int:
    quota = facts.get("bytes_quota", 0)
    return int(quota) if isinstance(quota, int) else 0  # "infinite"


def _snapshot(cluster: CephCluster, location: VolumeLocation) -> dict[str, Any] | None:
    """A snapshot inside its source's subvolume; None if it is a copy, or not a snapshot."""
    if not location.parent:
        return None
    try:
        return dict(
            _fs(cluster, "subvolume snapshot info", location, sub_name=location.parent, snap_name=location.image)
        )
    except CsiError as error:
        if error.code is GrpcCode.NOT_FOUND:
            return None
        raise


def _temporary_snapshots(cluster: CephCluster, location: VolumeLocation) -> list[str]:
    """Temporary snapshots of a subvolume; none if the manager can't open it, for example half created."""
    try:
        listed = _fs(cluster, "subvolume snapshot ls", location, sub_name=location.image)
    except CsiError as error:
        if error.code not in {GrpcCode.NOT_FOUND, GrpcCode.UNAVAILABLE, GrpcCode.INVALID_ARGUMENT}:
            raise
        return []
    return [entry["name"] for entry in listed if entry["name"].startswith(COPY_PREFIX)]


def _clone_state(cluster: CephCluster, location: VolumeLocation) -> str:
    """pending, in-progress, complete, failed, canceled or plain; empty if the subvolume does not exist."""
    try:
        facts = cluster.mgr(
            "fs clone status", vol_name=location.filesystem, clone_name=location.image, group_name=location.group
        )
    except CsiError as error:
        if error.code is GrpcCode.NOT_FOUND:
            return ""
        if error.code is GrpcCode.FAILED_PRECONDITION:
            return _PLAIN
        if error.code is GrpcCode.INVALID_ARGUMENT:  # the manager can't read its metadata at the moment
            raise CsiError(GrpcCode.UNAVAILABLE, str(error)) from error
        raise
    return str(facts["status"]["state"])


def _discover_in(cluster: CephCluster, group: VolumeLocation, *, is_first: bool) -> Iterator[Discovered]:
    """`group`: a location without an image. `is_first`: also yield subvolumes for which the manager reports no pool."""
    try:
        listed = _fs(cluster, "subvolume ls", group)
    except CsiError as error:
        if error.code is GrpcCode.NOT_FOUND:
            return
        raise
    for entry in listed:
        parsed = ids.parse_image_name(entry["name"])
        if parsed is None:
            continue
        location = replace(group, image=entry["name"])
        facts = _info(cluster, location)
        if facts is None:
            # An unfinished copy: it has no snapshots, and the manager does not report its pool.
            yield Discovered(location, *parsed)
            continue
        if facts.get("data_pool", group.pool) != group.pool:
            continue
        snapshots = [
            snapshot["name"] for snapshot in _fs(cluster, "subvolume snapshot ls", location, sub_name=location.image)
        ]
        leftovers = tuple(name for name in snapshots if name.startswith(COPY_PREFIX))
        is_deleted = facts.get("state", "complete") == "snapshot-retained"
        if not is_deleted or (leftovers and is_first):
            yield Discovered(location, *parsed, leftovers, is_deleted)
        for name in snapshots:
            snapshot = ids.parse_image_name(name)
            if snapshot is not None:
                yield Discovered(replace(location, image=name, parent=location.image), *snapshot)


@contextmanager
def _ignore_not_found() -> Iterator[None]:
    try:
        yield
    except CsiError as error:
        if error.code is not GrpcCode.NOT_FOUND:
            raise
