"""Views of volumes: PersistentVolumes with the domain they are tied to, the claims on them, and what CSI drivers say of nodes."""

from __future__ import annotations

import msgspec

from zonewise.objects.meta import Metadata, View
from zonewise.objects.resource import Resource

_GROUP = "storage.k8s.io"


class NodeRequirement(View, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeTerm(View, frozen=True):
    match_expressions: tuple[NodeRequirement, ...] = ()


class NodeTerms(View, frozen=True):
    node_selector_terms: tuple[NodeTerm, ...] = ()


class VolumeNodeAffinity(View, frozen=True):
    """Of several terms a node has to meet one; the driver's accessible topologies become one term each."""

    required: NodeTerms | None = None


class CSIVolumeSource(View, frozen=True):
    driver: str = ""
    volume_handle: str = ""


class PersistentVolumeSpec(View, frozen=True):
    capacity: dict[str, str] = {}
    storage_class_name: str = ""
    csi: CSIVolumeSource | None = None
    node_affinity: VolumeNodeAffinity | None = None
    persistent_volume_reclaim_policy: str = ""


class PersistentVolumeStatus(View, frozen=True):
    phase: str = ""


class PersistentVolume(View, frozen=True):
    metadata: Metadata = Metadata()
    spec: PersistentVolumeSpec = PersistentVolumeSpec()
    status: PersistentVolumeStatus = PersistentVolumeStatus()


class PersistentVolumeClaimSpec(View, frozen=True):
    volume_name: str = ""
    storage_class_name: str | None = None


class PersistentVolumeClaimStatus(View, frozen=True):
    phase: str = ""


class PersistentVolumeClaim(View, frozen=True):
    metadata: Metadata = Metadata()
    spec: PersistentVolumeClaimSpec = PersistentVolumeClaimSpec()
    status: PersistentVolumeClaimStatus = PersistentVolumeClaimStatus()


class CSINodeDriver(View, frozen=True):
    name: str = ""
    node_id: str = msgspec.field(default="", name="nodeID")
    topology_keys: tuple[str, ...] = ()


class CSINodeSpec(View, frozen=True):
    """`drivers` is null once the last one was removed."""

    drivers: tuple[CSINodeDriver, ...] | None = ()


class CSINode(View, frozen=True):
    metadata: Metadata = Metadata()
    spec: CSINodeSpec = CSINodeSpec()


CSI_NODES = Resource(view=CSINode, kind="CSINode", plural="csinodes", group=_GROUP, namespaced=False)
PERSISTENT_VOLUMES = Resource(
    view=PersistentVolume, kind="PersistentVolume", plural="persistentvolumes", namespaced=False
)
PERSISTENT_VOLUME_CLAIMS = Resource(
    view=PersistentVolumeClaim, kind="PersistentVolumeClaim", plural="persistentvolumeclaims"
)
