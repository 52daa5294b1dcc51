"""Manifests of the demo and of the storage driver, for nodes with and without containers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from zonewise.install import components
from zonewise.install.components import InstallComponent, InstallMode, ManifestValues
from zonewise.lab.ceph.driver import on_real_nodes
from zonewise.lab.demo import app, shop
from zonewise.lab.demo.installed import as_process

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


def test_only_containers_mount_the_volume_of_the_orders() -> None:
    with_image, without = (
        pod_specs(app.manifests(3, zonewise=True, volume_in="zone-c", image=image))["orders"]
        for image in (IMAGE, app.NO_IMAGE)
    )
    (container,) = with_image["containers"]
    assert container["volumeMounts"] == [{"name": "data", "mountPath": "/data"}]
    assert {"name": "DATA", "value": "/data"} in container["env"]
    assert with_image["securityContext"] == {"fsGroup": 65532}
    (process,) = without["containers"]
    assert "volumeMounts" not in process
    assert "DATA" not in {variable["name"] for variable in process["env"]}
    assert without["volumes"] == with_image["volumes"]


def test_processes_get_the_command_that_an_image_has() -> None:
    documents = components.documents([InstallComponent.PROXY], InstallMode.OVERLAY, ManifestValues(image=app.NO_IMAGE))
    before = copy.deepcopy(documents)
    (spec,) = pod_specs([as_process(document) for document in documents]).values()
    assert spec["containers"][0]["command"] == ["zonewise"]
    assert documents == before


def driver(kind: str) -> Json:
    documents = components.documents([InstallComponent.CSI], InstallMode.OVERLAY, ManifestValues(image=IMAGE))
    (found,) = (on_real_nodes(document, "lab") for document in documents if document["kind"] == kind)
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
