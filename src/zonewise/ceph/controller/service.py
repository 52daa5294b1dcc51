"""The controller service: CSI's requests read into plain values, handed to `provisioning`, and answered.

What a request must have is checked here, in the order in which the specification lists the errors; where things are is decided by `pools` and
remembered by `journal`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from zonewise.api.names import CSI_TOPOLOGY_PREFIX
from zonewise.ceph.backend.cluster import CephCluster, CephClusters
from zonewise.ceph.controller import journal
from zonewise.ceph.controller import list_volumes as listing
from zonewise.ceph.controller.journal import Journal, JournalEntry
from zonewise.ceph.controller.locks import ABANDONED_AFTER_SECONDS
from zonewise.ceph.controller.provisioner import Provisioner
from zonewise.ceph.decide import access, domains, ids, parameters, pool_choice
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import ObjectType, VolumeId, VolumeKind
from zonewise.ceph.decide.model import TopologyRequirement, VolumeBackend
from zonewise.ceph.decide.parameters import StorageClassParameters
from zonewise.ceph.decide.request import VolumeRequest
from zonewise.ceph.spec import csi_pb2 as csi
from zonewise.log import get_logger

log = get_logger(__name__)

DEFAULT_BYTES = 1 << 30
LARGEST_BYTES = 1 << 60
Announce = Callable[[Mapping[str, str], str, str], None]
"""Parameters of the request, a stable code, and a sentence; for people who look at the claim."""

_CAN = (
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
        """`hierarchy`: short names of the domain labels, the widest first. A deletion that another controller began is left to it
        for `abandoned_after_seconds`.
        """
        self._clusters = clusters
        self._announce = announce
        self._hierarchy = hierarchy
        self._provisioners = {kind: Provisioner(backend, abandoned_after_seconds) for kind, backend in backends.items()}
        self._listing = listing.VolumeLister(clusters)

    def controller_get_capabilities(
        self, _request: csi.ControllerGetCapabilitiesRequest
    ) -> csi.ControllerGetCapabilitiesResponse:
        kind = csi.ControllerServiceCapability.RPC
        can = [csi.ControllerServiceCapability(rpc=kind(type=name)) for name in _CAN]
        return csi.ControllerGetCapabilitiesResponse(capabilities=can)

    def create_volume(self, request: csi.CreateVolumeRequest) -> csi.CreateVolumeResponse:
        name = ids.check_name(request.name, "the volume")
        storage_class = parameters.read(request.parameters, self._clusters.config, self._hierarchy)
        self._check_capabilities(storage_class.kind, request.volume_capabilities)
        required, limit = capacity_range(request.capacity_range)
        source = self._source(request.volume_content_source, storage_class)
        order = VolumeRequest(
            name=name,
            thing=ObjectType.VOLUME,
            storage_class=storage_class,
            required_bytes=required or (0 if source else min(DEFAULT_BYTES, limit or DEFAULT_BYTES)),
            limit_bytes=limit,
            requirement=requirement_of(request.accessibility_requirements, self._hierarchy),
            source=source,
        )
        provisioner = self._provisioner(storage_class.kind)
        cluster = self._clusters.connect(storage_class.cluster, request.secrets)
        written, entry, choice = provisioner.create(cluster, order)
        if choice is not None and choice.reason.code == pool_choice.PoolReason.UNKNOWN_DOMAIN:
            self._announce(request.parameters, choice.reason.code, choice.reason.sentence)
        volume = volume_of(written, entry)
        context = {**provisioner.backend.context(cluster, entry.place), **storage_class.for_node}
        context |= {"clusterID": cluster.name, "reason": entry.reason}
        volume.volume_context.update({**context, "domain": _domain_text(entry)})
        if request.HasField("volume_content_source"):
            volume.content_source.CopyFrom(request.volume_content_source)
        return csi.CreateVolumeResponse(volume=volume)

    def delete_volume(self, request: csi.DeleteVolumeRequest) -> csi.DeleteVolumeResponse:
        which = self._id(request.volume_id, ObjectType.VOLUME, "volume_id")
        if which is not None:
            self._provisioner(which.kind).delete(self._clusters.connect(which.cluster, request.secrets), which)
        return csi.DeleteVolumeResponse()

    def validate_volume_capabilities(
        self, request: csi.ValidateVolumeCapabilitiesRequest
    ) -> csi.ValidateVolumeCapabilitiesResponse:
        which = self._id(request.volume_id, ObjectType.VOLUME, "volume_id")
        if not request.volume_capabilities:
            raise CsiError(GrpcCode.INVALID_ARGUMENT, "volume_capabilities are missing")
        if which is None:
            raise _unknown(request.volume_id)
        self._provisioner(which.kind).require(self._clusters.connect(which.cluster, request.secrets), which)
        for capability in request.volume_capabilities:
            if problem := access.refusal(which.kind, access.read(capability)):
                return csi.ValidateVolumeCapabilitiesResponse(message=problem)
        confirmed = csi.ValidateVolumeCapabilitiesResponse.Confirmed(
            volume_context=request.volume_context,
            volume_capabilities=request.volume_capabilities,
            parameters=request.parameters,
        )
        return csi.ValidateVolumeCapabilitiesResponse(confirmed=confirmed)

    def list_volumes(self, request: csi.ListVolumesRequest) -> csi.ListVolumesResponse:
        page, token = self._listing.page(ObjectType.VOLUME, request.max_entries, request.starting_token)
        entries = [csi.ListVolumesResponse.Entry(volume=volume_of(*each)) for each in page]
        return csi.ListVolumesResponse(entries=entries, next_token=token)

    def get_capacity(self, request: csi.GetCapacityRequest) -> csi.GetCapacityResponse:
        storage_class = parameters.read(request.parameters, self._clusters.config, self._hierarchy)
        if request.volume_capabilities:
            for capability in request.volume_capabilities:
                if access.refusal(storage_class.kind, access.read(capability)):
                    return csi.GetCapacityResponse(available_capacity=0)
        cluster = self._clusters.own(storage_class.cluster)
        topology = domains.segments_of(request.accessible_topology.segments)
        states = cluster.states(pool_choice.needed(storage_class.rules))
        free, largest = pool_choice.capacity(storage_class, topology, states)
        response = csi.GetCapacityResponse(available_capacity=free)
        if largest:
            response.maximum_volume_size.value = min(largest, LARGEST_BYTES)
        return response

    def controller_expand_volume(
        self, request: csi.ControllerExpandVolumeRequest
    ) -> csi.ControllerExpandVolumeResponse:
        which = self._id(request.volume_id, ObjectType.VOLUME, "volume_id")
        if not request.HasField("capacity_range"):
            raise CsiError(GrpcCode.INVALID_ARGUMENT, "capacity_range is missing")
        required, limit = capacity_range(request.capacity_range)
        if which is None:
            raise _unknown(request.volume_id)
        cluster = self._clusters.connect(which.cluster, request.secrets)
        size = self._provisioner(which.kind).expand(cluster, which, required, limit)
        on_node = (
            which.kind is VolumeKind.RBD
        )  # the device and its file system must follow; a directory's quota need not
        return csi.ControllerExpandVolumeResponse(capacity_bytes=size, node_expansion_required=on_node)

    def create_snapshot(self, request: csi.CreateSnapshotRequest) -> csi.CreateSnapshotResponse:
        name = ids.check_name(request.name, "the snapshot")
        source = self._id(request.source_volume_id, ObjectType.VOLUME, "source_volume_id")
        if source is None:
            raise _unknown(request.source_volume_id)
        cluster = self._clusters.connect(source.cluster, request.secrets)
        provisioner = self._provisioner(source.kind)
        order = VolumeRequest(
            name=name,
            thing=ObjectType.SNAPSHOT,
            storage_class=self._snapshot_class(request.parameters, source, cluster),
            required_bytes=0,
            requirement=requirement_of(request.accessibility_requirements, self._hierarchy),
            source=source,
        )
        written, entry, _ = provisioner.create(cluster, order)
        return csi.CreateSnapshotResponse(snapshot=snapshot_of(written, entry))

    def delete_snapshot(self, request: csi.DeleteSnapshotRequest) -> csi.DeleteSnapshotResponse:
        which = self._id(request.snapshot_id, ObjectType.SNAPSHOT, "snapshot_id")
        if which is not None:
            self._provisioner(which.kind).delete(self._clusters.connect(which.cluster, request.secrets), which)
        return csi.DeleteSnapshotResponse()

    def list_snapshots(self, request: csi.ListSnapshotsRequest) -> csi.ListSnapshotsResponse:
        if request.snapshot_id:
            found = self._snapshot(request.snapshot_id, request.secrets)
            if found is None or request.source_volume_id not in {"", found.source_volume_id}:
                return csi.ListSnapshotsResponse()
            return csi.ListSnapshotsResponse(entries=[csi.ListSnapshotsResponse.Entry(snapshot=found)])
        source = request.source_volume_id

        def wanted(entry: JournalEntry) -> bool:
            return not source or (entry.origin is not None and entry.origin.id == source)

        page, token = self._listing.page(ObjectType.SNAPSHOT, request.max_entries, request.starting_token, wanted)
        entries = [csi.ListSnapshotsResponse.Entry(snapshot=snapshot_of(*each)) for each in page]
        return csi.ListSnapshotsResponse(entries=entries, next_token=token)

    def get_snapshot(self, request: csi.GetSnapshotRequest) -> csi.GetSnapshotResponse:
        if not request.snapshot_id:
            raise CsiError(GrpcCode.INVALID_ARGUMENT, "snapshot_id is missing")
        found = self._snapshot(request.snapshot_id, request.secrets)
        if found is None:
            raise _unknown(request.snapshot_id)
        return csi.GetSnapshotResponse(snapshot=found)

    def _snapshot(self, snapshot_id: str, secrets: Mapping[str, str]) -> csi.Snapshot | None:
        which = ids.parse(snapshot_id)
        if (
            which is None
            or which.thing is not ObjectType.SNAPSHOT
            or which.cluster not in self._clusters.config.clusters
        ):
            return None
        found = self._provisioner(which.kind).find(self._clusters.connect(which.cluster, secrets), which)
        if found is None or found[1].state is not journal.JournalState.READY:
            return None
        return snapshot_of(*found)

    def _provisioner(self, kind: VolumeKind) -> Provisioner:
        if kind not in self._provisioners:
            raise CsiError(GrpcCode.UNIMPLEMENTED, f"this driver was started without {kind}")
        return self._provisioners[kind]

    def _check_capabilities(self, kind: VolumeKind, capabilities: Iterable[csi.VolumeCapability]) -> None:
        asked = [access.read(each) for each in capabilities]
        if not asked:
            raise CsiError(GrpcCode.INVALID_ARGUMENT, "volume_capabilities are missing")
        for each in asked:
            if problem := access.refusal(kind, each):
                raise CsiError(GrpcCode.INVALID_ARGUMENT, problem)

    def _source(self, content: csi.VolumeContentSource, storage_class: StorageClassParameters) -> VolumeId | None:
        kind = content.WhichOneof("type")
        if kind is None:
            return None
        is_snapshot = kind == "snapshot"
        text = content.snapshot.snapshot_id if is_snapshot else content.volume.volume_id
        if not text:
            raise CsiError(GrpcCode.INVALID_ARGUMENT, "the content source has no id")
        which = ids.parse(text)
        if which is None or which.thing is not (ObjectType.SNAPSHOT if is_snapshot else ObjectType.VOLUME):
            raise _unknown(text)
        if which.kind is not storage_class.kind or which.cluster != storage_class.cluster:
            raise CsiError(
                GrpcCode.INVALID_ARGUMENT, "the content source is of another kind or cluster than the class asks for"
            )
        return which

    def _id(self, text: str, thing: ObjectType, field: str) -> VolumeId | None:
        """None for what can't be an id of ours, or of a cluster that nobody has configured for us."""
        if not text:
            raise CsiError(GrpcCode.INVALID_ARGUMENT, f"{field} is missing")
        which = ids.parse(text)
        return which if which is not None and which.thing is thing else None

    def _snapshot_class(
        self, said: Mapping[str, str], source: VolumeId, cluster: CephCluster
    ) -> StorageClassParameters:
        """A snapshot's class: where the copy goes, and nothing about journals, which is its volume's."""
        known = {key: value for key, value in said.items() if key in {"cloneDomain", "topologyConstrainedPools"}}
        for key, value in said.items():
            if key == "clusterID" and value != source.cluster:
                raise CsiError(
                    GrpcCode.INVALID_ARGUMENT, f"parameter clusterID: the volume is in cluster {source.cluster!r}"
                )
            if key not in known and key not in {"clusterID", "pool", "type", "fsName"} and "/" not in key:
                raise CsiError(GrpcCode.INVALID_ARGUMENT, f"parameter {key[:80]} is none of a snapshot class")
        cluster.require_own(source)
        base = {
            "clusterID": source.cluster,
            "type": "rbd" if source.kind is VolumeKind.RBD else "cephfs",
            **self._provisioner(source.kind).backend.journal_named(cluster, source.journal_pool_id),
        }
        return parameters.read({**base, **known}, self._clusters.config, self._hierarchy)


def capacity_range(asked: csi.CapacityRange) -> tuple[int, int]:
    required, limit = asked.required_bytes, asked.limit_bytes
    if required < 0 or limit < 0:
        raise CsiError(GrpcCode.INVALID_ARGUMENT, "a capacity can't be negative")
    if limit and required > limit:
        raise CsiError(GrpcCode.OUT_OF_RANGE, f"{required} bytes are required, and {limit} the limit")
    if required > LARGEST_BYTES:
        raise CsiError(GrpcCode.OUT_OF_RANGE, f"{required} bytes are more than any volume can have")
    return required, limit


def requirement_of(asked: csi.TopologyRequirement, names: Sequence[str]) -> TopologyRequirement:
    """`names`: of the domain labels."""
    return TopologyRequirement(tuple(_terms(asked.requisite, names)), tuple(_terms(asked.preferred, names)))


def _terms(topologies: Iterable[csi.Topology], names: Sequence[str]) -> Iterator[domains.Segments]:
    for topology in topologies:
        if key := domains.unreadable(topology.segments, names):
            known = ", ".join(f"{CSI_TOPOLOGY_PREFIX}{name}" for name in names)
            raise CsiError(
                GrpcCode.INVALID_ARGUMENT, f"topology key {key[:80]!r} is none of this driver's, which are {known}"
            )
        yield domains.segments_of(topology.segments, names)


def volume_of(written: Journal, entry: JournalEntry) -> csi.Volume:
    volume = csi.Volume(volume_id=written.id_of(entry), capacity_bytes=entry.size_bytes)
    for segments in domains.accessible(entry.domain):
        volume.accessible_topology.add().segments.update(segments)
    if entry.origin is not None:
        is_snapshot = ".snap." in entry.origin.id
        if is_snapshot:
            volume.content_source.snapshot.snapshot_id = entry.origin.id
        else:
            volume.content_source.volume.volume_id = entry.origin.id
    return volume


def snapshot_of(written: Journal, entry: JournalEntry) -> csi.Snapshot:
    snapshot = csi.Snapshot(
        snapshot_id=written.id_of(entry),
        source_volume_id=entry.origin.id if entry.origin is not None else "",
        size_bytes=entry.size_bytes,
        ready_to_use=True,
    )
    snapshot.creation_time.seconds = entry.created_seconds
    return snapshot


def _domain_text(entry: JournalEntry) -> str:
    return ",".join(f"{name}={value}" for name, value in entry.domain)


def _unknown(text: str) -> CsiError:
    return CsiError(GrpcCode.NOT_FOUND, f"there is no {text[:160]!r}")
