"""The Ceph CSI driver in a lab that has a Ceph: the manifests of `zonewise install --only csi`, as processes.

A lab's nodes have neither the driver's image nor its sidecars. Of these only the provisioner is needed for volumes to be made,
and a small one of ours stands in for it. Nothing is mounted: a pod is placed where its volume can be reached, and that is all.
"""

from __future__ import annotations

import json
from typing import Any

from zonewise.api.names import SYSTEM_NAMESPACE
from zonewise.install import components
from zonewise.install.components import Document, InstallComponent, InstallMode
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import Conflict
from zonewise.lab.ceph import cluster
from zonewise.lab.state import Lab
from zonewise.objects import CONFIG_MAPS

_CONFIG_MAP = "zonewise-csi-config"
_DRIVER = "csi"
_PROVISIONER = ["python", "-m", "zonewise.ceph.lab_provisioner"]


def documents(lab: Lab) -> list[Document]:
    found = components.documents([InstallComponent.CSI], InstallMode.OVERLAY, components.ManifestValues(image="none"))
    return [_fitted(document, lab) for document in found]


async def configure(client: Client, lab: Lab) -> None:
    """Once: the map of takeovers is in it, which belongs to whoever uses the lab."""
    said = json.dumps(cluster.attach(lab.ceph).csi_config(), indent=2)
    try:
        await client.create(
            CONFIG_MAPS, {"metadata": {"name": _CONFIG_MAP}, "data": {"config.json": said}}, SYSTEM_NAMESPACE
        )
    except Conflict:
        return


def _fitted(document: Document, lab: Lab) -> Document:
    match document["kind"]:
        case "CSIDriver":
            document["spec"]["storageCapacity"] = False  # a sidecar would have to say how much there is
        case "Deployment":
            _fit(document["spec"]["template"]["spec"], lab, "$(POD_IP)")
            spec = document["spec"]["template"]["spec"]
            socket = _socket(lab, "$(POD_IP)")
            spec["containers"].append({"name": "provisioner", "image": "none", "command": [*_PROVISIONER, socket]})
            for container in spec["containers"]:
                container["env"] = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
        case "DaemonSet":
            _fit(document["spec"]["template"]["spec"], lab, "$(NODE_NAME)")
    return document


def _fit(spec: dict[str, Any], lab: Lab, who: str) -> None:
    """Only our container, with this machine's paths; a socket's must be short, so it is named by the pod's address or node."""
    (driver,) = (container for container in spec["containers"] if container["name"] == _DRIVER)
    ours = [word for word in driver["args"] if not word.startswith(("--endpoint", "--daemon-cgroup"))]
    ours += [f"--config={cluster.attach(lab.ceph).csi_file}", f"--endpoint=unix://{_socket(lab, who)}"]
    if "node" in ours:
        ours.append(f"--state-directory={lab.ceph / 'csi' / who}")
    spec["containers"] = [driver | {"command": ["zonewise"], "args": ours, "volumeMounts": []}]
    spec["volumes"] = []


def _socket(lab: Lab, who: str) -> str:
    return str(lab.ceph / "csi" / f"{who}.sock")
