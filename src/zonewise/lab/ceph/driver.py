"""Ceph CSI driver in a lab with a Ceph cluster: the manifests of `zonewise install --only csi`, run as processes.

Nodes of a lab have neither the driver's image nor its sidecars. Only the provisioner is needed, and `lab_provisioner`
replaces it. Nothing is mounted: pods are only scheduled where their volume is accessible.
"""

from __future__ import annotations

import json
from typing import Any, Final

from zonewise.api.names import SYSTEM_NAMESPACE
from zonewise.install import components
from zonewise.install.components import Document, InstallComponent, InstallMode
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import Conflict
from zonewise.lab.ceph import cluster
from zonewise.lab.state import Lab
from zonewise.objects import CONFIG_MAPS

_CONFIG_MAP: Final = "zonewise-csi-config"
_DRIVER: Final = "csi"
_OF_REAL_NODES: Final = ("--endpoint", "--daemon-cgroup", "--registration-directory")
_PROVISIONER: Final = ["python", "-m", "zonewise.ceph.lab_provisioner"]


def documents(lab: Lab) -> list[Document]:
    documents = components.documents(
        [InstallComponent.CSI], InstallMode.OVERLAY, components.ManifestValues(image="none")
    )
    return [_fitted(document, lab) for document in documents]


async def configure(client: Client, lab: Lab) -> None:
    """Create the config map unless it exists: it contains the takeover map, which users of the lab change."""
    config = json.dumps(cluster.attach(lab.ceph).csi_config(), indent=2)
    try:
        await client.create(
            CONFIG_MAPS, {"metadata": {"name": _CONFIG_MAP}, "data": {"config.json": config}}, SYSTEM_NAMESPACE
        )
    except Conflict:
        return


def _fitted(document: Document, lab: Lab) -> Document:
    match document["kind"]:
        case "CSIDriver":
            document["spec"]["storageCapacity"] = False  # the sidecar that publishes capacity is missing
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


def _fit(spec: dict[str, Any], lab: Lab, name: str) -> None:
    """Only the driver's container, with paths of this machine. Socket paths must be short: `name` is the pod's address or node."""
    (driver,) = (container for container in spec["containers"] if container["name"] == _DRIVER)
    args = [word for word in driver["args"] if not word.startswith(_OF_REAL_NODES)]
    args += [f"--config={cluster.attach(lab.ceph).csi_file}", f"--endpoint=unix://{_socket(lab, name)}"]
    if "node" in args:
        args.append(f"--state-directory={lab.ceph / 'csi' / name}")
    spec["containers"] = [driver | {"command": ["zonewise"], "args": args, "volumeMounts": []}]
    spec["volumes"] = []


def _socket(lab: Lab, name: str) -> str:
    return str(lab.ceph / "csi" / f"{name}.sock")
