"""A pod that appends lines to an RBD and a CephFS volume all the time, and ends with the first error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from support.lab.kubectl import Kubectl
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.demo.zone_answers import NAMESPACE
from zonewise.lab.state import Lab

Json = dict[str, Any]
VOLUMES: Final = {"rbd": "ceph-rbd", "fs": "ceph-fs"}
"""The class of each; a volume is mounted at its name."""
_POD: Final = "lines"
_WRITE: Final = """
import itertools, os, time
files = [open(f"/{volume}/lines", "a") for volume in ("rbd", "fs")]
for number in itertools.count():
    for file in files:
        print(number, file=file, flush=True)
        os.fsync(file.fileno())
    time.sleep(0.05)
"""
_PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
_CLAIMS: Final = f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims"


@dataclass(frozen=True, slots=True)
class WrittenLines:
    lab: Lab
    zone: str

    def create(self) -> None:
        plane = ControlPlane.attach(self.lab.directory)
        for volume, storage_class in VOLUMES.items():
            plane.request("POST", _CLAIMS, _claim(volume, storage_class))
        plane.request("POST", _PODS, self._pod())
        self._kubectl("wait", f"pod/{_POD}", "--for=condition=Ready", "--timeout=50s")

    def remove(self) -> None:
        """Returns when the volumes are deleted, which they are only once they are unstaged."""
        self._kubectl("delete", "pod", _POD)
        claims = [f"persistentvolumeclaim/{volume}" for volume in VOLUMES]
        volumes = [self._kubectl("get", claim, "--output=jsonpath={.spec.volumeName}") for claim in claims]
        self._kubectl("delete", *claims)
        self._kubectl("wait", "--for=delete", "--timeout=50s", *(f"persistentvolume/{volume}" for volume in volumes))

    @property
    def node(self) -> str:
        name: str = self._read()["spec"]["nodeName"]
        return name

    @property
    def restarts(self) -> int:
        (status,) = self._read()["status"]["containerStatuses"]
        count: int = status["restartCount"]
        return count

    @property
    def reachable(self) -> bool:
        """A kubelet that has just started does not know its pods yet."""
        return Kubectl(self.lab, NAMESPACE).succeeds("exec", _POD, "--", "python", "-c", "pass")

    def lines(self, volume: str) -> list[int]:
        text = self._kubectl("exec", _POD, "--", "python", "-c", f"print(open('/{volume}/lines').read())")
        return [int(line) for line in text.split()]

    def _read(self) -> Json:
        found: Json = ControlPlane.attach(self.lab.directory).request("GET", f"{_PODS}/{_POD}")
        return found

    def _kubectl(self, *arguments: str) -> str:
        return Kubectl(self.lab, NAMESPACE).run(*arguments)

    def _pod(self) -> Json:
        assert self.lab.image is not None
        container = {
            "name": "main",
            "image": self.lab.image.name,
            "imagePullPolicy": "IfNotPresent",
            "command": ["python", "-c", _WRITE],
            "volumeMounts": [{"name": volume, "mountPath": f"/{volume}"} for volume in VOLUMES],
        }
        spec = {
            "nodeSelector": {"topology.kubernetes.io/zone": self.zone},
            "securityContext": {"fsGroup": 65532},
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [{"name": volume, "persistentVolumeClaim": {"claimName": volume}} for volume in VOLUMES],
        }
        return {"metadata": {"name": _POD}, "spec": spec}


def _claim(name: str, storage_class: str) -> Json:
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": storage_class,
        "resources": {"requests": {"storage": "64Mi"}},
    }
    return {"metadata": {"name": name}, "spec": spec}
