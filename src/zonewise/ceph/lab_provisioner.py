"""Provisioner for labs, where csi-provisioner can't run: `python -m zonewise.ceph.lab_provisioner SOCKET`.

Once the scheduler has chosen a node for a claim, it creates a volume in that node's domain and writes the
PersistentVolume; when that is released, it deletes the volume. No capacity, copies or snapshots. Several may run: the
second CreateVolume returns the same volume.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

import grpc

from zonewise import log
from zonewise.api.names import CSI_DRIVER, CSI_TOPOLOGY_PREFIX
from zonewise.ceph.controller.events import CLAIM, CLAIM_NAMESPACE
from zonewise.ceph.spec import csi_pb2 as csi
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import ApiError, Conflict, NotFound
from zonewise.objects import NODES, Resource
from zonewise.objects.storage import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES, PersistentVolume
from zonewise.topology import milli_value

_SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
_PROVISIONER: Final = "volume.kubernetes.io/storage-provisioner"
_SIDECAR_PREFIX: Final = "csi.storage.k8s.io/"
_POLL_SECONDS: Final = 0.5
_TIMEOUT_SECONDS: Final = 60.0
_STORAGE_CLASSES: Resource[dict[str, Any]] = Resource(
    dict[str, Any], "StorageClass", "storageclasses", "storage.k8s.io", namespaced=False
)
_log = log.get_logger(__name__)
Json = dict[str, Any]


def request_for(claim: Json, parameters: Mapping[str, str], nodes: Mapping[str, Mapping[str, str]]) -> Any:
    """The CreateVolumeRequest; None if the claim is not ours or is bound, or its selected node has no topology yet."""
    metadata, spec = claim["metadata"], claim["spec"]
    annotations = metadata.get("annotations", {})
    selected = segments(nodes.get(annotations.get(_SELECTED_NODE, ""), {}))
    if spec.get("volumeName") or annotations.get(_PROVISIONER) != CSI_DRIVER or not selected:
        return None
    others = [topology for labels in nodes.values() if (topology := segments(labels)) and topology != selected]
    topologies = [csi.Topology(segments=topology) for topology in (selected, *others)]
    own = {name: value for name, value in parameters.items() if not name.startswith(_SIDECAR_PREFIX)}
    return csi.CreateVolumeRequest(
        name=f"pvc-{metadata['uid']}",
        parameters=own | {CLAIM: metadata["name"], CLAIM_NAMESPACE: metadata["namespace"]},
        capacity_range={"required_bytes": milli_value(spec["resources"]["requests"]["storage"]) // 1000},
        volume_capabilities=[
            csi.VolumeCapability(mount={"fs_type": "ext4"}, access_mode={"mode": "SINGLE_NODE_WRITER"})
        ],
        accessibility_requirements=csi.TopologyRequirement(requisite=topologies, preferred=topologies),
    )


def segments(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name.startswith(CSI_TOPOLOGY_PREFIX)}


def volume_for(claim: Json, volume: Any, parameters: Mapping[str, str]) -> Json:
    """The PersistentVolume, bound to the claim, with the accessible topology of the volume.

    The class's parameters name its file system, and the secret that the kubelet passes on to the node plugin.
    """
    metadata, spec = claim["metadata"], claim["spec"]
    terms = [
        {
            "matchExpressions": [
                {"key": key, "operator": "In", "values": [value]} for key, value in topology.segments.items()
            ]
        }
        for topology in volume.accessible_topology
    ]
    reference = {name: metadata[name] for name in ("namespace", "name", "uid")}
    node_affinity = (
        {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}} if terms else {}
    )  # without terms from every node
    return {
        "metadata": {
            "name": f"pvc-{metadata['uid']}",
            "annotations": {"pv.kubernetes.io/provisioned-by": CSI_DRIVER},
        },
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "storageClassName": spec["storageClassName"],
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", **reference},
            "csi": {
                "driver": CSI_DRIVER,
                "volumeHandle": volume.volume_id,
                "volumeAttributes": dict(volume.volume_context),
                **for_nodes(parameters),
            },
            **node_affinity,
        },
    }


def for_nodes(parameters: Mapping[str, str]) -> Json:
    """What of a class the kubelet reads in its volumes."""
    name, namespace = (parameters.get(f"{_SIDECAR_PREFIX}node-stage-secret-{part}") for part in ("name", "namespace"))
    file_system = parameters.get(f"{_SIDECAR_PREFIX}fstype")
    return {
        **({"fsType": file_system} if file_system else {}),
        **({"nodeStageSecretRef": {"name": name, "namespace": namespace}} if name and namespace else {}),
    }


class LabProvisioner:
    def __init__(self, client: Client, channel: grpc.aio.Channel) -> None:
        self._client = client
        self._channel = channel

    async def run(self) -> None:
        """Polls instead of watching: a lab has a handful of claims."""
        while True:
            with _retried("claims"):
                await self._provision()
            with _retried("released volumes"):
                await self._delete()
            await asyncio.sleep(_POLL_SECONDS)

    async def _provision(self) -> None:
        claims = [
            claim for claim in (await self._client.list(PERSISTENT_VOLUME_CLAIMS.whole())).items if _is_pending(claim)
        ]
        if not claims:
            return
        nodes = {node.metadata.name: node.metadata.labels for node in (await self._client.list(NODES)).items}
        for claim in claims:
            with _retried(claim["metadata"]["name"]):
                await self._provision_for(claim, nodes)

    async def _provision_for(self, claim: Json, nodes: Mapping[str, Mapping[str, str]]) -> None:
        storage_class = await self._client.get(_STORAGE_CLASSES, claim["spec"]["storageClassName"])
        parameters = storage_class.get("parameters", {})
        request = request_for(claim, parameters, nodes)
        if request is not None:
            volume = (await self._call("CreateVolume", request, csi.CreateVolumeResponse)).volume
            await self._write(volume_for(claim, volume, parameters))

    async def _write(self, volume: Json) -> None:
        try:
            await self._client.create(PERSISTENT_VOLUMES, volume)
        except Conflict:
            return
        pool = volume["spec"]["csi"]["volumeAttributes"].get("pool", "")
        _log.info("volume provisioned", volume=volume["metadata"]["name"], pool=pool)

    async def _delete(self) -> None:
        for volume in (await self._client.list(PERSISTENT_VOLUMES)).items:
            if handle := released_handle(volume):
                with _retried(volume.metadata.name), suppress(NotFound):
                    await self._call(
                        "DeleteVolume", csi.DeleteVolumeRequest(volume_id=handle), csi.DeleteVolumeResponse
                    )
                    await self._client.delete(PERSISTENT_VOLUMES, volume.metadata.name)

    async def _call(self, name: str, request: Any, response: Any) -> Any:
        send: Any = self._channel.unary_unary(
            f"/csi.v1.Controller/{name}", lambda message: message.SerializeToString(), response.FromString
        )
        return await send(request, timeout=_TIMEOUT_SECONDS, wait_for_ready=True)


def released_handle(volume: PersistentVolume) -> str:
    """The handle of a released volume of this driver with reclaim policy Delete; else empty."""
    source, policy = volume.spec.csi, volume.spec.persistent_volume_reclaim_policy
    if source is None or source.driver != CSI_DRIVER or policy != "Delete" or volume.status.phase != "Released":
        return ""
    return source.volume_handle


@contextmanager
def _retried(what: str) -> Iterator[None]:
    """Log the error; the next poll retries. One failing claim does not delay others."""
    try:
        yield
    except (ApiError, grpc.RpcError) as error:
        _log.warning("failed, retrying", object=what, error=str(error))


def _is_pending(claim: Json) -> bool:
    return not claim["spec"].get("volumeName") and _SELECTED_NODE in claim["metadata"].get("annotations", {})


async def serve(socket: str) -> None:
    """Runs until SIGTERM, which the first process of a container gets only if it asks for it."""
    async with Client(kubeconfig.default()) as client, grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        running = asyncio.ensure_future(LabProvisioner(client, channel).run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        with suppress(asyncio.CancelledError):
            await running


if __name__ == "__main__":
    log.configure()
    asyncio.run(serve(sys.argv[1]))
