"""Ceph CSI driver in a lab with a Ceph cluster: the manifests of `zonewise install --only csi`, without sidecars.

Their images can't be built here. Only the provisioner is needed, and `lab_provisioner` replaces it. On real nodes the driver
runs from its image, and mounts volumes. On namespace nodes it is a process, and nothing is mounted: pods are only scheduled
where their volume is accessible.
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
from zonewise.lab.ceph.cluster import LabCeph
from zonewise.lab.decide.cgroup_hierarchies import CGROUPS, node_cgroup
from zonewise.lab.nodes import loop_devices
from zonewise.lab.state import Lab
from zonewise.objects import CONFIG_MAPS

_CONFIG_MAP: Final = "zonewise-csi-config"
_SECRET: Final = "zonewise-csi-ceph"  # noqa: S105 - the object's name
_MOUNTED_KEY: Final = "/etc/zonewise-csi-ceph/userKey"
"""Where the manifests mount the secret."""
_NO_IMAGE: Final = "none"
_NODE: Final = "$(NODE_NAME)"
_WITHOUT_KERNEL: Final = ("--mapper=storage-daemon", "--cephfs-client=fuse")
_DRIVER: Final = "csi"
_NOT_OF_PROCESSES: Final = ("--endpoint", "--daemon-cgroup", "--registration-directory")
_PROVISIONER: Final = ["python", "-m", "zonewise.ceph.lab_provisioner"]


def documents(lab: Lab) -> list[Document]:
    image = lab.csi_image.name if lab.csi_image else _NO_IMAGE
    values = components.ManifestValues(image=image)
    documents = components.documents([InstallComponent.CSI], InstallMode.OVERLAY, values)
    if lab.csi_image is None:
        return [_as_process(document, lab) for document in documents]
    return [*(on_real_nodes(document, lab.name) for document in documents), _secret(cluster.attach(lab.ceph))]


async def configure(client: Client, lab: Lab) -> None:
    """Create the config map unless it exists: it contains the takeover map, which users of the lab change."""
    ceph = cluster.attach(lab.ceph)
    config = json.dumps(ceph.csi_config(_MOUNTED_KEY if lab.csi_image else ceph.key_file), indent=2)
    try:
        await client.create(
            CONFIG_MAPS, {"metadata": {"name": _CONFIG_MAP}, "data": {"config.json": config}}, SYSTEM_NAMESPACE
        )
    except Conflict:
        return


def on_real_nodes(document: Document, lab: str) -> Document:
    """A container of the driver's image provisions; volumes neither grow nor have snapshots.

    Nodes of a lab share a kernel. Its own Ceph clients work in the machine's network only, so nodes use those in user space, and
    it has one list of loop devices and one tree of cgroups, in which each node has its own names.
    """
    match document["kind"]:
        case "CSIDriver":
            document["spec"]["storageCapacity"] = False  # the sidecar that publishes capacity is missing
        case "Deployment":
            spec = document["spec"]["template"]["spec"]
            driver = _driver_in(spec)
            spec["containers"] = [driver, _provisioner(driver)]
        case "DaemonSet":
            driver = _driver_in(document["spec"]["template"]["spec"])
            kept = [word for word in driver["args"] if not word.startswith("--daemon-cgroup")]
            cgroup = f"--daemon-cgroup={CGROUPS}/{node_cgroup(lab, _NODE)}/csi"
            state = f"--state-directory={loop_devices.state_directory(lab, _NODE)}"
            driver["args"] = [*kept, cgroup, state, *_WITHOUT_KERNEL]
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


def _as_process(document: Document, lab: Lab) -> Document:
    match document["kind"]:
        case "CSIDriver":
            document["spec"]["storageCapacity"] = False
        case "Deployment":
            spec = document["spec"]["template"]["spec"]
            _fit(spec, lab, "$(POD_IP)")
            socket = _socket(lab, "$(POD_IP)")
            spec["containers"].append({"name": "provisioner", "image": _NO_IMAGE, "command": [*_PROVISIONER, socket]})
            for container in spec["containers"]:
                container["env"] = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
        case "DaemonSet":
            _fit(document["spec"]["template"]["spec"], lab, "$(NODE_NAME)")
    return document


def _fit(spec: dict[str, Any], lab: Lab, name: str) -> None:
    """Only the driver's container, with paths of this machine. Socket paths must be short: `name` is the pod's address or node."""
    driver = _driver_in(spec)
    args = [word for word in driver["args"] if not word.startswith(_NOT_OF_PROCESSES)]
    args += [f"--config={cluster.attach(lab.ceph).csi_file}", f"--endpoint=unix://{_socket(lab, name)}"]
    if "node" in args:
        args.append(f"--state-directory={lab.ceph / 'csi' / name}")
    spec["containers"] = [driver | {"command": ["zonewise"], "args": args, "volumeMounts": []}]
    spec["volumes"] = []


def _socket(lab: Lab, name: str) -> str:
    return str(lab.ceph / "csi" / f"{name}.sock")
