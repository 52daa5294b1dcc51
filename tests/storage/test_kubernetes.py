"""deploy/csi.yaml on a real API server and a real Ceph: the driver's processes as their service accounts, and a zone that fails.

The test plays those whom Zonewise does not bring: the kubelet, which asks NodeGetInfo and writes what it hears, and the
provisioner, which asks CreateVolume for a pod's node and writes a PersistentVolume of the answer.
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

from support.ceph.cluster import Bed
from support.ceph.driver import MOUNT
from support.ceph.driver import Client as Csi
from support.install.deployed import SYSTEM, Deployed, audit_flags, documents, granted, scopes
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
) -> AsyncIterator[tuple[Deployed, Bed]]:
    settings: dict[str, Any] = {"programs": tuple(Program), "controllers": CONTROLLERS, "flags": audit_flags(folder)}
    plane = await asyncio.to_thread(start, **settings)
    site = Deployed(plane, folder)
    site.apply(MANIFEST)
    async with Client(kubeconfig.load(plane.kubeconfig)) as client:
        await asyncio.to_thread(plane.wait_service_account)
        data = {"config.json": json.dumps(ceph.csi_config())}
        await client.create(CONFIG_MAPS, {"metadata": {"name": CONFIG}, "data": data}, SYSTEM)
        yield site, Bed(client, "default", "topology.kubernetes.io")


async def node_kubeconfig(site: Deployed, bed: Bed, node: str) -> Path:
    """As a pod of the DaemonSet on that node gets it: the token says which node it was given out for."""
    name = f"plugin-{node}"
    spec = {"serviceAccountName": NODE, "nodeName": node, "containers": [{"name": "c", "image": "none"}]}
    pod = await bed.client.create(PODS, {"metadata": {"name": name}, "spec": spec}, SYSTEM)
    bound = {"kind": "Pod", "apiVersion": "v1", "name": name, "uid": pod.metadata.uid}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": bound}}
    path = SERVICE_ACCOUNTS.path(SYSTEM, NODE, "token")
    token = json.loads(await bed.client.request("POST", path, body=json.dumps(body).encode()))["status"]["token"]
    plain = await site.kubeconfig(bed.client, NODE)
    document = plain.read_text().splitlines()
    config = site.folder / f"{node}.config"
    config.write_text("\n".join(f"    token: {token}" if "token:" in line else line for line in document))
    return config


@asynccontextmanager
async def process(*arguments: object) -> AsyncIterator[Process]:
    started = await asyncio.to_thread(Process, str(ZONEWISE), "csi", *arguments, "--log-format", "json")
    try:
        await asyncio.to_thread(started.wait_ready)
        yield started
        _, metrics = await asyncio.to_thread(started.probe, "/metrics")
        assert "zonewise_csi_" in metrics
        started.signal(signal.SIGTERM)
        assert await asyncio.to_thread(started.end) == 0, "it ends in good order"
    except BaseException:
        print(*started.lines[-20:], sep="\n")
        raise
    finally:
        await asyncio.to_thread(started.remove)


def arguments_of(kind: str, *leave_out: str) -> list[str]:
    """Of our container in the manifest, but what only holds inside of one."""
    (workload,) = [each for each in documents(MANIFEST) if each["kind"] == kind]
    first, *arguments = workload["spec"]["template"]["spec"]["containers"][0]["args"]
    assert first == "csi"
    return [each for each in arguments if not each.startswith(leave_out)]


async def register(bed: Bed, csi: Csi, node: str) -> None:
    """As a kubelet does."""
    info = await asyncio.to_thread(csi.NodeGetInfo)
    segments = dict(info.accessible_topology.segments)
    labels = await bed.labels_of(node)
    assert {key: labels[key] for key in segments} == segments, "a kubelet refuses a driver that says otherwise"
    await bed.register(node, list(segments))


async def provision(bed: Bed, csi: Csi, ceph: LabCeph, name: str, node: str) -> Any:
    """As a provisioner does for a pod that waits on `node`: every key of its CSINode, from all nodes that have them."""
    keys = next(each for each in (await bed.client.get(CSI_NODES, node)).spec.drivers or () if each.name == CSI_DRIVER)
    mine, others = {}, []
    for each in (await bed.client.list(NODES)).items:
        if all(key in each.metadata.labels for key in keys.topology_keys):
            segments = {"segments": {key: each.metadata.labels[key] for key in keys.topology_keys}}
            if each.metadata.name == node:
                mine = segments
            else:
                others.append(segments)
    claim = {"csi.storage.k8s.io/pvc/name": name, "csi.storage.k8s.io/pvc/namespace": "default"}
    answer = await asyncio.to_thread(
        csi.CreateVolume,
        name=f"pvc-{bed.run}-{name}",
        secrets=ceph.secrets,
        parameters={"type": "rbd", **claim},
        volume_capabilities=[MOUNT],
        capacity_range={"required_bytes": 1 << 30},
        accessibility_requirements={"requisite": [mine, *others], "preferred": [mine, *others]},
    )
    return answer.volume


async def bind(bed: Bed, name: str, volume: Any) -> None:
    topologies = [dict(each.segments) for each in volume.accessible_topology]
    await bed.bind(name, topologies, volumeHandle=volume.volume_id, volumeAttributes=dict(volume.volume_context))


@pytest.mark.timeout(600)
async def test_the_driver_as_deployed(
    private_cluster: Callable[..., ControlPlane], tmp_path: Path, ceph_cluster: LabCeph
) -> None:
    ceph = ceph_cluster
    async with deployed(private_cluster, tmp_path, ceph) as (site, bed), AsyncExitStack() as stack:
        nodes = {zone: await bed.node(zone) for zone in ("zone-a", "zone-x")}
        (tmp_path / "csi.json").write_text(json.dumps(ceph.csi_config()))
        common = ("--config", tmp_path / "csi.json")
        plugins: dict[str, Csi] = {}
        for zone, node in nodes.items():
            socket = tmp_path / f"{zone}.sock"
            config = await node_kubeconfig(site, bed, node)
            left = arguments_of("DaemonSet", "--node-name", "--endpoint", "--daemon-cgroup", "--log-format")
            where = ("--endpoint", f"unix://{socket}", "--state-directory", tmp_path / zone, "--node-name", node)
            await stack.enter_async_context(process(*left, *common, *where, "--kubeconfig", config, "--health-port", 0))
            plugins[zone] = Csi(socket)
            stack.callback(plugins[zone].channel.close)
            await register(bed, plugins[zone], node)
        socket = tmp_path / "controller.sock"
        config = await site.kubeconfig(bed.client, CONTROLLER)
        left = arguments_of("Deployment", "--log-format")
        await stack.enter_async_context(
            process(
                *left, *common, "--endpoint", f"unix://{socket}", "--kubeconfig", config, "--health-port", 0, *QUICK
            )
        )
        csi = Csi(socket)
        stack.callback(csi.channel.close)

        await provision_by_domain(bed, csi, ceph, nodes)
        await fail_and_recover(bed, nodes, site)
        await relabel(bed, nodes["zone-x"])
        assert not site.refused(NODE)
        await only_its_own(site, bed, nodes)
        rights(site)


async def provision_by_domain(bed: Bed, csi: Csi, ceph: LabCeph, nodes: Mapping[str, str]) -> None:
    made = await provision(bed, csi, ceph, "data", nodes["zone-a"])
    assert made.volume_context["pool"] == ceph.pool("zone-a")
    assert made.accessible_topology[0].segments == {f"{CSI_TOPOLOGY_PREFIX}zone": "zone-a"}
    await bind(bed, "data", made)
    await bed.pod("db", "data")
    assert await bed.until_scheduled("db") == nodes["zone-a"]

    claim = {
        "metadata": {"name": "stray"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "",
        },
    }
    await bed.client.create(PERSISTENT_VOLUME_CLAIMS, claim, "default")
    made = await provision(bed, csi, ceph, "stray", nodes["zone-x"])
    assert not made.accessible_topology, "as if nothing had been asked for"

    async def told() -> bool:
        events = (await bed.client.list(EVENTS, "default", fields="regarding.name=stray")).items
        return any(event.reason == "UnknownDomain" and "zone=zone-x" in event.note for event in events)

    await eventually(told, "the claim is told that no pool is for its domain")


async def fail_and_recover(bed: Bed, nodes: Mapping[str, str], site: Deployed) -> None:
    assert "1 of 2 nodes reach it" in explain(site, "data")
    await bed.fail(nodes["zone-a"])
    await bed.remove_pod("db")
    await bed.pod("db-2", "data")
    assert await bed.until_scheduled("db-2") == nodes["zone-x"]
    said = explain(site, "data")
    assert "by takeover" in said
    assert "Takeover   of zone=zone-a: by zone=zone-x" in said
    await bed.recover(nodes["zone-a"])
    await bed.until_labelled(nodes["zone-x"], {takeover_key("zone", "zone-a"): None})
    await bed.remove_pod("db-2")
    await bed.pod("db-3", "data")
    assert await bed.until_scheduled("db-3") == nodes["zone-a"]


def explain(site: Deployed, claim: str) -> str:
    command = [str(ZONEWISE), "explain", "volume", claim, "-n", "default", "--kubeconfig", str(site.plane.kubeconfig)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def relabel(bed: Bed, node: str) -> None:
    """A node that moves: labels and registration follow."""
    await bed.label(node, {bed.region_label: None, bed.zone_label: "zone-b"})
    await bed.until_labelled(node, {f"{CSI_TOPOLOGY_PREFIX}zone": "zone-b", f"{CSI_TOPOLOGY_PREFIX}region": None})

    async def follows() -> bool:
        drivers = (await bed.client.get(CSI_NODES, node)).spec.drivers or ()
        return [list(each.topology_keys) for each in drivers] == [[f"{CSI_TOPOLOGY_PREFIX}zone"]]

    await eventually(follows)


async def only_its_own(site: Deployed, bed: Bed, nodes: Mapping[str, str]) -> None:
    """What the roles can't keep a node plugin from, the policy does."""
    own, other = nodes["zone-a"], nodes["zone-x"]
    async with Client(kubeconfig.load(site.folder / f"{own}.config")) as plugin:
        harmless = MergePatch({"metadata": {"labels": {takeover_key("zone", "z"): "active"}}})
        await plugin.patch(NODES, own, harmless, dry_run=True)
        for node, change in (
            (other, {"metadata": {"labels": {takeover_key("zone", "z"): "active"}}}),
            (own, {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
            (own, {"metadata": {"labels": {bed.zone_label: "zone-b"}}}),
            (own, {"metadata": {"annotations": {"zonewise.dev/drain-zone": "true"}}}),
            (own, {"metadata": {"annotations": {"kwok.x-k8s.io/node": None}}}),
            (own, {"metadata": {"annotations": {REJOINING: "{}"}}}),
            (own, {"metadata": {"finalizers": ["example.com/never"]}}),
            (own, {"metadata": {"ownerReferences": [OWNER]}}),
            (own, {"spec": {"unschedulable": True}}),
            (own, {"spec": {"taints": []}, "metadata": {"labels": {bed.zone_label: None}}}),
        ):
            with pytest.raises(Forbidden):
                await plugin.patch(NODES, node, MergePatch(change), dry_run=True)
        for change_name in (CSI_DRIVER, "other.example"):
            whole = await bed.client.get(CSI_NODES.whole(), other if change_name == CSI_DRIVER else own)
            whole["spec"]["drivers"] = [{"name": change_name, "nodeID": "n", "topologyKeys": []}]
            with pytest.raises(ApiError):
                await plugin.update(CSI_NODES.whole(), whole, dry_run=True)
        whole = await bed.client.get(CSI_NODES.whole(), own)
        whole["metadata"].setdefault("annotations", {})[REJOINING] = "{}"
        await plugin.update(CSI_NODES.whole(), whole, dry_run=True)
        for change in ({"annotations": {"example.com/note": ""}}, {"finalizers": ["example.com/never"]}):
            with pytest.raises(Forbidden):
                await plugin.update(
                    CSI_NODES.whole(), {**whole, "metadata": {**whole["metadata"], **change}}, dry_run=True
                )


def rights(site: Deployed) -> None:
    """Each did what it may, and nothing more; what the sidecars need is theirs. Only repeated events may not have come."""
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
        done = site.done(account)
        own = granted_by(account)
        assert done <= own, account
        assert own - done <= repeats, account
        assert site.used(MANIFEST, account) <= scopes(MANIFEST, account), "where, too"
    assert not site.refused(CONTROLLER)
    assert sidecars <= granted(MANIFEST, CONTROLLER)


def granted_by(account: str) -> set[tuple[str, str]]:
    """Of the roles that carry the account's own name."""
    return {
        (verb, f"{resource}.{group}".rstrip("."))
        for role in documents(MANIFEST)
        if role["kind"] in {"Role", "ClusterRole"} and role["metadata"]["name"] == account
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_nothing_is_allowed_everywhere() -> None:
    for document in documents(MANIFEST):
        for rule in document.get("rules", []) if document["kind"].endswith("Role") else []:
            assert "*" not in {*rule["verbs"], *rule["resources"], *rule["apiGroups"]}
