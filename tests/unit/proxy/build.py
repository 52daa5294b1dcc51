"""Builders of Services, slices and nodes for the proxy's tests."""

from __future__ import annotations

from typing import Any

import msgspec

from zonewise.objects import EndpointSlice, Node, Service
from zonewise.routing import RoutingNodes

ZONE = "topology.kubernetes.io/zone"
NODES = {"a1": "a", "a2": "a", "b1": "b", "c1": "c"}


def service(
    name: str = "web", *, annotations: dict[str, str] | None = None, created: str | None = None, **spec: Any
) -> Service:
    status = {"loadBalancer": {"ingress": [{"ip": ip, "ipMode": "VIP"} for ip in spec.pop("vips", ())]}}
    spec = {"clusterIP": "10.96.0.1", "ports": [{"name": "http", "port": 80}], **spec}
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
    metadata = {"name": name, "namespace": "shop", "annotations": annotations or {}, "creationTimestamp": created}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": status}, Service)


def endpoint(address: str, node: str = "a1", **fields: Any) -> dict[str, Any]:
    hints = fields.pop("zones", None)
    nodes = fields.pop("nodes", None)
    hinted = {"forZones": [{"name": z} for z in hints or ()], "forNodes": [{"name": n} for n in nodes or ()]}
    conditions = {key: fields.pop(key) for key in ("ready", "serving", "terminating") if key in fields}
    return {
        "addresses": [address],
        "nodeName": node,
        "zone": NODES.get(node),
        "conditions": {"ready": True, **conditions},
        **({"hints": hinted} if hints or nodes else {}),
        **fields,
    }


def slice_of(*endpoints: dict[str, Any], name: str = "web-1", consumer: str = "", **fields: Any) -> EndpointSlice:
    body = {
        "metadata": {
            "name": name,
            "namespace": "shop",
            "labels": {"kubernetes.io/service-name": "web"} | ({"zonewise.dev/consumer": consumer} if consumer else {}),
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": list(endpoints),
        **fields,
    }
    return msgspec.convert(body, EndpointSlice)


def node(name: str, zone: str = "", **labels: str) -> Node:
    body = {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **({ZONE: zone} if zone else {}), **labels},
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "4"}},
    }
    return msgspec.convert(body, Node)


def cluster(**extra: Node) -> RoutingNodes:
    nodes = {name: node(name, zone) for name, zone in NODES.items()} | extra
    return RoutingNodes.of(nodes.values())
