"""Ceph CSI driver in a lab with a Ceph cluster: the manifests of `zonewise install --only csi`."""

from __future__ import annotations

import json
from typing import Final

from zonewise.api.names import CSI_CONFIG_MAP, SYSTEM_NAMESPACE
from zonewise.install import components
from zonewise.install.components import InstallComponent, InstallMode
from zonewise.install.decide.document import Document
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import Conflict
from zonewise.lab.ceph import cluster
from zonewise.lab.ceph.cluster import LabCeph
from zonewise.lab.decide.cgroup_hierarchies import CGROUPS, node_cgroup
from zonewise.lab.nodes import loop_devices
from zonewise.lab.state import Lab
from zonewise.objects import CONFIG_MAPS

_SECRET: Final = "zonewise-csi-ceph"  # noqa: S105 - the object's name
_MOUNTED_KEY: Final = "/etc/zonewise-csi-ceph/userKey"
"""Where the manifests mount the secret."""
_NODE: Final = "$(NODE_NAME)"
_WITHOUT_KERNEL: Final = ("--mapper=storage-daemon", "--cephfs-client=fuse")
_DRIVER: Final = "csi"
_PROVISIONER: Final = ["python", "-m", "zonewise.ceph.lab_provisioner"]


def documents(lab: Lab, image: str, *, sidecars: bool = False) -> list[Document]:
    """With sidecars, the lab's nodes must have their images. Otherwise a container of the driver's image provisions; volumes
    neither grow nor have snapshots then.
    """
    values = components.ManifestValues(image=image)
    documents = components.documents([InstallComponent.CSI], InstallMode.OVERLAY, values)
    if not sidecars:
        documents = [without_sidecars(document) for document in documents]
    return [*(for_lab(document, lab.name) for document in documents), _secret(cluster.attach(lab.ceph))]


async def configure(client: Client, lab: Lab) -> None:
    """Create the config map unless it exists: it contains the takeover map, which users of the lab change."""
    config = json.dumps(cluster.attach(lab.ceph).csi_config(_MOUNTED_KEY), indent=2)
    try:
        await client.create(
            CONFIG_MAPS, {"metadata": {"name": CSI_CONFIG_MAP}, "data": {"config.json": config}}, SYSTEM_NAMESPACE
        )
    except Conflict:
        return


def for_lab(document: Document, lab: str) -> Document:
    """Nodes of a lab share a kernel. Its own Ceph clients work in the machine's network only, so nodes use those in user space,
    and it has one list of loop devices and one tree of cgroups, in which each node has its own names.
    """
    if document["kind"] == "DaemonSet":
        driver = _driver_in(document["spec"]["template"]["spec"])
        kept = [word for word in driver["args"] if not word.startswith("--daemon-cgroup")]
        cgroup = f"--daemon-cgroup={CGROUPS}/{node_cgroup(lab, _NODE)}/csi"
        state = f"--state-directory={loop_devices.state_directory(lab, _NODE)}"
        driver["args"] = [*kept, cgroup, state, *_WITHOUT_KERNEL]
    return document


def without_sidecars(document: Document) -> Document:
    match document["kind"]:
        case "CSIDriver":
            document["spec"]["storageCapacity"] = False  # a sidecar publishes capacity
        case "Deployment":
            spec = document["spec"]["template"]["spec"]
            driver = _driver_in(spec)
            spec["containers"] = [driver, _provisioner(driver)]
    return document


def _driver_in(spec: Document) -> Document:
    (driver,) = (container for container in spec["containers"] if container["name"] == _DRIVER)
    found: Document = driver
    return found


def _provisioner(driver: Document) -> Document:
    """As restricted as the driver, whose socket it calls."""
    shared = [mount for mount in driver["volumeMounts"] if mount["name"] == "socket"]
    command = [*_PROVISIONER, f"{shared[0]['mountPath']}/csi.sock"]
    inherited = {key: driver[key] for key in ("image", "securityContext")}
    return {"name": "provisioner", **inherited, "command": command, "volumeMounts": shared}


def _secret(ceph: LabCeph) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": _SECRET, "namespace": SYSTEM_NAMESPACE},
        "stringData": ceph.secrets,
    }
