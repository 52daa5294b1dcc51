"""`zonewise csi takeover`, `zonewise csi giveback` and `zonewise explain volume`."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from support.ceph.cluster import CONFIG, volume_body
from support.cli.output import described
from zonewise.ceph.decide.domains import accessible_topology
from zonewise.cli.main import main
from zonewise.lab.controlplane.controlplane import ControlPlane

pytestmark = pytest.mark.xdist_group("ceph-cluster")  # they label nodes of the shared cluster

CLASSES = "/apis/storage.k8s.io/v1/storageclasses"
VOLUMES = "/api/v1/persistentvolumes"
POOLS = [{"poolName": "rbd-a", "domainSegments": [{"domainLabel": "zone", "value": "zone-a"}]}]
CLUSTERS = [{"clusterID": "one", "monitors": ["10.0.0.1"], "rbd": {"pool": "j", "topologyConstrainedPools": POOLS}}]


class Commands:
    def __init__(self, cluster: ControlPlane, namespace: str, output: pytest.CaptureFixture[str]) -> None:
        self.cluster = cluster
        self.output = output
        self.namespace = namespace
        self.run_name = uuid.uuid4().hex[:8]
        self.labels = f"{self.run_name}.example.com/zone"

    def run(self, *arguments: str, code: int = 0) -> str:
        options = ("--config-map", f"{self.namespace}/{CONFIG}", "--domain-labels", self.labels)
        with pytest.raises(SystemExit) as error:
            main([*arguments, *options, "--kubeconfig", str(self.cluster.kubeconfig)])
        printed = self.output.readouterr()
        assert error.value.code == code, printed
        assert printed.err.count("\n") == (1 if printed.err else 0)
        return printed.out + printed.err

    def config(self) -> Any:
        path = f"/api/v1/namespaces/{self.namespace}/configmaps/{CONFIG}"
        return json.loads(self.cluster.request("GET", path)["data"]["config.json"])

    def claim(self, name: str, **spec: Any) -> None:
        resources = {"requests": {"storage": "1Gi"}}
        body = {"metadata": {"name": name}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": resources, **spec}}
        self.cluster.request("POST", f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims", body)


@pytest.fixture
def commands(cluster: ControlPlane, namespace: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Commands]:
    created = Commands(cluster, namespace, capsys)
    text = json.dumps({"version": 2, "clusters": CLUSTERS, "topology-takeover": {}})
    body = {"metadata": {"name": CONFIG}, "data": {"config.json": text}}
    cluster.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", body)
    nodes = {zone: f"{created.run_name}-{zone}" for zone in ("zone-a", "zone-b")}
    for zone, node in nodes.items():
        cluster.request("POST", "/api/v1/nodes", {"metadata": {"name": node, "labels": {created.labels: zone}}})
    yield created
    for node in nodes.values():
        cluster.request("DELETE", f"/api/v1/nodes/{node}")


def test_takeover_and_giveback_edit_the_map(commands: Commands) -> None:
    assert "zone=zone-a is taken over by zone-b, zone-c" in commands.run(
        "csi", "takeover", "zone=zone-a", "zone-b", "zone-c"
    )
    assert commands.config() == {
        "version": 2,
        "clusters": CLUSTERS,
        "topology-takeover": {"zone=zone-a": ["zone-b", "zone-c"]},
    }
    assert "would have" in commands.run("csi", "takeover", "zone=zone-b", "all", "--dry-run")
    assert "can't take over itself" in commands.run("csi", "takeover", "zone-b", "zone-b", code=2)
    assert "there are: zone=zone-a" in commands.run("csi", "giveback", "zone-x", code=1)
    assert "no takeover" in commands.run("csi", "giveback", "zone-a")
    assert commands.config()["topology-takeover"] == {}


def test_entry_is_found_with_or_without_its_label(commands: Commands) -> None:
    """`explain volume` prints the label, which the map may omit."""
    assert "  zone-a is taken over by zone-b" in commands.run("csi", "takeover", "zone-a", "zone-b")
    assert "  zone-a is taken over by all" in commands.run("csi", "takeover", "zone=zone-a", "all")
    assert commands.config()["topology-takeover"] == {"zone-a": ["all"]}
    assert "there are: zone-a" in commands.run("csi", "giveback", "rack=zone-a", code=1)
    assert "no takeover" in commands.run("csi", "giveback", "zone=zone-a")
    assert "zone=zone-a is taken over by all" in commands.run("csi", "takeover", f"{commands.labels}=zone-a", "all")
    assert "no takeover" in commands.run("csi", "giveback", f"{commands.labels}=zone-a")


def test_bound_and_pending_claims_are_explained(commands: Commands, cluster: ControlPlane) -> None:
    name = f"{commands.run_name}-rbd"
    waits = {"provisioner": "ceph.zonewise.dev", "volumeBindingMode": "WaitForFirstConsumer"}
    cluster.request("POST", CLASSES, {"metadata": {"name": name}, "parameters": {"type": "rbd"}, **waits})
    volume = volume_body(
        f"{commands.run_name}-v", accessible_topology((("zone", "zone-a"),)), commands.namespace, "bound"
    )
    volume["spec"]["csi"]["volumeAttributes"] = {"pool": "rbd-a", "reason": "PreferredDomain"}
    cluster.request("POST", VOLUMES, volume)
    try:
        commands.claim("waits", storageClassName=name)
        commands.claim("bound", storageClassName="none", volumeName=volume["metadata"]["name"])
        waiting = commands.run("explain", "volume", "waits", "-n", commands.namespace, code=1)
        assert "Pool       for a pod in zone=zone-a: rbd-a" in waiting
        explanation = commands.run("explain", "volume", f"{commands.namespace}/bound", code=1)  # no node plugin runs
        assert "lies in pool rbd-a of zone=zone-a: 0 of" in explanation
        assert "Pool       rbd-a: it is the pool of the domain of the pod" in explanation
        assert "`zonewise csi takeover zone=zone-a all` would let more nodes reach it" in explanation
        assert "is in zone=zone-a and does not advertise it" in explanation
        printed = commands.run("explain", "volume", f"{commands.namespace}/bound", "-o", "json", code=1)
        assert described("explain volume", printed)["domain"] == "zone=zone-a"
        assert "no claim" in commands.run("explain", "volume", "missing", "-n", commands.namespace, code=1)
    finally:
        cluster.request("DELETE", f"{VOLUMES}/{volume['metadata']['name']}")
        cluster.request("DELETE", f"{CLASSES}/{name}")
