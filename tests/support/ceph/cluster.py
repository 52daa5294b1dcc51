"""Nodes, volumes and claims for tests of the driver with Kubernetes, on an API server that other tests may share.

Nodes are simulated by kwok, with names and domain labels of their own per test, so that several tests can have a
zone-a. Volumes are as csi-provisioner creates them from a CreateVolume response: one node selector term for each
accessible topology.
"""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from support.waiting import eventually
from zonewise.api.names import CSI_DRIVER
from zonewise.ceph.decide.domains import DomainLabels, accessible_topology
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import NotFound
from zonewise.kube.wire.patch import JsonPatch, MergePatch
from zonewise.lab.controlplane.programs import KWOK_ANNOTATION
from zonewise.lab.nodes import kwok
from zonewise.objects import CONFIG_MAPS, NODES, PODS
from zonewise.objects.storage import CSI_NODES, PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES

CONFIG = "csi-config"
CLASS = "none"


class CsiCluster:
    """Without a `label_prefix` its domain labels are unique."""

    def __init__(self, client: Client, namespace: str, label_prefix: str = "") -> None:
        self.client = client
        self.namespace = namespace
        self.run = uuid.uuid4().hex[:8]
        prefix = label_prefix or f"{self.run}.example.com"
        self.region_label = f"{prefix}/region"
        self.zone_label = f"{prefix}/zone"
        self.labels = DomainLabels.parse(f"{self.region_label};{self.zone_label}")
        self._nodes: list[str] = []
        self._volumes: list[str] = []

    async def node(self, zone: str, number: int = 1, region: str = "eu") -> str:
        """Without a zone the node has no domain labels."""
        manifest = kwok.manifest(0, zone or "nowhere", 0, tainted=False)
        name = f"{self.run}-{zone or 'nowhere'}-{number}"
        domains = {self.region_label: region, self.zone_label: zone} if zone else {}
        manifest["metadata"] |= {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "test-run": self.run, **domains},
        }
        await self.client.create(NODES, manifest)
        self._nodes.append(name)
        return name

    async def label(self, node: str, labels: Mapping[str, str | None]) -> None:
        await self.client.patch(NODES, node, MergePatch({"metadata": {"labels": labels}}))

    async def labels_of(self, node: str) -> dict[str, str]:
        return (await self.client.get(NODES, node)).metadata.labels

    async def until_labelled(self, node: str, labels: Mapping[str, str | None]) -> None:
        """None for a label that must not exist."""

        async def is_labelled() -> bool:
            current = await self.labels_of(node)
            return all(current.get(key) == value for key, value in labels.items())

        await eventually(is_labelled, f"{node} has {labels}")

    async def register(self, node: str, keys: Sequence[str]) -> None:
        """As kubelet does after NodeGetInfo."""
        entry = {"name": CSI_DRIVER, "nodeID": node, "topologyKeys": sorted(keys), "allocatable": {"count": 30}}
        await self.client.create(CSI_NODES, {"metadata": {"name": node}, "spec": {"drivers": [entry]}})

    async def take_over(self, takeovers: Mapping[str, Sequence[str]] | str) -> None:
        """Write the takeover map; a string is written as it is."""
        text = takeovers if isinstance(takeovers, str) else json.dumps({"version": 2, "topology-takeover": takeovers})
        body = {"metadata": {"name": CONFIG}, "data": {"config.json": text}}
        try:
            await self.client.patch(CONFIG_MAPS, CONFIG, MergePatch({"data": body["data"]}), self.namespace)
        except NotFound:
            await self.client.create(CONFIG_MAPS, body, self.namespace)

    async def volume(self, name: str, segments: tuple[tuple[str, str], ...]) -> None:
        """A volume of these domains, bound to a claim of the same name."""
        await self.bind(name, accessible_topology(segments))

    async def bind(self, name: str, topologies: Sequence[Mapping[str, str]], **source: Any) -> None:
        """`source`: the volume's handle and attributes, from the driver."""
        volume = f"{self.run}-{name}"
        body = volume_body(volume, topologies, self.namespace, name)
        body["spec"]["csi"] |= source
        await self.client.create(PERSISTENT_VOLUMES, body)
        self._volumes.append(volume)
        claim = {
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": CLASS,
                "volumeName": volume,
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        await self.client.create(PERSISTENT_VOLUME_CLAIMS, claim, self.namespace)

        async def bound() -> bool:
            current = await self.client.get(PERSISTENT_VOLUME_CLAIMS, name, self.namespace)
            return current.status.phase == "Bound"

        await eventually(bound, f"{name} is bound")

    async def pod(self, name: str, claim: str) -> None:
        body = {
            "metadata": {"name": name},
            "spec": {
                "nodeSelector": {"test-run": self.run},
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "c", "image": "none", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
            },
        }
        await self.client.create(PODS, body, self.namespace)

    async def until_scheduled(self, name: str) -> str:
        async def node_name() -> str:
            return (await self.client.get(PODS, name, self.namespace)).spec.node_name

        return await eventually(node_name, f"{name} is scheduled")

    async def until_unschedulable(self, name: str) -> None:
        async def is_unschedulable() -> bool:
            conditions = (await self.client.get(PODS, name, self.namespace)).status.conditions
            return any(condition.type == "PodScheduled" and condition.status == "False" for condition in conditions)

        await eventually(is_unschedulable, f"{name} is unschedulable")

    async def remove_pod(self, name: str) -> None:
        """The next pod needs another name: kwok ends pods by name, and may do so again."""
        await self.client.delete(PODS, name, self.namespace, grace_seconds=0)

        async def gone() -> bool:
            try:
                await self.client.get(PODS, name, self.namespace)
            except NotFound:
                return True
            return False

        await eventually(gone, f"{name} is gone")

    async def fail(self, node: str) -> None:
        """Its kubelet stops: kwok no longer manages it, and it is not ready."""
        await self.client.patch(NODES, node, MergePatch({"metadata": {"annotations": {KWOK_ANNOTATION: None}}}))
        await self.set_ready(node, ready=False)

    async def recover(self, node: str) -> None:
        await self.client.patch(NODES, node, MergePatch({"metadata": {"annotations": {KWOK_ANNOTATION: "fake"}}}))
        await self.set_ready(node, ready=True)

    async def set_ready(self, node: str, *, ready: bool) -> None:
        conditions = [{"type": "Ready", "status": "True" if ready else "False", "reason": "KubeletReady"}]
        patch = JsonPatch([{"op": "replace", "path": "/status/conditions", "value": conditions}])
        await self.client.patch(NODES, node, patch, subresource="status")

    async def remove(self) -> None:
        await self.client.delete_collection(PODS, self.namespace, grace_seconds=0)
        await self.client.delete_collection(PERSISTENT_VOLUME_CLAIMS, self.namespace)
        for name in self._volumes:
            await self.client.delete(PERSISTENT_VOLUMES, name)
        for name in self._nodes:
            for resource in (NODES, CSI_NODES):
                try:
                    await self.client.delete(resource, name)
                except NotFound:
                    continue


def volume_body(name: str, topologies: Sequence[Mapping[str, str]], namespace: str, claim: str) -> dict[str, Any]:
    terms = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": [value]} for key, value in term.items()]}
        for term in topologies
    ]
    affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}} if terms else {}
    return {
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": CLASS,
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": claim},
            "csi": {"driver": CSI_DRIVER, "volumeHandle": f"handle-{name}"},
            **affinity,
        },
    }
