"""What the lab's provisioner asks the driver for, and the PersistentVolume that it writes of the answer."""

from typing import Any

import pytest

from zonewise.api.names import CSI_DRIVER, CSI_TOPOLOGY_PREFIX
from zonewise.ceph.lab_provisioner import done_with, request_for, volume_for
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
    said = {"volume.kubernetes.io/selected-node": node, "volume.kubernetes.io/storage-provisioner": provisioner}
    spec = {"volumeName": volume, "accessModes": ["ReadWriteOnce"], "storageClassName": "ceph-rbd"}
    metadata = {"name": "data", "namespace": "shop", "uid": "u1", "annotations": said}
    return {"metadata": metadata, "spec": spec | {"resources": {"requests": {"storage": "1Gi"}}}}


def test_a_volume_is_asked_for_where_the_pod_will_be() -> None:
    asked = request_for(claim(), {"type": "rbd", SIDECARS: "ext4"}, NODES)
    assert asked.name == "pvc-u1"
    assert asked.capacity_range.required_bytes == 1 << 30
    assert asked.parameters["type"] == "rbd"
    assert SIDECARS not in asked.parameters
    preferred = [dict(each.segments) for each in asked.accessibility_requirements.preferred]
    assert preferred[0] == {ZONE: "b"}
    assert {ZONE: "a"} in preferred


@pytest.mark.parametrize(
    "unready", [claim("new"), claim("gone"), claim(volume="pvc-u1"), claim(provisioner="other.example")]
)
def test_nothing_is_asked_for_before_it_can_be_answered(unready: dict[str, Any]) -> None:
    assert request_for(unready, {}, NODES) is None


def test_the_volume_is_reached_as_the_driver_says() -> None:
    topologies = [csi.Topology(segments={ZONE: "b"}), csi.Topology(segments={"takeover": "active"})]
    volume = volume_for(
        claim(), csi.Volume(volume_id="id", volume_context={"pool": "p"}, accessible_topology=topologies)
    )
    terms = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert [term["matchExpressions"][0]["key"] for term in terms] == [ZONE, "takeover"]
    assert volume["spec"]["csi"] == {"driver": CSI_DRIVER, "volumeHandle": "id", "volumeAttributes": {"pool": "p"}}
    assert volume["spec"]["claimRef"]["uid"] == "u1"


def test_a_volume_that_is_reached_from_everywhere_is_tied_to_no_node() -> None:
    assert "nodeAffinity" not in volume_for(claim(), csi.Volume(volume_id="id"))["spec"]


@pytest.mark.parametrize(
    ("driver", "policy", "phase", "handle"),
    [
        (CSI_DRIVER, "Delete", "Released", "id"),
        (CSI_DRIVER, "Delete", "Bound", ""),
        (CSI_DRIVER, "Retain", "Released", ""),
        ("other.example", "Delete", "Released", ""),
    ],
)
def test_only_what_was_released_and_need_not_be_retained_is_deleted(
    driver: str, policy: str, phase: str, handle: str
) -> None:
    spec = PersistentVolumeSpec(
        csi=CSIVolumeSource(driver=driver, volume_handle="id"), persistent_volume_reclaim_policy=policy
    )
    assert done_with(PersistentVolume(spec=spec, status=PersistentVolumeStatus(phase=phase))) == handle
