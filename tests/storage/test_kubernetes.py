"""deploy/csi.yaml on a real API server and a real Ceph cluster: the driver under its service accounts, and a zone that fails.

The test acts as kubelet, which calls NodeGetInfo and writes the topology, and as csi-provisioner, which calls
CreateVolume for a pod's node and writes the PersistentVolume.
"""

import asyncio
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.ceph.cluster import CsiCluster
from support.ceph.driver import MOUNT
from support.ceph.driver import Client as Csi
from support.install.deployed import SYSTEM, Deployed, audit_flags, documents, granted, scopes, token_in
from support.lab.machine import ZONEWISE
from support.process import Program as Process
from support.waiting import eventually
from zonewise.api.names import CSI_DRIVER, CSI_TOPOLOGY_PREFIX
from zonewise.ceph.decide.csinode import REJOINING
from zonewise.ceph.decide.domains import takeover_key
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import ApiError, Forbidden
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.ceph.cluster import LabCeph
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.objects import CONFIG_MAPS, EVENTS, NODES, PODS, SERVICE_ACCOUNTS
from zonewise.objects.storage import CSI_NODES, PERSISTENT_VOLUME_CLAIMS

MANIFEST = "csi.yaml"
CONTROLLER, NODE = "zonewise-csi-controller", "zonewise-csi-node"
CONFIG = "zonewise-csi-config"
CONTROLLERS = (
    "persistentvolume-binder-controller,serviceaccount-controller,node-lifecycle-controller,taint-eviction-controller"
)
OWNER = {"apiVersion": "v1", "kind": "Node", "name": "other", "uid": "0c8a5a6e-0000-0000-0000-000000000000"}
QUICK = ("--auto-takeover", "--takeover-after", "1", "--giveback-after", "1", "--lease-seconds", "3")


@asynccontextmanager
async def deployed(
    start: Callable[..., ControlPlane], folder: Path, ceph: LabCeph
) -> AsyncIterator[tuple[Deployed, CsiCluster]]:
    settings: dict[str, Any] = {"programs": tuple(Program), "controllers": CONTROLLERS, "flags": audit_flags(folder)}
    plane = await asyncio.to_thread(start, **settings)
    site = Deployed(plane, folder)
    site.apply(MANIFEST)
    async with Client(kubeconfig.load(plane.kubeconfig)) as client:
        await asyncio.to_thread(plane.wait_service_account)
        data = {"config.json": json.dumps(ceph.csi_config())}
        await client.create(CONFIG_MAPS, {"metadata": {"name": CONFIG}, "data": data}, SYSTEM)
        yield site, CsiCluster(client, "default", "topology.kubernetes.io")


async def node_kubeconfig(site: Deployed, kube: CsiCluster, node: str) -> Path:
    """As for a pod of the DaemonSet on that node: the token is bound to the node."""
    name = f"plugin-{node}"
    spec = {"serviceAccountName": NODE, "nodeName": node, "containers": [{"name": "c", "image": "none"}]}
    pod = await kube.client.create(PODS, {"metadata": {"name": name}, "spec": spec}, SYSTEM)
    bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": pod.metadata.uid}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
    path = SERVICE_ACCOUNTS.path(SYSTEM, NODE, "token")
    token = json.loads(await kube.client.request("POST", path, body=json.dumps(body).encode()))["status"]["token"]
    plain = await site.kubeconfig(kube.client, NODE)
    document = plain.read_text().splitlines()
    config = site.folder / f"{node}.config"
    config.write_text("\n".join(f"    token: {token}" if "token:" in line else line for line in document))
    return config


@asynccontextmanager
async def process(*arguments: object) -> AsyncIterator[Process]:
    started = await asyncio.to_thread(Process, str(ZONEWISE), "csi", *arguments, "--log-format", "json")
    try:
        await asyncio.to_thread(started.wait_ready)
        config = arguments[arguments.index("--kubeconfig") + 1]
        assert isinstance(config, Path)
        assert (await asyncio.to_thread(started.scrape, token_in(config)))[0] == 403
        yield started
        _, metrics = await asyncio.to_thread(started.probe, "/metrics")
        assert "zonewise_csi_" in metrics
        started.signal(signal.SIGTERM)
        assert await asyncio.to_thread(started.end) == 0, "it exits cleanly"
    except BaseException:
        print(*started.lines[-20:], sep="\n")
        raise
    finally:
        await asyncio.to_thread(started.remove)


def serving(config: Path) -> tuple[object, ...]:
    return ("--kubeconfig", config, "--health-port", 0, "--metrics-port", 0)


def arguments_of(kind: str, *leave_out: str) -> list[str]:
    """Arguments of the driver's container in the manifest, without those that only work inside it."""
    (workload,) = [document for document in documents(MANIFEST) if document["kind"] == kind]
    first, *arguments = workload["spec"]["template"]["spec"]["containers"][0]["args"]
    assert first == "csi"
    return [argument for argument in arguments if not argument.startswith(leave_out)]


async def register(kube: CsiCluster, csi: Csi, node: str) -> None:
    """As kubelet does."""
    info = await asyncio.to_thread(csi.NodeGetInfo)
    segments = dict(info.accessible_topology.segments)
    labels = await kube.labels_of(node)
    assert {key: labels[key] for key in segments} == segments, "kubelet refuses a driver with other segments"
    await kube.register(node, list(segments))


async def provision(kube: CsiCluster, csi: Csi, ceph: LabCeph, name: str, node: str) -> Any:
    """As csi-provisioner does for a pod on `node`: the topology keys of its CSINode, from all nodes that have them."""
    drivers = (await kube.client.get(CSI_NODES, node)).spec.drivers or ()
    keys = next(driver for driver in drivers if driver.name == CSI_DRIVER).topology_keys
    selected, others = {}, []
    for candidate in (await kube.client.list(NODES)).items:
        if all(key in candidate.metadata.labels for key in keys):
            segments = {"segments": {key: candidate.metadata.labels[key] for key in keys}}
            if candidate.metadata.name == node:
                selected = segments
            else:
                others.append(segments)
    claim = {"csi.storage.k8s.io/pvc/name": name, "csi.storage.k8s.io/pvc/namespace": "default"}
    response = await asyncio.to_thread(
        csi.CreateVolume,
        name=f"pvc-{kube.run}-{name}",
        secrets=ceph.secrets,
        parameters={"type": "rbd", **claim},
        volume_capabilities=[MOUNT],
        capacity_range={"required_bytes": 1 << 30},
        accessibility_requirements={"requisite": [selected, *others], "preferred": [selected, *others]},
    )
    return response.volume


async def bind(kube: CsiCluster, name: str, volume: Any) -> None:
    topologies = [dict(topology.segments) for topology in volume.accessible_topology]
    await kube.bind(name, topologies, volumeHandle=volume.volume_id, volumeAttributes=dict(volume.volume_context))


@pytest.mark.timeout(600)
async def test_deployed_driver_provisions_and_survives_a_zone_failure(
    private_cluster: Callable[..., ControlPlane], tmp_path: Path, ceph_cluster: LabCeph
) -> None:
    ceph = ceph_cluster
    async with deployed(private_cluster, tmp_path, ceph) as (site, kube), AsyncExitStack() as stack:
        nodes = {zone: await kube.node(zone) for zone in ("zone-a", "zone-x")}
        (tmp_path / "csi.json").write_text(json.dumps(ceph.csi_config()))
        common = ("--config", tmp_path / "csi.json")
        plugins: dict[str, Csi] = {}
        for zone, node in nodes.items():
            socket = tmp_path / f"{zone}.sock"
            config = await node_kubeconfig(site, kube, node)
            left_out = ("--node-name", "--endpoint", "--daemon-cgroup", "--registration-directory", "--log-format")
            arguments = arguments_of("DaemonSet", *left_out)
            own_arguments = (
                "--endpoint",
                f"unix://{socket}",
                "--state-directory",
                tmp_path / zone,
                "--node-name",
                node,
            )
            await stack.enter_async_context(process(*arguments, *common, *own_arguments, *serving(config)))
            plugins[zone] = Csi(socket)
            stack.callback(plugins[zone].channel.close)
            await register(kube, plugins[zone], node)
        socket = tmp_path / "controller.sock"
        config = await site.kubeconfig(kube.client, CONTROLLER)
        arguments = arguments_of("Deployment", "--log-format")
        await stack.enter_async_context(
            process(
                *arguments,
                *common,
                "--endpoint",
                f"unix://{socket}",
                *serving(config),
                *QUICK,
            )
        )
        csi = Csi(socket)
        stack.callback(csi.channel.close)

        await provision_by_domain(kube, csi, ceph, nodes)
        await fail_and_recover(kube, nodes, site)
        await relabel(kube, nodes["zone-x"])
        assert not site.refused(NODE)
        await only_its_own(site, kube, nodes)
        rights(site)


async def provision_by_domain(kube: CsiCluster, csi: Csi, ceph: LabCeph, nodes: Mapping[str, str]) -> None:
    volume = await provision(kube, csi, ceph, "data", nodes["zone-a"])
    assert volume.volume_context["pool"] == ceph.pool("zone-a")
    assert volume.accessible_topology[0].segments == {f"{CSI_TOPOLOGY_PREFIX}zone": "zone-a"}
    await bind(kube, "data", volume)
    await kube.pod("db", "data")
    assert await kube.until_scheduled("db") == nodes["zone-a"]

    claim = {
        "metadata": {"name": "stray"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "",
        },
    }
    await kube.client.create(PERSISTENT_VOLUME_CLAIMS, claim, "default")
    volume = await provision(kube, csi, ceph, "stray", nodes["zone-x"])
    assert not volume.accessible_topology, "accessible from every node"

    async def has_event() -> bool:
        events = (await kube.client.list(EVENTS, "default", fields="regarding.name=stray")).items
        return any(event.reason == "UnknownDomain" and "zone=zone-x" in event.note for event in events)

    await eventually(has_event, "the claim has an event about its domain")


async def fail_and_recover(kube: CsiCluster, nodes: Mapping[str, str], site: Deployed) -> None:
    assert "1 of 2 nodes reach it" in explain(site, "data")
    await kube.fail(nodes["zone-a"])
    await kube.remove_pod("db")
    await kube.pod("db-2", "data")
    assert await kube.until_scheduled("db-2") == nodes["zone-x"]
    explanation = explain(site, "data")
    assert "by takeover" in explanation
    assert "Takeover   of zone=zone-a: by zone=zone-x" in explanation
    await kube.recover(nodes["zone-a"])
    await kube.until_labelled(nodes["zone-x"], {takeover_key("zone", "zone-a"): None})
    await kube.remove_pod("db-2")
    await kube.pod("db-3", "data")
    assert await kube.until_scheduled("db-3") == nodes["zone-a"]


def explain(site: Deployed, claim: str) -> str:
    command = [str(ZONEWISE), "explain", "volume", claim, "-n", "default", "--kubeconfig", str(site.plane.kubeconfig)]
    result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


async def relabel(kube: CsiCluster, node: str) -> None:
    """A node that moves: its labels and its CSINode follow."""
    await kube.label(node, {kube.region_label: None, kube.zone_label: "zone-b"})
    await kube.until_labelled(node, {f"{CSI_TOPOLOGY_PREFIX}zone": "zone-b", f"{CSI_TOPOLOGY_PREFIX}region": None})

    async def is_updated() -> bool:
        drivers = (await kube.client.get(CSI_NODES, node)).spec.drivers or ()
        return [list(driver.topology_keys) for driver in drivers] == [[f"{CSI_TOPOLOGY_PREFIX}zone"]]

    await eventually(is_updated)


async def only_its_own(site: Deployed, kube: CsiCluster, nodes: Mapping[str, str]) -> None:
    """The admission policy limits a node plugin to its own objects, which RBAC can't."""
    own, other = nodes["zone-a"], nodes["zone-x"]
    async with Client(kubeconfig.load(site.folder / f"{own}.config")) as plugin:
        allowed = MergePatch({"metadata": {"labels": {takeover_key("zone", "z"): "active"}}})
        await plugin.patch(NODES, own, allowed, dry_run=True)
        for node, change in (
            (other, {"metadata": {"labels": {takeover_key("zone", "z"): "active"}}}),
            (own, {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
            (own, {"metadata": {"labels": {kube.zone_label: "zone-b"}}}),
            (own, {"metadata": {"annotations": {"zonewise.dev/drain-zone": "true"}}}),
            (own, {"metadata": {"annotations": {"kwok.x-k8s.io/node": None}}}),
            (own, {"metadata": {"annotations": {REJOINING: "{}"}}}),
            (own, {"metadata": {"finalizers": ["example.com/never"]}}),
            (own, {"metadata": {"ownerReferences": [OWNER]}}),
            (own, {"spec": {"unschedulable": True}}),
            (own, {"spec": {"taints": []}, "metadata": {"labels": {kube.zone_label: None}}}),
        ):
            with pytest.raises(Forbidden):
                await plugin.patch(NODES, node, MergePatch(change), dry_run=True)
        for change_name in (CSI_DRIVER, "other.example"):
            whole = await kube.client.get(CSI_NODES.whole(), other if change_name == CSI_DRIVER else own)
            whole["spec"]["drivers"] = [{"name": change_name, "nodeID": "n", "topologyKeys": []}]
            with pytest.raises(ApiError):
                await plugin.update(CSI_NODES.whole(), whole, dry_run=True)
        whole = await kube.client.get(CSI_NODES.whole(), own)
        whole["metadata"].setdefault("annotations", {})[REJOINING] = "{}"
        await plugin.update(CSI_NODES.whole(), whole, dry_run=True)
        for change in ({"annotations": {"example.com/note": ""}}, {"finalizers": ["example.com/never"]}):
            with pytest.raises(Forbidden):
                await plugin.update(
                    CSI_NODES.whole(), {**whole, "metadata": {**whole["metadata"], **change}}, dry_run=True
                )


def rights(site: Deployed) -> None:
    """Each account used exactly its rights, except those of sidecars and for repeated events."""
    sidecars = {
        (verb, f"{resource}.{group}".rstrip("."))
        for role in documents(MANIFEST)
        if role["metadata"]["name"] == "zonewise-csi-sidecars"
        for rule in role.get("rules", [])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    repeats = {("patch", "events.events.k8s.io")}
    for account in (CONTROLLER, NODE):
        used = site.used_rights(account)
        rights_of_account = granted_by(account)
        assert used <= rights_of_account, account
        assert rights_of_account - used <= repeats, account
        assert site.used(MANIFEST, account) <= scopes(MANIFEST, account), "in the granted namespaces only"
    assert not site.refused(CONTROLLER)
    assert sidecars <= granted(MANIFEST, CONTROLLER)


def granted_by(account: str) -> set[tuple[str, str]]:
    """Rights from the roles with the account's name."""
    return {
        (verb, f"{resource}.{group}".rstrip("."))
        for role in documents(MANIFEST)
        if role["kind"] in {"Role", "ClusterRole"} and role["metadata"]["name"] == account
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_roles_have_no_wildcards() -> None:
    for document in documents(MANIFEST):
        for rule in document.get("rules", []) if document["kind"].endswith("Role") else []:
            assert "*" not in {*rule["verbs"], *rule["resources"], *rule["apiGroups"]}
