"""Manifests of the demo and of the storage driver, as a lab adapts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from zonewise.install import components
from zonewise.install.components import InstallComponent, InstallMode, ManifestValues
from zonewise.lab.ceph.driver import for_lab, without_sidecars
from zonewise.lab.demo import app, shop

Json = dict[str, Any]
IMAGE = "localhost/zonewise:1"


def pod_specs(documents: list[Json]) -> dict[str, Json]:
    return {
        document["metadata"]["name"]: document["spec"]["template"]["spec"]
        for document in documents
        if "template" in document.get("spec", {})
    }


def test_containers_of_the_shop_run_from_the_image() -> None:
    specs = pod_specs(app.manifests(3, zonewise=True, volume_in="zone-c", image=IMAGE))
    assert set(specs) == {"catalog", "front", "orders"}
    for spec in specs.values():
        (container,) = spec["containers"]
        assert (container["image"], container["command"][0]) == (IMAGE, "python")


def test_copies_are_spread_over_zones_then_nodes() -> None:
    specs = pod_specs(app.manifests(3, zonewise=True, volume_in="", image=IMAGE))
    for name in ("catalog", "front"):
        keys = [constraint["topologyKey"] for constraint in specs[name]["topologySpreadConstraints"]]
        assert keys == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"], name


def test_orders_mount_their_volume() -> None:
    spec = pod_specs(app.manifests(3, zonewise=True, volume_in="zone-c", image=IMAGE))["orders"]
    (container,) = spec["containers"]
    assert container["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
    assert {"name": "DATA", "value": "/data"} in container["env"]
    assert spec["securityContext"] == {"fsGroup": 65532}
    assert spec["volumes"] == [{"name": "data", "persistentVolumeClaim": {"claimName": "orders"}}]


def driver(kind: str) -> Json:
    documents = components.documents([InstallComponent.CSI], InstallMode.OVERLAY, ManifestValues(image=IMAGE))
    (found,) = (without_sidecars(for_lab(document, "lab")) for document in documents if document["kind"] == kind)
    return found


def test_provisioner_of_the_lab_replaces_the_sidecars() -> None:
    csi, provisioner = driver("Deployment")["spec"]["template"]["spec"]["containers"]
    assert csi["name"] == "csi"
    assert provisioner["command"][-1] == "/csi/csi.sock"
    assert provisioner["image"] == IMAGE
    assert provisioner["securityContext"] == csi["securityContext"]
    assert provisioner["volumeMounts"] == [mount for mount in csi["volumeMounts"] if mount["name"] == "socket"]
    assert driver("CSIDriver")["spec"]["storageCapacity"] is False


@pytest.mark.parametrize(
    "option",
    [
        "--daemon-cgroup=/sys/fs/cgroup/zonewise-lab/$(NODE_NAME)/csi",
        "--state-directory=/var/lib/kubelet/plugins/ceph.zonewise.dev/lab.$(NODE_NAME)",
        "--mapper=storage-daemon",
        "--cephfs-client=fuse",
        "--registration-directory=/var/lib/kubelet/plugins_registry",
    ],
)
def test_node_plugin_keeps_to_its_node(option: str) -> None:
    (container,) = driver("DaemonSet")["spec"]["template"]["spec"]["containers"]
    name = option.partition("=")[0]
    assert [word for word in container["args"] if word.startswith(f"{name}=")] == [option]


def test_each_start_of_the_shop_is_written_to_its_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for pod in ("one", "two"):
        monkeypatch.setenv("POD", pod)
        monkeypatch.setenv("NODE", "zone-a-1")
        monkeypatch.setenv("ZONE", "zone-a")
        shop.note_start(str(tmp_path))
    assert (tmp_path / "starts").read_text() == "one zone-a-1 zone-a\ntwo zone-a-1 zone-a\n"
