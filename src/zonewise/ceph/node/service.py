"""CSI's Node service: volumes staged, published, grown, measured and taken away on this machine.

Every call looks at what the kernel has and does what is missing. What was intended is in `stages`, so the process may be killed at
any moment: volumes stay mounted, and its successor goes on from there. Two calls for one volume never run at once: the second is told
to try again, as the specification asks.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from zonewise.ceph.crash_points import CrashPoint, reach
from zonewise.ceph.decide import access, ids
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import VolumeKind
from zonewise.ceph.node import filesystems, host_command, mounts
from zonewise.ceph.node.cephfs_stage import CephFsStager
from zonewise.ceph.node.publish import PublishTargets
from zonewise.ceph.node.rbd_stage import RbdStager
from zonewise.ceph.node.stage_records import StageRecord, StageRecords
from zonewise.ceph.node.volume_stats import VolumeStats
from zonewise.ceph.spec import csi_pb2 as csi
from zonewise.errors import ZonewiseError

if TYPE_CHECKING:
    from zonewise.ceph.backend.cluster import CephCluster, CephClusters

_CAPABILITIES = (
    csi.NodeServiceCapability.RPC.STAGE_UNSTAGE_VOLUME,
    csi.NodeServiceCapability.RPC.GET_VOLUME_STATS,
    csi.NodeServiceCapability.RPC.EXPAND_VOLUME,
    csi.NodeServiceCapability.RPC.SINGLE_NODE_MULTI_WRITER,
    csi.NodeServiceCapability.RPC.GET_VOLUME_HEALTH,
)
_LONGEST_TEXT = 4096  # of a path, by the kernel


class NodeService:
    def __init__(
        self,
        node_id: str,
        clusters: CephClusters,
        stages: StageRecords,
        images: RbdStager,
        files: CephFsStager,
        topology: Callable[[], Mapping[str, str]],
        max_volumes: int = 0,
    ) -> None:
        self._node_id = node_id
        self._clusters = clusters
        self._stages = stages
        self._images = images
        self._files = files
        self._topology = topology
        self._max_volumes = max_volumes
        self._targets = PublishTargets(stages, images)
        self._looks = VolumeStats()
        self._busy: set[str] = set()
        self._busy_lock = threading.Lock()

    def headers(self, method: str) -> tuple[tuple[str, str], ...]:
        """How this node reaches volumes, said with NodeGetInfo.

        Not as a segment of its topology: kubelet makes a node label of it and refuses the driver when the value changes later.
        """
        if method != "NodeGetInfo":
            return ()
        return (("zonewise-rbd-mapper", self._images.mapper.name), ("zonewise-cephfs-client", self._files.client.value))

    def node_get_info(self, _request: csi.NodeGetInfoRequest) -> csi.NodeGetInfoResponse:
        return csi.NodeGetInfoResponse(
            node_id=self._node_id,
            max_volumes_per_node=self._max_volumes,
            accessible_topology=csi.Topology(segments=dict(self._topology())),
        )

    def node_get_capabilities(self, _request: csi.NodeGetCapabilitiesRequest) -> csi.NodeGetCapabilitiesResponse:
        return csi.NodeGetCapabilitiesResponse(
            capabilities=[
                csi.NodeServiceCapability(rpc=csi.NodeServiceCapability.RPC(type=each)) for each in _CAPABILITIES
            ]
        )

    def node_stage_volume(self, request: csi.NodeStageVolumeRequest) -> csi.NodeStageVolumeResponse:
        _require(request, "volume_id", "staging_target_path", "volume_capability")
        wanted = access.read(request.volume_capability)
        identity = _identity(request.volume_id)
        if refusal := access.refusal(identity.kind, wanted):
            raise CsiError(GrpcCode.INVALID_ARGUMENT, refusal)
        with self._turn(request.volume_id):
            before = self._stages.get(request.volume_id)
            if before is not None and (before.path, before.access) != (request.staging_target_path, wanted):
                self._give_up(before)
                before = None
            cluster = self._clusters.connect(identity.cluster, request.secrets)
            context = dict(request.volume_context)
            stage = before or self._intend(cluster, identity, request, wanted, context.get("mounter", ""))
            directory = self._stages.put(stage)
            reach(CrashPoint.STAGE_NOTED)
            self._volumes(stage).stage(cluster, stage, directory, context)
        return csi.NodeStageVolumeResponse()

    def node_unstage_volume(self, request: csi.NodeUnstageVolumeRequest) -> csi.NodeUnstageVolumeResponse:
        _require(request, "volume_id", "staging_target_path")
        with self._turn(request.volume_id):
            stage = self._stages.get(request.volume_id)
            if stage is None or mounts.where(stage.path) != mounts.where(request.staging_target_path):
                if self._targets.has_mount(request.volume_id, request.staging_target_path):
                    mounts.unmount(request.staging_target_path)
                return csi.NodeUnstageVolumeResponse()
            self._targets.require_none(stage)
            self._unstage(stage)
        return csi.NodeUnstageVolumeResponse()

    def node_publish_volume(self, request: csi.NodePublishVolumeRequest) -> csi.NodePublishVolumeResponse:
        _require(request, "volume_id", "target_path", "volume_capability")
        wanted = access.read(request.volume_capability)
        if not request.staging_target_path:
            raise CsiError(GrpcCode.FAILED_PRECONDITION, "staging_target_path is missing: volumes are staged first")
        with self._turn(request.volume_id):
            stage = self._staged(request.volume_id)
            if mounts.where(stage.path) != mounts.where(request.staging_target_path):
                raise CsiError(GrpcCode.FAILED_PRECONDITION, f"volume {stage.volume} is staged at {stage.path}")
            if wanted.is_block != stage.access.is_block:
                raise CsiError(
                    GrpcCode.INVALID_ARGUMENT, f"volume {stage.volume} was staged as the other of mount and block"
                )
            self._targets.publish(stage, request.target_path, wanted, read_only=request.readonly or wanted.is_read_only)
        return csi.NodePublishVolumeResponse()

    def node_unpublish_volume(self, request: csi.NodeUnpublishVolumeRequest) -> csi.NodeUnpublishVolumeResponse:
        _require(request, "volume_id", "target_path")
        with self._turn(request.volume_id):
            self._targets.unpublish(request.volume_id, request.target_path)
        return csi.NodeUnpublishVolumeResponse()

    def node_expand_volume(self, request: csi.NodeExpandVolumeRequest) -> csi.NodeExpandVolumeResponse:
        _require(request, "volume_id", "volume_path")
        with self._turn(request.volume_id):
            stage = self._at(request.volume_id, request.volume_path)
            if stage.kind is VolumeKind.CEPHFS:  # the controller has raised the quota, which is all there is to do
                size = request.capacity_range.required_bytes
            else:
                size = self._images.expand(stage, self._stages.directory(stage.volume))
        return csi.NodeExpandVolumeResponse(capacity_bytes=size)

    def node_get_volume_stats(self, request: csi.NodeGetVolumeStatsRequest) -> csi.NodeGetVolumeStatsResponse:
        _require(request, "volume_id", "volume_path")
        stage = self._at(request.volume_id, request.volume_path)
        unit = csi.VolumeUsage.Unit
        if stage.access.is_block:
            device = self._images.device(stage, self._stages.directory(stage.volume))
            size = filesystems.device_bytes(device) if device is not None else 0
            return csi.NodeGetVolumeStatsResponse(usage=[csi.VolumeUsage(total=size, unit=unit.BYTES)])
        with _answering():
            found = self._looks.usage(request.volume_path)
        usage = [
            csi.VolumeUsage(
                total=found.f_blocks * found.f_frsize,
                available=found.f_bavail * found.f_frsize,
                used=(found.f_blocks - found.f_bfree) * found.f_frsize,
                unit=unit.BYTES,
            )
        ]
        if stage.kind is VolumeKind.RBD:  # CephFS has as many inodes as are asked for
            used = found.f_files - found.f_ffree
            usage.append(csi.VolumeUsage(total=found.f_files, available=found.f_ffree, used=used, unit=unit.INODES))
        return csi.NodeGetVolumeStatsResponse(usage=usage)

    def node_get_volume_health(self, request: csi.NodeGetVolumeHealthRequest) -> csi.NodeGetVolumeHealthResponse:
        _require(request, "volume_id")
        stage = self._stages.get(request.volume_id)
        if stage is None:
            raise CsiError(GrpcCode.NOT_FOUND, f"volume {request.volume_id} is not staged on this node")
        health = csi.VolumeHealth(volume_id=stage.volume)
        for reason, sentence in self._troubles(stage):
            health.health_statuses.add(status=csi.VolumeHealthErrorType.INACCESSIBLE, reason=reason, message=sentence)
        return csi.NodeGetVolumeHealthResponse(volume_health=health)

    def _troubles(self, stage: StageRecord) -> Iterator[tuple[str, str]]:
        carrier = self._volumes(stage).trouble(stage, self._stages.directory(stage.volume))
        if carrier:
            yield "CarrierEnded", carrier
            return
        if stage.access.is_block:
            return
        mount = mounts.at(stage.path)
        if mount is None:
            yield "NotMounted", f"nothing is mounted at {stage.path}"
        elif mount.read_only and not stage.access.is_read_only and "ro" not in stage.access.flags:
            yield "ReadOnly", "its file system became read-only, as it does when writes fail"
        else:
            try:
                self._looks.usage(stage.path)
            except TimeoutError:
                yield "NoAnswer", "its file system does not answer: is the Ceph cluster reachable from this node?"
            except OSError as error:
                yield "Broken", f"its file system answers with an error: {error.strerror}"

    def _unstage(self, stage: StageRecord) -> None:
        self._volumes(stage).unstage(stage, self._stages.directory(stage.volume))
        reach(CrashPoint.UNSTAGE_UNMAPPED)
        self._stages.drop(stage.volume)

    def _give_up(self, stage: StageRecord) -> None:
        """A stage that came to nothing must not stand in the way of one that asks otherwise: nobody need unstage it."""
        mounted = any(mounts.at(path) is not None for path in (stage.path, *stage.targets))
        if mounted or (
            stage.access.is_block and self._images.device(stage, self._stages.directory(stage.volume)) is not None
        ):
            raise CsiError(
                GrpcCode.ALREADY_EXISTS,
                f"volume {stage.volume} is staged at {stage.path} as {stage.access.mode}: unstage it first",
            )
        self._unstage(stage)

    def _intend(
        self,
        cluster: CephCluster,
        identity: ids.VolumeId,
        request: csi.NodeStageVolumeRequest,
        wanted: access.VolumeAccess,
        mounter: str,
    ) -> StageRecord:
        cluster.require_own(identity)
        pool = ""
        if identity.kind is VolumeKind.RBD:
            pool = cluster.pool_name(identity.pool_id) or ""
            if not pool:
                raise CsiError(GrpcCode.NOT_FOUND, f"the pool of volume {request.volume_id} does not exist any more")
        return StageRecord(
            volume=request.volume_id,
            kind=identity.kind,
            path=request.staging_target_path,
            access=wanted,
            pool=pool,
            image=identity.image,
            mapper=self._images.mapper_named(mounter).name if identity.kind is VolumeKind.RBD else "",
        )

    def _volumes(self, stage: StageRecord) -> RbdStager | CephFsStager:
        return self._images if stage.kind is VolumeKind.RBD else self._files

    def _staged(self, volume: str) -> StageRecord:
        stage = self._stages.get(volume)
        if stage is None:
            if ids.parse(volume) is None:
                raise CsiError(GrpcCode.NOT_FOUND, f"there is no volume {volume}")
            raise CsiError(GrpcCode.FAILED_PRECONDITION, f"volume {volume} is not staged on this node")
        return stage

    def _at(self, volume: str, path: str) -> StageRecord:
        """The stage of a volume that is at this path, or NOT_FOUND."""
        stage = self._stages.get(volume)
        if stage is None:
            raise CsiError(GrpcCode.NOT_FOUND, f"volume {volume} is not staged on this node")
        ours = {mounts.where(each) for each in (stage.path, *stage.targets)}
        here = mounts.where(path)
        is_there = mounts.at(here) is not None or (stage.access.is_block and here == mounts.where(stage.path))
        if here not in ours or not is_there:
            raise CsiError(GrpcCode.NOT_FOUND, f"volume {volume} is not at {path}")
        return stage

    @contextmanager
    def _turn(self, volume: str) -> Iterator[None]:
        with self._busy_lock:
            if volume in self._busy:
                raise CsiError(GrpcCode.ABORTED, f"another call for volume {volume} is under way: try again")
            self._busy.add(volume)
        try:
            with _answering():
                yield
        finally:
            with self._busy_lock:
                self._busy.discard(volume)


@contextmanager
def _answering() -> Iterator[None]:
    """What programs and the kernel refuse, as an answer."""
    try:
        yield
    except CsiError:
        raise
    except (host_command.CommandTimeoutError, TimeoutError) as error:
        raise CsiError(GrpcCode.UNAVAILABLE, str(error) or "the volume does not answer") from error
    except filesystems.FilesystemError as error:
        raise CsiError(GrpcCode.FAILED_PRECONDITION, str(error)) from error
    except ZonewiseError as error:
        raise CsiError(GrpcCode.INTERNAL, str(error)) from error
    except OSError as error:
        dead = error.errno in {errno.EIO, errno.ENOTCONN, errno.ESHUTDOWN}
        raise CsiError(GrpcCode.UNAVAILABLE if dead else GrpcCode.INTERNAL, str(error)) from error


def _identity(volume: str) -> ids.VolumeId:
    identity = ids.parse(volume)
    if identity is None:
        raise CsiError(GrpcCode.NOT_FOUND, f"there is no volume {volume}")
    return identity


def _require(request: Any, *fields: str) -> None:
    for field in fields:
        value = getattr(request, field)
        if not isinstance(value, str):
            if not request.HasField(field):
                raise CsiError(GrpcCode.INVALID_ARGUMENT, f"{field} is missing")
            continue
        if not value:
            raise CsiError(GrpcCode.INVALID_ARGUMENT, f"{field} is missing")
        if "\0" in value or len(value) > _LONGEST_TEXT:
            raise CsiError(
                GrpcCode.INVALID_ARGUMENT, f"{field} has a zero in it, or more than {_LONGEST_TEXT} characters"
            )
        if field.endswith("target_path") and (not value.startswith("/") or ".." in value.split("/")):
            raise CsiError(GrpcCode.INVALID_ARGUMENT, f"{field} must be an absolute path without '..'")
