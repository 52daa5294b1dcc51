"""A provisioner for labs, where no csi-provisioner can run: `python -m zonewise.ceph.lab_provisioner SOCKET`.

It does for a claim what that one does, and no more: once the scheduler has chosen a node it asks the driver for a volume in that
node's domain and writes the PersistentVolume; when that is released it has the volume deleted. No capacity, copies or snapshots.
Any number may run: whoever asks second gets the same volume.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

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

_SELECTED_NODE = "volume.kubernetes.io/selected-node"
_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
_OF_SIDECARS = "csi.storage.k8s.io/"
_LOOK_EVERY_SECONDS = 0.5
_DEADLINE_SECONDS = 60.0
_CLASSES: Resource[dict[str, Any]] = Resource(
    dict[str, Any], "StorageClass", "storageclasses", "storage.k8s.io", namespaced=False
)
_log = log.get_logger(__name__)
Json = dict[str, Any]


def request_for(claim: Json, parameters: Mapping[str, str], nodes: Mapping[str, Mapping[str, str]]) -> Any:
    """What to ask the driver for; None while nobody waits for the claim, or the node that was chosen has no domains yet."""
    metadata, spec = claim["metadata"], claim["spec"]
    said = metadata.get("annotations", {})
    mine = segments(nodes.get(said.get(_SELECTED_NODE, ""), {}))
    if spec.get("volumeName") or said.get(_PROVISIONER) != CSI_DRIVER or not mine:
        return None
    others = [found for labels in nodes.values() if (found := segments(labels)) and found != mine]
    topologies = [csi.Topology(segments=each) for each in (mine, *others)]
    own = {name: value for name, value in parameters.items() if not name.startswith(_OF_SIDECARS)}
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


def volume_for(claim: Json, made: Any) -> Json:
    """The PersistentVolume, tied to the claim and to where the driver says that the volume can be reached."""
    metadata, spec = claim["metadata"], claim["spec"]
    terms = [
        {
            "matchExpressions": [
                {"key": key, "operator": "In", "values": [value]} for key, value in each.segments.items()
            ]
        }
        for each in made.accessible_topology
    ]
    reference = {name: metadata[name] for name in ("namespace", "name", "uid")}
    reached = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}} if terms else {}  # else from everywhere
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
                "volumeHandle": made.volume_id,
                "volumeAttributes": dict(made.volume_context),
            },
            **reached,
        },
    }


class LabProvisioner:
    def __init__(self, client: Client, channel: grpc.aio.Channel) -> None:
        self._client = client
        self._channel = channel

    async def run(self) -> None:
        """Looks often rather than watches: a lab has a handful of claims."""
        while True:
            with _tried_again("claims"):
                await self._provision()
            with _tried_again("released volumes"):
                await self._delete()
            await asyncio.sleep(_LOOK_EVERY_SECONDS)

    async def _provision(self) -> None:
        claims = [each for each in (await self._client.list(PERSISTENT_VOLUME_CLAIMS.whole())).items if _waits(each)]
        if not claims:
            return
        nodes = {each.metadata.name: each.metadata.labels for each in (await self._client.list(NODES)).items}
        for claim in claims:
            with _tried_again(claim["metadata"]["name"]):
                await self._provision_for(claim, nodes)

    async def _provision_for(self, claim: Json, nodes: Mapping[str, Mapping[str, str]]) -> None:
        storage_class = await self._client.get(_CLASSES, claim["spec"]["storageClassName"])
        asked = request_for(claim, storage_class.get("parameters", {}), nodes)
        if asked is not None:
            made = (await self._call("CreateVolume", asked, csi.CreateVolumeResponse)).volume
            await self._write(volume_for(claim, made))

    async def _write(self, volume: Json) -> None:
        try:
            await self._client.create(PERSISTENT_VOLUMES, volume)
        except Conflict:
            return
        pool = volume["spec"]["csi"]["volumeAttributes"].get("pool", "")
        _log.info("provisioned", volume=volume["metadata"]["name"], pool=pool)

    async def _delete(self) -> None:
        for volume in (await self._client.list(PERSISTENT_VOLUMES)).items:
            if handle := done_with(volume):
                with _tried_again(volume.metadata.name), suppress(NotFound):
                    await self._call(
                        "DeleteVolume", csi.DeleteVolumeRequest(volume_id=handle), csi.DeleteVolumeResponse
                    )
                    await self._client.delete(PERSISTENT_VOLUMES, volume.metadata.name)

    async def _call(self, name: str, request: Any, answer: Any) -> Any:
        send: Any = self._channel.unary_unary(
            f"/csi.v1.Controller/{name}", lambda message: message.SerializeToString(), answer.FromString
        )
        return await send(request, timeout=_DEADLINE_SECONDS, wait_for_ready=True)


def done_with(volume: PersistentVolume) -> str:
    """The handle of a volume of ours whose claim is gone, and whose data may go, too; else empty."""
    source, policy = volume.spec.csi, volume.spec.persistent_volume_reclaim_policy
    if source is None or source.driver != CSI_DRIVER or policy != "Delete" or volume.status.phase != "Released":
        return ""
    return source.volume_handle


@contextmanager
def _tried_again(what: str) -> Iterator[None]:
    """At the next look: others must not wait for one that can't be had now."""
    try:
        yield
    except (ApiError, grpc.RpcError) as error:
        _log.warning("tried again", what=what, error=str(error))


def _waits(claim: Json) -> bool:
    return not claim["spec"].get("volumeName") and _SELECTED_NODE in claim["metadata"].get("annotations", {})


async def serve(socket: str) -> None:
    """Until killed."""
    async with Client(kubeconfig.default()) as client, grpc.aio.insecure_channel(f"unix:{socket}") as channel:
        await LabProvisioner(client, channel).run()


if __name__ == "__main__":
    log.configure()
    asyncio.run(serve(sys.argv[1]))
