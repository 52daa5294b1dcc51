"""CSI node service: stage, publish, expand, measure and unstage volumes on this node.

Every call compares the request with the kernel's state and does what is missing. The intent is in `stage_records`, so
the process may be killed at any time: volumes stay mounted, and its successor continues. Two calls for one volume never
run at the same time: the second gets ABORTED, as the CSI specification requires.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from zonewise.ceph.crash_points import CrashPoint, crash_if_armed
from zonewise.ceph.decide import access, ids
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import VolumeKind
from zonewise.ceph.decide.node_request import parse_volume, require_fields
from zonewise.ceph.node import cgroups, filesystems, host_command, mounts
from zonewise.ceph.node.cephfs_stage import CephFsStager, choose_client
from zonewise.ceph.node.mappers import probe
from zonewise.ceph.node.publish import PublishTargets
from zonewise.ceph.node.rbd_stage import RbdStager
from zonewise.ceph.node.stage_records import StageRecord, StageRecords
from zonewise.ceph.node.volume_stats import VolumeStats
from zonewise.ceph.spec import csi_pb2 as csi
from zonewise.errors import ZonewiseError
from zonewise.log import get_logger

if TYPE_CHECKING:
    from zonewise.ceph.backend.cluster import CephCluster, CephClusters

_log = get_logger(__name__)

STATE_DIRECTORY: Final = Path("/var/lib/kubelet/plugins/ceph.zonewise.dev/node")
"""Below kubelet's directory, which is mounted with bidirectional propagation: mounts in it outlive the container."""
_CAPABILITIES: Final = (
    csi.NodeServiceCapability.RPC.STAGE_UNSTAGE_VOLUME,
    csi.NodeServiceCapability.RPC.GET_VOLUME_STATS,
    csi.NodeServiceCapability.RPC.EXPAND_VOLUME,
    csi.NodeServiceCapability.RPC.SINGLE_NODE_MULTI_WRITER,
    csi.NodeServiceCapability.RPC.GET_VOLUME_HEALTH,
)


class NodeService:
    def __init__(
        self,
        node_id: str,
        clusters: CephClusters,
        stages: StageRecords,
        rbd: RbdStager,
        cephfs: CephFsStager,
        topology: Callable[[], Mapping[str, str]],
        max_volumes: int = 0,
    ) -> None:
        self._node_id = node_id
        self._clusters = clusters
        self._stages = stages
        self._rbd = rbd
        self._cephfs = cephfs
        self._topology = topology
        self._max_volumes = max_volumes
        self._targets = PublishTargets(stages, rbd)
        self._stats = VolumeStats()
        self._busy: set[str] = set()
        self._busy_lock = threading.Lock()

    def headers(self, method: str) -> tuple[tuple[str, str], ...]:
        """Sends RBD mapper and CephFS client with NodeGetInfo.

        They are no topology segments: kubelet turns these into node labels and rejects the driver when a value changes
        later.
        """
        if method != "NodeGetInfo":
            return ()
        return (("zonewise-rbd-mapper", self._rbd.mapper.name), ("zonewise-cephfs-client", self._cephfs.client.value))

    def node_get_info(self, _request: csi.NodeGetInfoRequest) -> csi.NodeGetInfoResponse:
        return csi.NodeGetInfoResponse(
            node_id=self._node_id,
            max_volumes_per_node=self._max_volumes,
            accessible_topology=csi.Topology(segments=dict(self._topology())),
        )

    def node_get_capabilities(self, _request: csi.NodeGetCapabilitiesRequest) -> csi.NodeGetCapabilitiesResponse:
        return csi.NodeGetCapabilitiesResponse(
            capabilities=[
                csi.NodeServiceCapability(rpc=csi.NodeServiceCapability.RPC(type=name)) for name in _CAPABILITIES
            ]
        )

    def node_stage_volume(self, request: csi.NodeStageVolumeRequest) -> csi.NodeStageVolumeResponse:
        require_fields(request, "volume_id", "staging_target_path", "volume_capability")
        requested = access.parse_capability(request.volume_capability)
        volume_id = parse_volume(request.volume_id)
        if refusal := access.refusal(volume_id.kind, requested):
            raise CsiError(GrpcCode.INVALID_ARGUMENT, refusal)
        with self._exclusive(request.volume_id):
            before = self._stages.get(request.volume_id)
            if before is not None and (before.path, before.access) != (request.staging_target_path, requested):
                self._discard_stage(before)
                before = None
            cluster = self._clusters.connect(volume_id.cluster, request.secrets)
            context = dict(request.volume_context)
            stage = before or self._new_record(cluster, volume_id, request, requested, context.get("mounter", ""))
            # One that is recorded is not written again: kubelet repeats the call after a restart, also on a full disk.
            directory = self._stages.directory(stage.volume) if before else self._stages.put(stage)
            crash_if_armed(CrashPoint.STAGE_NOTED)
            self._stager(stage).stage(cluster, stage, directory, context)
        return csi.NodeStageVolumeResponse()

    def node_unstage_volume(self, request: csi.NodeUnstageVolumeRequest) -> csi.NodeUnstageVolumeResponse:
        require_fields(request, "volume_id", "staging_target_path")
        with self._exclusive(request.volume_id):
            stage = self._stages.get(request.volume_id) or self._salvaged(request)
            if stage is None or mounts.canonical_path(stage.path) != mounts.canonical_path(request.staging_target_path):
                if self._targets.has_mount(request.volume_id, request.staging_target_path):
                    mounts.unmount(request.staging_target_path)
                return csi.NodeUnstageVolumeResponse()
            self._targets.require_none(stage)
            self._unstage(stage)
        return csi.NodeUnstageVolumeResponse()

    def node_publish_volume(self, request: csi.NodePublishVolumeRequest) -> csi.NodePublishVolumeResponse:
        require_fields(request, "volume_id", "target_path", "volume_capability")
        requested = access.parse_capability(request.volume_capability)
        if not request.staging_target_path:
            raise CsiError(
                GrpcCode.FAILED_PRECONDITION, "staging_target_path is missing: the volume has to be staged first"
            )
        with self._exclusive(request.volume_id):
            stage = self._staged(request.volume_id)
            if mounts.canonical_path(stage.path) != mounts.canonical_path(request.staging_target_path):
                raise CsiError(
                    GrpcCode.FAILED_PRECONDITION,
                    f"volume {stage.volume} is staged at {stage.path}, not at the given staging_target_path",
                )
            if requested.is_block != stage.access.is_block:
                raise CsiError(
                    GrpcCode.INVALID_ARGUMENT,
                    f"volume {stage.volume} was staged as {'block' if stage.access.is_block else 'mount'}: unstage it first",
                )
            self._targets.publish(
                stage, request.target_path, requested, read_only=request.readonly or requested.is_read_only
            )
        return csi.NodePublishVolumeResponse()

    def node_unpublish_volume(self, request: csi.NodeUnpublishVolumeRequest) -> csi.NodeUnpublishVolumeResponse:
        require_fields(request, "volume_id", "target_path")
        with self._exclusive(request.volume_id):
            self._targets.unpublish(request.volume_id, request.target_path)
        return csi.NodeUnpublishVolumeResponse()

    def node_expand_volume(self, request: csi.NodeExpandVolumeRequest) -> csi.NodeExpandVolumeResponse:
        require_fields(request, "volume_id", "volume_path")
        with self._exclusive(request.volume_id):
            stage = self._record_at(request.volume_id, request.volume_path)
            if stage.kind is VolumeKind.CEPHFS:  # the controller has raised the quota already
                size = request.capacity_range.required_bytes
            else:
                size = self._rbd.expand(stage, self._stages.directory(stage.volume))
        return csi.NodeExpandVolumeResponse(capacity_bytes=size)

    def node_get_volume_stats(self, request: csi.NodeGetVolumeStatsRequest) -> csi.NodeGetVolumeStatsResponse:
        require_fields(request, "volume_id", "volume_path")
        stage = self._record_at(request.volume_id, request.volume_path)
        unit = csi.VolumeUsage.Unit
        if stage.access.is_block:
            device = self._rbd.device(stage, self._stages.directory(stage.volume))
            size = filesystems.device_bytes(device) if device is not None else 0
            return csi.NodeGetVolumeStatsResponse(usage=[csi.VolumeUsage(total=size, unit=unit.BYTES)])
        with _csi_errors():
            stats = self._stats.usage(request.volume_path)
        usage = [
            csi.VolumeUsage(
                total=stats.f_blocks * stats.f_frsize,
                available=stats.f_bavail * stats.f_frsize,
                used=(stats.f_blocks - stats.f_bfree) * stats.f_frsize,
                unit=unit.BYTES,
            )
        ]
        if stage.kind is VolumeKind.RBD:  # CephFS has no fixed number of inodes
            used = stats.f_files - stats.f_ffree
            usage.append(csi.VolumeUsage(total=stats.f_files, available=stats.f_ffree, used=used, unit=unit.INODES))
        return csi.NodeGetVolumeStatsResponse(usage=usage)

    def node_get_volume_health(self, request: csi.NodeGetVolumeHealthRequest) -> csi.NodeGetVolumeHealthResponse:
        require_fields(request, "volume_id")
        stage = self._stages.get(request.volume_id)
        if stage is None:
            raise CsiError(GrpcCode.NOT_FOUND, f"volume {request.volume_id} is not staged on this node")
        health = csi.VolumeHealth(volume_id=stage.volume)
        for reason, sentence in self._health_problems(stage):
            health.health_statuses.add(status=csi.VolumeHealthErrorType.INACCESSIBLE, reason=reason, message=sentence)
        return csi.NodeGetVolumeHealthResponse(volume_health=health)

    def broken_volumes(self) -> dict[str, str]:
        """What is wrong with mounted volumes. Devices that dead daemons left without a mount are released."""
        broken = {}
        for stage in self._stages.all():
            directory = self._stages.directory(stage.volume)
            problem = self._stager(stage).problem(stage, directory)
            if not problem or stage.volume in self._busy:
                continue
            if any(mounts.at(path) is not None for path in (stage.path, *stage.targets)):
                broken[stage.volume] = problem
            elif stage.kind is VolumeKind.RBD:
                with suppress(CsiError), self._exclusive(stage.volume):
                    self._rbd.release(stage, directory)
        return broken

    def _health_problems(self, stage: StageRecord) -> Iterator[tuple[str, str]]:
        problem = self._stager(stage).problem(stage, self._stages.directory(stage.volume))
        if problem:
            yield "CarrierEnded", problem
            return
        if stage.access.is_block:
            return
        mount = mounts.at(stage.path)
        if mount is None:
            yield "NotMounted", f"nothing is mounted at {stage.path}: unstage the volume and stage it again"
        elif mount.read_only and not stage.access.is_read_only and "ro" not in stage.access.flags:
            yield (
                "ReadOnly",
                "its file system became read-only after failed writes: unstage the volume and stage it again",
            )
        else:
            try:
                self._stats.usage(stage.path)
            except TimeoutError:
                yield "NoAnswer", "its file system does not answer: check that this node reaches the Ceph cluster"
            except OSError as error:
                yield "Broken", f"its file system returns an error: {error.strerror}"

    def _unstage(self, stage: StageRecord) -> None:
        self._stager(stage).unstage(stage, self._stages.directory(stage.volume))
        crash_if_armed(CrashPoint.UNSTAGE_UNMAPPED)
        self._stages.drop(stage.volume)

    def _salvaged(self, request: csi.NodeUnstageVolumeRequest) -> StageRecord | None:
        """For a volume whose record is torn: enough to unmount it and to unmap it by any mapper that has it."""
        volume_id = ids.parse_volume_id(request.volume_id)
        if volume_id is None or not self._stages.is_torn(request.volume_id):
            return None
        self._targets.has_mount(request.volume_id, request.staging_target_path)  # raises for a foreign mount
        stage = StageRecord(
            volume=request.volume_id,
            kind=volume_id.kind,
            path=request.staging_target_path,
            access=access.VolumeAccess(access.AccessMode.UNKNOWN),
            image=volume_id.image,
        )
        return msgspec.structs.replace(stage, targets=self._targets.mounted(stage))

    def _discard_stage(self, stage: StageRecord) -> None:
        """Unstage a failed stage with other arguments. Raises ALREADY_EXISTS if the volume is in use."""
        mounted = any(mounts.at(path) is not None for path in (stage.path, *stage.targets))
        if mounted or (
            stage.access.is_block and self._rbd.device(stage, self._stages.directory(stage.volume)) is not None
        ):
            raise CsiError(
                GrpcCode.ALREADY_EXISTS,
                f"volume {stage.volume} is staged at {stage.path} as {stage.access.mode}: unstage it first",
            )
        self._unstage(stage)

    def _new_record(
        self,
        cluster: CephCluster,
        volume_id: ids.VolumeId,
        request: csi.NodeStageVolumeRequest,
        requested: access.VolumeAccess,
        mounter: str,
    ) -> StageRecord:
        cluster.require_own(volume_id)
        pool = ""
        if volume_id.kind is VolumeKind.RBD:
            pool = cluster.pool_name(volume_id.pool_id) or ""
            if not pool:
                raise CsiError(GrpcCode.NOT_FOUND, f"volume {request.volume_id}: its pool does not exist any more")
        return StageRecord(
            volume=request.volume_id,
            kind=volume_id.kind,
            path=request.staging_target_path,
            access=requested,
            pool=pool,
            image=volume_id.image,
            mapper=self._rbd.mapper_named(mounter).name if volume_id.kind is VolumeKind.RBD else "",
        )

    def _stager(self, stage: StageRecord) -> RbdStager | CephFsStager:
        return self._rbd if stage.kind is VolumeKind.RBD else self._cephfs

    def _staged(self, volume: str) -> StageRecord:
        stage = self._stages.get(volume)
        if stage is None:
            if ids.parse_volume_id(volume) is None:
                raise CsiError(GrpcCode.NOT_FOUND, f"volume {volume} does not exist")
            raise CsiError(GrpcCode.FAILED_PRECONDITION, f"volume {volume} is not staged on this node")
        return stage

    def _record_at(self, volume: str, path: str) -> StageRecord:
        """The record of a volume that is staged or published at this path. Raises NOT_FOUND."""
        stage = self._stages.get(volume)
        if stage is None:
            raise CsiError(GrpcCode.NOT_FOUND, f"volume {volume} is not staged on this node")
        paths = {mounts.canonical_path(known) for known in (stage.path, *stage.targets)}
        here = mounts.canonical_path(path)
        is_mounted = mounts.at(here) is not None or (
            stage.access.is_block and here == mounts.canonical_path(stage.path)
        )
        if here not in paths or not is_mounted:
            raise CsiError(GrpcCode.NOT_FOUND, f"volume {volume} is not mounted at {path}")
        return stage

    @contextmanager
    def _exclusive(self, volume: str) -> Iterator[None]:
        with self._busy_lock:
            if volume in self._busy:
                raise CsiError(GrpcCode.ABORTED, f"another call for volume {volume} is in progress: retry")
            self._busy.add(volume)
        try:
            with _csi_errors():
                yield
        finally:
            with self._busy_lock:
                self._busy.discard(volume)


@contextmanager
def _csi_errors() -> Iterator[None]:
    """Turns errors of programs and of the kernel into CsiErrors."""
    try:
        yield
    except CsiError:
        raise
    except (host_command.CommandTimeoutError, TimeoutError) as error:
        raise CsiError(
            GrpcCode.UNAVAILABLE,
            str(error) or "the volume does not answer: check that this node reaches the Ceph cluster",
        ) from error
    except filesystems.FilesystemError as error:
        raise CsiError(GrpcCode.FAILED_PRECONDITION, str(error)) from error
    except ZonewiseError as error:
        raise CsiError(GrpcCode.INTERNAL, str(error)) from error
    except OSError as error:
        dead = error.errno in {errno.EIO, errno.ENOTCONN, errno.ESHUTDOWN}
        raise CsiError(GrpcCode.UNAVAILABLE if dead else GrpcCode.INTERNAL, str(error)) from error


def build_node_service(
    clusters: CephClusters,
    node_id: str,
    topology: Callable[[], Mapping[str, str]],
    *,
    state_directory: Path = STATE_DIRECTORY,
    mapper: str = "auto",
    cephfs_client: str = "auto",
    daemon_cgroup: str = "",
    max_volumes: int = 0,
) -> NodeService:
    """Probes what this node can mount; "auto" takes the best."""
    cgroup = cgroups.prepare(Path(daemon_cgroup)) if daemon_cgroup else []
    choice = probe.probe_mapper(mapper, cgroup)
    _log.info("RBD mapper chosen", mapper=choice.mapper.name, reason=choice.reason)
    client, reason = choose_client(cephfs_client)
    _log.info("CephFS client chosen", client=client.value, reason=reason)
    stages = StageRecords(state_directory)
    staged = sum(1 for _ in stages.all())
    if staged:
        _log.info("volumes staged by an earlier process", volumes=staged)
    return NodeService(
        node_id,
        clusters,
        stages,
        RbdStager(choice.mapper, probe.all_mappers(cgroup)),
        CephFsStager(client, cgroup),
        topology,
        max_volumes,
    )
