"""Dump of a large cluster, as `kubectl get -A -o yaml` or `-o json` prints it, with all the fields that a plan skips.

A few objects of each kind are serialized. All others are copies with names, nodes and addresses replaced, because a dump
has half a gigabyte and a YAML writer takes minutes for that.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bench.kube.pods import pod

ZONES = tuple(f"eu-1{letter}" for letter in "abcdef")
NAMESPACES = 40
SAMPLES = 25
_POLICIES: tuple[dict[str, str], ...] = (
    {},
    {"endpointslice.kubernetes.io/same-zone": "Prefer"},
    {"endpointslice.kubernetes.io/same-zone": "Require"},
    {"service.kubernetes.io/topology-mode": "Auto"},
    {"zonewise.dev/topology-keys": '["kubernetes.io/hostname", "topology.kubernetes.io/zone", "*"]'},
)
_PLACEHOLDERS = ("NAME", "NAMESPACE", "APP", "NODE", "ZONE", "ADDRESS")


class Size(NamedTuple):
    nodes: int
    services: int
    pods: int


class Names(NamedTuple):
    """Values of the placeholders: xNODEx, or xNODE7x for the eighth endpoint of a slice."""

    name: str
    namespace: str
    app: str
    node: str
    zone: str
    address: str


Form = Callable[[list[Any]], str]


def write(path: Path, size: Size, *, slices: bool, form: str = "yaml") -> None:
    """With EndpointSlices, or with pods only."""
    begin, between, end = _FRAMES[form]
    with path.open("w") as file:
        file.write(begin)
        for index, text in enumerate(_texts(size, _FORMS[form], slices=slices)):
            file.write(f"{between if index else ''}{text}")
        file.write(end)


def _yaml(items: list[Any]) -> str:
    return yaml.dump(items, Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), width=10_000)


def _json(items: list[Any]) -> str:
    return json.dumps(items, indent=4)[2:-2]


_FORMS: dict[str, Form] = {"yaml": _yaml, "json": _json}
_FRAMES = {
    "yaml": ("apiVersion: v1\nitems:\n", "", 'kind: List\nmetadata:\n  resourceVersion: ""\n'),
    "json": ('{"apiVersion": "v1", "items": [\n', ",\n", '], "kind": "List", "metadata": {"resourceVersion": ""}}\n'),
}


def _texts(size: Size, form: Form, *, slices: bool) -> Iterator[str]:
    nodes = [form([_node()])]
    services = [form([_service(policy)]) for policy in _POLICIES]
    pods = [form([_pod(index)]) for index in range(SAMPLES)]
    yield from (_fill(nodes, index, _of_node(index)) for index in range(size.nodes))
    yield from (_fill(services, index, _of_service(index)) for index in range(size.services))
    if slices:
        yield from _slices(size, form)
    yield from (_fill(pods, index, _of_pod(index, size)) for index in range(size.pods))


def _slices(size: Size, form: Form) -> Iterator[str]:
    served = cache(lambda count: form([_slice(count)]))
    for index in range(size.services):
        pods = range(index, size.pods, size.services)
        text = _fill([served(len(pods))], 0, _of_service(index))
        for number, pod_index in enumerate(pods):
            text = _fill([text], 0, _of_pod(pod_index, size), str(number))
        yield text


def _fill(templates: list[str], index: int, names: Names, number: str = "") -> str:
    text = templates[index % len(templates)]
    for word, value in zip(_PLACEHOLDERS, names, strict=True):
        text = text.replace(f"x{word}{number}x", value)
    return text


def _of_node(index: int) -> Names:
    return Names(f"node-{index}", "", "", f"node-{index}", ZONES[index % len(ZONES)], "")


def _of_service(index: int) -> Names:
    name, address = f"web-{index}", f"10.96.{index >> 8}.{index & 255}"
    return Names(name, f"team-{index % NAMESPACES}", name, "", "", address)


def _of_pod(index: int, size: Size) -> Names:
    service = index % size.services
    node = (index * 2_654_435_761 >> 8) % size.nodes  # scattered, but reproducible
    address = f"10.{128 + (index >> 16)}.{index >> 8 & 255}.{index & 255}"
    return Names(
        f"web-{service}-{index}",
        f"team-{service % NAMESPACES}",
        f"web-{service}",
        f"node-{node}",
        ZONES[node % len(ZONES)],
        address,
    )


def _pod(index: int) -> dict[str, Any]:
    """Without managedFields, which kubectl omits."""
    made = pod(index, random.Random(index))
    metadata, labels = made["metadata"], made["metadata"]["labels"]
    del metadata["managedFields"]
    metadata |= {"name": "xNAMEx", "namespace": "xNAMESPACEx", "labels": labels | {"app": "xAPPx"}}
    made["spec"]["nodeName"] = "xNODEx"
    made["status"] |= {"podIP": "xADDRESSx", "podIPs": [{"ip": "xADDRESSx"}]}
    return made


def _node() -> dict[str, Any]:
    capacity = {"cpu": "16", "memory": "65536Mi", "pods": "110", "ephemeral-storage": "101430960Ki"}
    labels = {"kubernetes.io/hostname": "xNODEx", "topology.kubernetes.io/zone": "xZONEx", "kubernetes.io/os": "linux"}
    images = [
        {"names": [f"registry.example/app-{number}:v1.{number}"], "sizeBytes": 1_000_000 + number}
        for number in range(50)
    ]
    conditions = [
        {"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": f"Kubelet{kind}"}
        for kind, status in (("MemoryPressure", "False"), ("DiskPressure", "False"), ("Ready", "True"))
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "xNAMEx", "labels": labels, "uid": "0" * 32, "resourceVersion": "1"},
        "spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"], "providerID": "example://xNAMEx"},
        "status": {
            "allocatable": capacity,
            "capacity": dict(capacity),
            "conditions": conditions,
            "images": images,
            "nodeInfo": {"kubeletVersion": "v1.34.0", "osImage": "Linux", "architecture": "amd64"},
        },
    }


def _service(policy: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "xNAMEx", "namespace": "xNAMESPACEx", "annotations": policy, "labels": {"app": "xAPPx"}},
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "xADDRESSx",
            "clusterIPs": ["xADDRESSx"],
            "ipFamilies": ["IPv4"],
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": "http"}],
            "selector": {"app": "xAPPx"},
        },
        "status": {"loadBalancer": {}},
    }


def _slice(endpoints: int) -> dict[str, Any]:
    managed = "endpointslice-controller.k8s.io"
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "xNAMEx-abcde",
            "namespace": "xNAMESPACEx",
            "labels": {"kubernetes.io/service-name": "xNAMEx", "endpointslice.kubernetes.io/managed-by": managed},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [_endpoint(number) for number in range(endpoints)],
    }


def _endpoint(number: int) -> dict[str, Any]:
    return {
        "addresses": [f"xADDRESS{number}x"],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "nodeName": f"xNODE{number}x",
        "zone": f"xZONE{number}x",
        "targetRef": {"kind": "Pod", "name": f"xNAME{number}x", "namespace": f"xNAMESPACE{number}x"},
    }
