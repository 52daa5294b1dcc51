"""Lab provisioner: the CreateVolumeRequest for a claim, and the PersistentVolume of the response."""

from typing import Any

import pytest

from zonewise.api.names import CSI_DRIVER, CSI_TOPOLOGY_PREFIX
from zonewise.ceph.lab_provisioner import released_handle, request_for, volume_for
from zonewise.ceph.spec import csi_pb2 as csi
from zonewise.objects.storage import (
    CSIVolumeSource,
    PersistentVolume,
    PersistentVolumeSpec,
    PersistentVolumeStatus,
)

ZONE = f"{CSI_TOPOLOGY_PREFIX}zone"
NODES = {"a-1": {ZONE: "a"}, "a-2": {ZONE: "a"}, "b-1": {ZONE: "b", "other": "x"}, "new": {}}
SIDECARS = "csi.storage.k8s.io/fstype"


def claim(node: str = "b-1", volume: str = "", provisioner: str = CSI_DRIVER) -> dict[str, Any]:
    annotations = {"volume.kubernetes.io/selected-node": node, "volume.kubernetes.io/storage-provisioner": provisioner}
    spec = {"volumeName": volume, "accessModes": ["ReadWriteOnce"], "storageClassName": "ceph-rbd"}
    metadata = {"name": "data", "namespace": "shop", "uid": "u1", "annotations": annotations}
    return {"metadata": metadata, "spec": spec | {"resources": {"requests": {"storage": "1Gi"}}}}


def test_request_prefers_the_topology_of_the_selected_node() -> None:
    request = request_for(claim(), {"type": "rbd", SIDECARS: "ext4"}, NODES)
    assert request.name == "pvc-u1"
    assert request.capacity_range.required_bytes == 1 << 30
    assert request.parameters["type"] == "rbd"
    assert SIDECARS not in request.parameters
    preferred = [dict(topology.segments) for topology in request.accessibility_requirements.preferred]
    assert preferred[0] == {ZONE: "b"}
    assert {ZONE: "a"} in preferred


@pytest.mark.parametrize(
    "unready", [claim("new"), claim("gone"), claim(volume="pvc-u1"), claim(provisioner="other.example")]
)
def test_no_request_for_claims_that_are_not_ready(unready: dict[str, Any]) -> None:
    assert request_for(unready, {}, NODES) is None


def test_node_affinity_is_the_accessible_topology() -> None:
    topologies = [csi.Topology(segments={ZONE: "b"}), csi.Topology(segments={"takeover": "active"})]
    volume = volume_for(
        claim(), csi.Volume(volume_id="id", volume_context={"pool": "p"}, accessible_topology=topologies), {}
    )
    terms = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert [term["matchExpressions"][0]["key"] for term in terms] == [ZONE, "takeover"]
    assert volume["spec"]["csi"] == {"driver": CSI_DRIVER, "volumeHandle": "id", "volumeAttributes": {"pool": "p"}}
    assert volume["spec"]["claimRef"]["uid"] == "u1"


def test_no_node_affinity_without_accessible_topology() -> None:
    assert "nodeAffinity" not in volume_for(claim(), csi.Volume(volume_id="id"), {})["spec"]


def test_volume_names_the_file_system_and_the_secret_of_its_class() -> None:
    secret = {f"csi.storage.k8s.io/node-stage-secret-{part}": part for part in ("name", "namespace")}
    volume = volume_for(claim(), csi.Volume(volume_id="id"), {SIDECARS: "ext4", **secret})
    source = volume["spec"]["csi"]
    assert (source["fsType"], source["nodeStageSecretRef"]) == ("ext4", {"name": "name", "namespace": "namespace"})


@pytest.mark.parametrize(
    ("driver", "policy", "phase", "handle"),
    [
        (CSI_DRIVER, "Delete", "Released", "id"),
        (CSI_DRIVER, "Delete", "Bound", ""),
        (CSI_DRIVER, "Retain", "Released", ""),
        ("other.example", "Delete", "Released", ""),
    ],
)
def test_only_released_volumes_with_policy_delete_are_deleted(
    driver: str, policy: str, phase: str, handle: str
) -> None:
    spec = PersistentVolumeSpec(
        csi=CSIVolumeSource(driver=driver, volume_handle="id"), persistent_volume_reclaim_policy=policy
    )
    assert released_handle(PersistentVolume(spec=spec, status=PersistentVolumeStatus(phase=phase))) == handle
