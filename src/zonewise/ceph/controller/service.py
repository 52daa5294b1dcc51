"""CSI controller service: validates requests, converts them to plain values for `provisioner`, and builds the responses.

Checks follow the order of errors in the CSI specification. `decide.pool_choice` chooses the pool, `journal` stores the
result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from zonewise.api.names import CSI_TOPOLOGY_PREFIX
from zonewise.ceph.backend.cluster import CephCluster, CephClusters
from zonewise.ceph.controller.journal import Journal
from zonewise.ceph.controller.list_volumes import VolumeLister
from zonewise.ceph.controller.locks import ABANDONED_AFTER_SECONDS
from zonewise.ceph.controller.provisioner import Provisioner
from zonewise.ceph.decide import access, domains, ids, parameters, pool_choice
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import ObjectType, VolumeId, VolumeKind
from zonewise.ceph.decide.journal_entry import JournalEntry, JournalState
from zonewise.ceph.decide.model import TopologyRequirement, VolumeBackend
from zonewise.ceph.decide.parameters import StorageClassParameters
from zonewise.ceph.decide.request import VolumeRequest
from zonewise.ceph.spec import csi_pb2 as csi

DEFAULT_BYTES: Final = 1 << 30
LARGEST_BYTES: Final = 1 << 60
Announce = Callable[[Mapping[str, str], str, str], None]
"""Records an event on the claim: parameters of the request, a stable code, and a note."""

_CAPABILITIES: Final = (
    "CREATE_DELETE_VOLUME",
    "LIST_VOLUMES",
    "GET_CAPACITY",
    "CREATE_DELETE_SNAPSHOT",
    "LIST_SNAPSHOTS",
    "GET_SNAPSHOT",
    "CLONE_VOLUME",
    "EXPAND_VOLUME",
    "SINGLE_NODE_MULTI_WRITER",
)


class ControllerService:
    def __init__(
        self,
        clusters: CephClusters,
        backends: Mapping[VolumeKind, VolumeBackend],
        announce: Announce = lambda _parameters, _code, _note: None,
        hierarchy: tuple[str, ...] = parameters.HIERARCHY,
        abandoned_after_seconds: float = ABANDONED_AFTER_SECONDS,
    ) -> None:
        """`hierarchy`: short names of the domain labels, widest first. Another controller's deletion is only taken over after
        `abandoned_after_seconds`.
        """
        self._clusters = clusters
        self._announce = announce
        self._hierarchy = hierarchy
        self._provisioners = {kind: Provisioner(backend, abandoned_after_seconds) for kind, backend in backends.items()}
        self._lister = VolumeLister(clusters)

    def controller_get_capabilities(
        self, _request: csi.ControllerGetCapabilitiesRequest
    ) -> csi.ControllerGetCapabilitiesResponse:
        kind = csi.ControllerServiceCapability.RPC
        capabilities = [csi.ControllerServiceCapability(rpc=kind(type=name)) for name in _CAPABILITIES]
        return csi.ControllerGetCapabilitiesResponse(capabilities=capabilities)

    def create_volume(self, request: csi.CreateVolumeRequest) -> csi.CreateVolumeResponse:
        name = ids.check_name(request.name, "the volume")
        storage_class = parameters.parse_parameters(request.parameters, self._clusters.config, self._hierarchy)
        self._check_capabilities(storage_class.kind, request.volume_capabilities)
        required, limit = capacity_range(request.capacity_range)
        source = self._source(request.volume_content_source, storage_class)
        volume_request = VolumeRequest(
            name=name,
            object_type=ObjectType.VOLUME,
            storage_class=storage_class,
            required_bytes=required or (0 if source else min(DEFAULT_BYTES, limit or DEFAULT_BYTES)),
            limit_bytes=limit,
            requirement=requirement_of(request.accessibility_requirements, self._hierarchy),
            source=source,
        )
        provisioner = self._provisioner(storage_class.kind)
        cluster = self._clusters.connect(storage_class.cluster, request.secrets)
        journal, entry, choice = provisioner.create(cluster, volume_request)
        if choice is not None and choice.reason.code == pool_choice.PoolReason.UNKNOWN_DOMAIN:
            self._announce(request.parameters, choice.reason.code, choice.reason.sentence)
        volume = volume_of(journal, entry)
        context = {**provisioner.backend.volume_context(cluster, entry.location), **storage_class.for_node}
        context |= {"clusterID": cluster.name, "reason": entry.reason}
        volume.volume_context.update({**context, "domain": _domain_text(entry)})
        if request.HasField("volume_content_source"):
            volume.content_source.CopyFrom(request.volume_content_source)
        return csi.CreateVolumeResponse(volume=volume)

    def delete_volume(self, request: csi.DeleteVolumeRequest) -> csi.DeleteVolumeResponse:
        volume_id = self._id(request.volume_id, ObjectType.VOLUME, "volume_id")
        if volume_id is not None:
            self._provisioner(volume_id.kind).delete(
                self._clusters.connect(volume_id.cluster, request.secrets), volume_id
            )
        return csi.DeleteVolumeResponse()

    def validate_volume_capabilities(
        self, request: csi.ValidateVolumeCapabilitiesRequest
    ) -> csi.ValidateVolumeCapabilitiesResponse:
        volume_id = self._id(request.volume_id, ObjectType.VOLUME, "volume_id")
        if not request.volume_capabilities:
            raise CsiError(GrpcCode.INVALID_ARGUMENT, "volume_capabilities are missing")
        if volume_id is None:
            raise _not_found(request.volume_id)
        self._provisioner(volume_id.kind).require(self._clusters.connect(volume_id.cluster, request.secrets), volume_id)
        for capability in request.volume_capabilities:
            if problem := access.refusal(volume_id.kind, access.parse_capability(capability)):
                return csi.ValidateVolumeCapabilitiesResponse(message=problem)
        confirmed = csi.ValidateVolumeCapabilitiesResponse.Confirmed(
            volume_context=request.volume_context,
            volume_capabilities=request.volume_capabilities,
            parameters=request.parameters,
        )
        return csi.ValidateVolumeCapabilitiesResponse(confirmed=confirmed)

    def list_volumes(self, request: csi.ListVolumesRequest) -> csi.ListVolumesResponse:
        page, token = self._lister.page(ObjectType.VOLUME, request.max_entries, request.starting_token)
        entries = [csi.ListVolumesResponse.Entry(volume=volume_of(*entry)) for entry in page]
        return csi.ListVolumesResponse(entries=entries, next_token=token)

    def get_capacity(self, request: csi.GetCapacityRequest) -> csi.GetCapacityResponse:
        storage_class = parameters.parse_parameters(request.parameters, self._clusters.config, self._hierarchy)
        if request.volume_capabilities:
            for capability in request.volume_capabilities:
                if access.refusal(storage_class.kind, access.parse_capability(capability)):
                    return csi.GetCapacityResponse(available_capacity=0)
        cluster = self._clusters.own(storage_class.cluster)
        topology = domains.segments_of(request.accessible_topology.segments)
        states = cluster.states(pool_choice.pools_of(storage_class.rules))
        free, largest = pool_choice.capacity(storage_class, topology, states)
        response = csi.GetCapacityResponse(available_capacity=free)
        if largest:
            response.maximum_volume_size.value = min(largest, LARGEST_BYTES)
        return response

    def controller_expand_volume(
        self, request: csi.ControllerExpandVolumeRequest
    ) -> csi.ControllerExpandVolumeResponse:
        volume_id = self._id(request.volume_id, ObjectType.VOLUME, "volume_id")
        if not request.HasField("capacity_range"):
            raise CsiError(GrpcCode.INVALID_ARGUMENT, "capacity_range is missing")
        required, limit = capacity_range(request.capacity_range)
        if volume_id is None:
            raise _not_found(request.volume_id)
        cluster = self._clusters.connect(volume_id.cluster, request.secrets)
        size = self._provisioner(volume_id.kind).expand(cluster, volume_id, required, limit)
        on_node = volume_id.kind is VolumeKind.RBD  # its device and file system have to grow; CephFS only has a quota
        return csi.ControllerExpandVolumeResponse(capacity_bytes=size, node_expansion_required=on_node)

    def create_snapshot(self, request: csi.CreateSnapshotRequest) -> csi.CreateSnapshotResponse:
        name = ids.check_name(request.name, "the snapshot")
        source = self._id(request.source_volume_id, ObjectType.VOLUME, "source_volume_id")
        if source is None:
            raise _not_found(request.source_volume_id)
        cluster = self._clusters.connect(source.cluster, request.secrets)
        provisioner = self._provisioner(source.kind)
        snapshot_request = VolumeRequest(
            name=name,
            object_type=ObjectType.SNAPSHOT,
            storage_class=self._snapshot_class(request.parameters, source, cluster),
            required_bytes=0,
            requirement=requirement_of(request.accessibility_requirements, self._hierarchy),
            source=source,
        )
        journal, entry, _ = provisioner.create(cluster, snapshot_request)
        return csi.CreateSnapshotResponse(snapshot=snapshot_of(journal, entry))

    def delete_snapshot(self, request: csi.DeleteSnapshotRequest) -> csi.DeleteSnapshotResponse:
        snapshot_id = self._id(request.snapshot_id, ObjectType.SNAPSHOT, "snapshot_id")
        if snapshot_id is not None:
            self._provisioner(snapshot_id.kind).delete(
                self._clusters.connect(snapshot_id.cluster, request.secrets), snapshot_id
            )
        return csi.DeleteSnapshotResponse()

    def list_snapshots(self, request: csi.ListSnapshotsRequest) -> csi.ListSnapshotsResponse:
        if request.snapshot_id:
            snapshot = self._snapshot(request.snapshot_id, request.secrets)
            if snapshot is None or request.source_volume_id not in {"", snapshot.source_volume_id}:
                return csi.ListSnapshotsResponse()
            return csi.ListSnapshotsResponse(entries=[csi.ListSnapshotsResponse.Entry(snapshot=snapshot)])
        source = request.source_volume_id

        def matches(entry: JournalEntry) -> bool:
            return not source or (entry.origin is not None and entry.origin.id == source)

        page, token = self._lister.page(ObjectType.SNAPSHOT, request.max_entries, request.starting_token, matches)
        entries = [csi.ListSnapshotsResponse.Entry(snapshot=snapshot_of(*entry)) for entry in page]
        return csi.ListSnapshotsResponse(entries=entries, next_token=token)

    def get_snapshot(self, request: csi.GetSnapshotRequest) -> csi.GetSnapshotResponse:
        if not request.snapshot_id:
            raise CsiError(GrpcCode.INVALID_ARGUMENT, "snapshot_id is missing")
        snapshot = self._snapshot(request.snapshot_id, request.secrets)
        if snapshot is None:
            raise _not_found(request.snapshot_id)
        return csi.GetSnapshotResponse(snapshot=snapshot)

    def _snapshot(self, snapshot_id: str, secrets: Mapping[str, str]) -> csi.Snapshot | None:
        parsed = ids.parse_volume_id(snapshot_id)
        if (
            parsed is None
            or parsed.object_type is not ObjectType.SNAPSHOT
            or parsed.cluster not in self._clusters.config.clusters
        ):
            return None
        located = self._provisioner(parsed.kind).find(self._clusters.connect(parsed.cluster, secrets), parsed)
        if located is None or located[1].state is not JournalState.READY:
            return None
        return snapshot_of(*located)

    def _provisioner(self, kind: VolumeKind) -> Provisioner:
        if kind not in self._provisioners:
            raise CsiError(GrpcCode.UNIMPLEMENTED, f"this driver was started without support for {kind}")
        return self._provisioners[kind]

    def _check_capabilities(self, kind: VolumeKind, capabilities: Iterable[csi.VolumeCapability]) -> None:
        accesses = [access.parse_capability(capability) for capability in capabilities]
        if not accesses:
            raise CsiError(GrpcCode.INVALID_ARGUMENT, "volume_capabilities are missing")
        for requested in accesses:
            if problem := access.refusal(kind, requested):
                raise CsiError(GrpcCode.INVALID_ARGUMENT, problem)

    def _source(self, content: csi.VolumeContentSource, storage_class: StorageClassParameters) -> VolumeId | None:
        kind = content.WhichOneof("type")
        if kind is None:
            return None
        is_snapshot = kind == "snapshot"
        text = content.snapshot.snapshot_id if is_snapshot else content.volume.volume_id
        if not text:
            raise CsiError(GrpcCode.INVALID_ARGUMENT, "the content source has no volume_id or snapshot_id")
        source = ids.parse_volume_id(text)
        if source is None or source.object_type is not (ObjectType.SNAPSHOT if is_snapshot else ObjectType.VOLUME):
            raise _not_found(text)
        if source.kind is not storage_class.kind or source.cluster != storage_class.cluster:
            raise CsiError(
                GrpcCode.INVALID_ARGUMENT,
                "the content source is of another kind or Ceph cluster than the StorageClass: use a matching class",
            )
        return source

    def _id(self, text: str, object_type: ObjectType, field: str) -> VolumeId | None:
        """None if it is not an id of this driver."""
        if not text:
            raise CsiError(GrpcCode.INVALID_ARGUMENT, f"{field} is missing")
        parsed = ids.parse_volume_id(text)
        return parsed if parsed is not None and parsed.object_type is object_type else None

    def _snapshot_class(
        self, given: Mapping[str, str], source: VolumeId, cluster: CephCluster
    ) -> StorageClassParameters:
        """Parameters of a VolumeSnapshotClass: only the copy's location, since the journal is that of the volume."""
        copy_parameters = {
            key: value for key, value in given.items() if key in {"cloneDomain", "topologyConstrainedPools"}
        }
        for key, value in given.items():
            if key == "clusterID" and value != source.cluster:
                raise CsiError(
                    GrpcCode.INVALID_ARGUMENT,
                    f"parameter clusterID is {value[:80]!r}, but the volume is in cluster {source.cluster!r}",
                )
            if key not in copy_parameters and key not in {"clusterID", "pool", "type", "fsName"} and "/" not in key:
                raise CsiError(
                    GrpcCode.INVALID_ARGUMENT, f"parameter {key[:80]} is not supported in a VolumeSnapshotClass"
                )
        cluster.require_own(source)
        base = {
            "clusterID": source.cluster,
            "type": "rbd" if source.kind is VolumeKind.RBD else "cephfs",
            **self._provisioner(source.kind).backend.journal_parameter(cluster, source.journal_pool_id),
        }
        return parameters.parse_parameters({**base, **copy_parameters}, self._clusters.config, self._hierarchy)


def capacity_range(capacity: csi.CapacityRange) -> tuple[int, int]:
    required, limit = capacity.required_bytes, capacity.limit_bytes
    if required < 0 or limit < 0:
        raise CsiError(GrpcCode.INVALID_ARGUMENT, "required_bytes and limit_bytes must not be negative")
    if limit and required > limit:
        raise CsiError(GrpcCode.OUT_OF_RANGE, f"{required} bytes are required, more than the limit of {limit}")
    if required > LARGEST_BYTES:
        raise CsiError(GrpcCode.OUT_OF_RANGE, f"{required} bytes are required: the largest volume has {LARGEST_BYTES}")
    return required, limit


def requirement_of(requirement: csi.TopologyRequirement, names: Sequence[str]) -> TopologyRequirement:
    """`names`: short names of the domain labels."""
    return TopologyRequirement(tuple(_terms(requirement.requisite, names)), tuple(_terms(requirement.preferred, names)))


def _terms(topologies: Iterable[csi.Topology], names: Sequence[str]) -> Iterator[domains.Segments]:
    for topology in topologies:
        if key := domains.unknown_key(topology.segments, names):
            known = ", ".join(f"{CSI_TOPOLOGY_PREFIX}{name}" for name in names)
            raise CsiError(GrpcCode.INVALID_ARGUMENT, f"topology key {key[:80]!r} is not supported: use {known}")
        yield domains.segments_of(topology.segments, names)


def volume_of(journal: Journal, entry: JournalEntry) -> csi.Volume:
    volume = csi.Volume(volume_id=journal.id_of(entry), capacity_bytes=entry.size_bytes)
    for segments in domains.accessible_topology(entry.domain):
        volume.accessible_topology.add().segments.update(segments)
    if entry.origin is not None:
        is_snapshot = ".snap." in entry.origin.id
        if is_snapshot:
            volume.content_source.snapshot.snapshot_id = entry.origin.id
        else:
            volume.content_source.volume.volume_id = entry.origin.id
    return volume


def snapshot_of(journal: Journal, entry: JournalEntry) -> csi.Snapshot:
    snapshot = csi.Snapshot(
        snapshot_id=journal.id_of(entry),
        source_volume_id=entry.origin.id if entry.origin is not None else "",
        size_bytes=entry.size_bytes,
        ready_to_use=True,
    )
    snapshot.creation_time.seconds = entry.created_seconds
    return snapshot


def _domain_text(entry: JournalEntry) -> str:
    return ",".join(f"{name}={value}" for name, value in entry.domain)


def _not_found(text: str) -> CsiError:
    return CsiError(GrpcCode.NOT_FOUND, f"{text[:160]!r} does not exist")
