"""The Ceph CSI driver in a lab with a Ceph cluster, with the real sidecars, and what Kubernetes' storage tests are told of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from support.conformance import kubectl
from support.conformance.sidecars import REPOSITORY, Sidecars
from zonewise.api.names import CSI_DRIVER
from zonewise.install.decide.document import Document
from zonewise.lab.ceph import driver
from zonewise.lab.demo import app, installed
from zonewise.lab.state import Lab

Json = dict[str, Any]
_SNAPSHOTS: Final = Path(__file__).parent / "manifests" / "snapshots.yaml"
_SNAPSHOT_CLASS: Final = "ceph"
_ESTABLISHED_WITHIN_SECONDS: Final = 60


class StorageKind(StrEnum):
    RBD = "rbd"
    CEPHFS = "cephfs"


_CLASSES: Final = {StorageKind.RBD: "ceph-rbd", StorageKind.CEPHFS: "ceph-fs"}
_OF_BOTH: Final = (
    "persistence",
    "fsGroup",
    "exec",
    "multipods",
    "topology",
    "controllerExpansion",
    "snapshotDataSource",
    "pvcDataSource",
    "capacity",
    "readWriteOncePod",
    "capReadOnlyMany",
)
_OF_ONE: Final = {StorageKind.RBD: ("block", "nodeExpansion"), StorageKind.CEPHFS: ("RWX",)}


def driver_definition(kind: StorageKind) -> Json:
    """For the suite's `--storage.testdriver`: what it may expect of the driver's volumes of this kind."""
    return {
        "StorageClass": {"FromExistingClassName": _CLASSES[kind]},
        "SnapshotClass": {"FromExistingClassName": _SNAPSHOT_CLASS},
        "DriverInfo": {
            "Name": CSI_DRIVER,
            "SupportedSizeRange": {"Min": "64Mi", "Max": "1Gi"},
            "SupportedFsType": {"ext4": {}} if kind is StorageKind.RBD else {"": {}},
            "TopologyKeys": [f"topology.{CSI_DRIVER}/zone"],
            "NumAllowedTopologies": 1,
            "Capabilities": dict.fromkeys((*_OF_BOTH, *_OF_ONE[kind]), True),
        },
    }


def write_test_driver(kind: StorageKind, directory: Path) -> Path:
    path = directory / f"{kind}.json"
    path.write_text(json.dumps(driver_definition(kind), indent=1) + "\n")
    return path


def install(lab: Lab, image: str, sidecars: Sidecars) -> None:
    """Returns when all of it is ready."""
    kubectl.run(lab, "apply", "--server-side", f"--filename={sidecars.crds}")
    kinds = [
        f"customresourcedefinition/{file.stem.partition('_')[2]}.snapshot.storage.k8s.io" for file in _files(sidecars)
    ]
    kubectl.run(lab, "wait", "--for=condition=established", f"--timeout={_ESTABLISHED_WITHIN_SECONDS}s", *kinds)
    controller = f"{REPOSITORY}/snapshot-controller"
    kubectl.run(
        lab, "apply", "--filename=-", text=_SNAPSHOTS.read_text().replace(controller, sidecars.images[controller])
    )
    documents = [with_tags(document, sidecars.images) for document in driver.documents(lab, image, sidecars=True)]
    app.until_nodes_take_pods(lab)
    installed.apply(lab, documents)
    installed.wait(lab, documents)


def _files(sidecars: Sidecars) -> list[Path]:
    return sorted(sidecars.crds.glob("*.yaml"))


def with_tags(document: Document, images: Mapping[str, str]) -> Document:
    """The manifests' sidecars in the versions that there are."""
    if document["kind"] == "Deployment":
        for container in document["spec"]["template"]["spec"]["containers"]:
            container["image"] = images.get(container["image"].rpartition(":")[0], container["image"])
    return document
