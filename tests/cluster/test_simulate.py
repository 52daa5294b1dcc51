"""`zonewise simulate` on a live cluster and on its dump: the same Services, the same counts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from zonewise.lab.controlplane.controlplane import ControlPlane

ZONES = {"sim-a": 3, "sim-b": 1}


def simulate(*arguments: object) -> list[dict[str, Any]]:
    program = Path(sys.executable).with_name("zonewise")
    command = [program, "simulate", "-o", "json", "--algorithms", "balanced,optimal", *map(str, arguments)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    judged: list[dict[str, Any]] = json.loads(output)["tables"][0]["judged"]
    return judged


def worker(name: str, zone: str) -> dict[str, Any]:
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}}, "status": status}


def endpoint(number: int, node: str, *, ready: bool = True) -> dict[str, Any]:
    return {"addresses": [f"192.0.2.{number}"], "nodeName": node, "conditions": {"ready": ready}}


def test_live_cluster_and_its_dump_give_the_same_result(cluster: ControlPlane, namespace: str, tmp_path: Path) -> None:
    names = {f"{namespace}-{zone}-{number}": zone for zone, count in ZONES.items() for number in range(count)}
    first = next(iter(names))
    last = list(names)[-1]
    endpoints = [endpoint(1, first), endpoint(2, first), endpoint(3, last), endpoint(4, last, ready=False)]
    labels = {"kubernetes.io/service-name": "front", "endpointslice.kubernetes.io/managed-by": "test"}
    endpoint_slice = {"metadata": {"name": "front-1", "labels": labels}, "addressType": "IPv4", "endpoints": endpoints}
    slices = f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"
    try:
        for name, zone in names.items():
            cluster.request("POST", "/api/v1/nodes", worker(name, zone))
        cluster.request("POST", slices, endpoint_slice)
        live = [
            service
            for service in simulate("--from-cluster", "--kubeconfig", cluster.kubeconfig)
            if namespace in service["name"]
        ]
        dump = tmp_path / "dump.yaml"
        kubectl = [cluster.binaries / "kubectl", "--kubeconfig", cluster.kubeconfig, "get", "-A", "-o", "yaml"]
        with dump.open("w") as file:
            subprocess.run([*kubectl, "nodes,services,endpointslices"], stdout=file, check=True)
        dumped = [service for service in simulate("-f", dump) if namespace in service["name"]]
    finally:
        for name in names:
            cluster.request("DELETE", f"/api/v1/nodes/{name}")
    for (service,) in (live, dumped):
        assert service["name"] == f"{namespace}/front"
        by_zone = zip(service["zones"], service["nodes"], service["endpoints"], strict=True)
        counted = {zone: (nodes, endpoints) for zone, nodes, endpoints in by_zone if zone in ZONES}
        assert counted == {"sim-a": (3, 2), "sim-b": (1, 1)}, "nodes of other tests may be in other zones"
        assert service["totals"]["optimal"] >= service["totals"]["balanced"]
